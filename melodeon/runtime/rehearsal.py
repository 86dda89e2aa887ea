"""A step of nothing, before the first that counts.

What a process does for the first time takes several times as long as ever after: modules are imported late, libraries
make their handles and pick their kernels, and every page that a forked process writes to is copied. A worker that joins
a running job would have the others wait for that at its first step; so it goes through the motions of one while they
still train, with a parameter of its own. No random number is drawn, and nothing of the job is touched.
"""

import torch
from torch.nn import functional

_WIDTH = 8


def rehearse(device: torch.device) -> None:
    """Forward, backward and an update, on the device that the job trains on; and a state is taken over."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        weight = torch.ones(_WIDTH, _WIDTH, dtype=torch.float32, device=device, requires_grad=True)
        targets = torch.zeros(_WIDTH, dtype=torch.int64, device=device)
        optimizer = torch.optim.AdamW([weight])
        outputs = functional.relu(functional.linear(torch.ones_like(weight), weight))
        functional.cross_entropy(outputs, targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
