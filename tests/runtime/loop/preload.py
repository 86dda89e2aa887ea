"""What the process that workers are forked from has loaded: torch, and what the first optimizer would import."""

import torch
import torch._dynamo  # the first optimizer imports it
import torch.utils.checkpoint

import melodeon.runtime.join  # noqa: F401

torch.set_num_threads(1)
