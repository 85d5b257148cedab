import os

import pytest
import torch

from dlx.training.models.placement import Placement, PlacementError, cores, settle, wrong_device
from tests.training.devices import DEVICES


def test_auto_is_what_this_machine_has() -> None:
    settled = settle(Placement())
    assert torch.device(settled.device).type == DEVICES[-1]
    assert settled.threads == cores() and 1 <= cores() <= (os.cpu_count() or 1)
    assert settle(Placement(device="cpu", threads=3)) == Placement(device="cpu", threads=3)


@pytest.mark.parametrize("name", [*DEVICES, "cpu"])
def test_a_device_that_is_here_can_be_named(name: str) -> None:
    assert torch.ones(2, device=settle(Placement(device=name)).device).sum() == 2


@pytest.mark.parametrize("name", ["cuda:999", *({"mps", "cuda"} - {*DEVICES})])
def test_a_device_that_is_not_here_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(PlacementError, match=f"device {name}: this machine.*: choose another, or auto") as caught:
        settle(Placement(device=name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:1 ", "cpu:0", "meta"])
def test_other_words_are_no_devices(name: str) -> None:
    assert wrong_device(name) == "expected auto, cpu, cuda, cuda:N or mps"
