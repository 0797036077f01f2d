"""What a device has to refuse, or these tests would show nothing."""

import pytest
import torch
from torch import nn

REFUSED = {
    "a sum with a tensor of the processor": lambda there: there + torch.ones(3),
    "a result written into the processor's": lambda there: torch.add(there, there, out=torch.empty(3)),
    "a layer that was left behind": lambda there: nn.Linear(3, 2)(there),
    "an index of the processor's by index_select": lambda there: there.index_select(0, torch.tensor([0, 1])),
    "numbers in NumPy": lambda there: there.numpy(),
}


@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED)
def test_refused(use, device):
    with pytest.raises((RuntimeError, TypeError), match=r"device|numpy"):
        use(torch.ones(3).to(device))


def test_allowed(device):
    there = torch.arange(3.0).to(device)
    assert (there[torch.tensor([2, 0])] + torch.tensor(1.0)).tolist() == [3, 1]
