"""The script that live tests train: with everything in it that could betray a resize."""

import argparse
import os
import threading
from pathlib import Path

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import melodeon
from melodeon.core.launch import Launch
from tests.runtime.loop import parts

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--order", default="tree")
parser.add_argument("--pace", type=float, default=0.0, help="seconds that each virtual worker takes at least")
parser.add_argument("--rest", type=float, default=0.0, help="seconds between two epochs, as an evaluation takes them")
parser.add_argument("--leave-every", type=int, default=0, help="leave the loop by `break` whenever so many are done")
parser.add_argument("--slow", default="", help="WORKER:SECONDS: this worker takes so much longer for each part")
parser.add_argument("--checkpoints", default="")
parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
parser.add_argument("--ballast", type=int, default=0, help="bytes of state that are only carried along")
parser.add_argument("--loaders", type=int, default=0)
parser.add_argument("--hybrid", action="store_true")
options = parser.parse_args()

job = melodeon.join(virtual_workers=6, seed=11, order=options.order)
# With a larger batch an epoch may end in steps of one sample each, which BatchNorm refuses.
norm = nn.LayerNorm(24) if options.hybrid else nn.BatchNorm1d(24)
model = nn.Sequential(nn.Linear(12, 24), norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
by_step = lr_scheduler.CosineAnnealingLR(optimizer, 500)
if options.ballast:
    model.register_parameter("ballast", nn.Parameter(torch.ones(options.ballast // 4), requires_grad=False))
model, optimizer, by_step = job.wrap(model, optimizer, by_step)
generator = torch.Generator().manual_seed(3)
data = TensorDataset(torch.randn(450, 12, generator=generator), torch.randint(0, 4, (450,), generator=generator))
loader = job.loader(data, batch_size=3, shuffle=True, num_workers=options.loaders)  # 25 steps an epoch
if options.hybrid:
    job.hybrid(ramp_steps=12)
if options.checkpoints:
    job.checkpoint(options.checkpoints, every=options.every)
slow_worker, _, slow_s = options.slow.partition(":")
launch = Launch.from_env(os.environ) or Launch()
number = launch.worker_number
hurry = Path(launch.run_dir or ".", "hurry")  # made by a test that waits for nothing but the end
pace_s = options.pace + (float(slow_s) if slow_worker and number == int(slow_worker) else 0.0)
for _ in job.epochs(options.epochs):
    left_s = 0.0 if hurry.exists() else pace_s
    parts.run_epoch(job, loader, model, optimizer, by_step, pace_s=left_s, features=12, leave_every=options.leave_every)
    threading.Event().wait(options.rest)
