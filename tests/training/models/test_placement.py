import os
import re

import pytest
import torch
from torch._inductor.exc import InvalidCxxCompiler

from dlx.ground.limits import cores
from dlx.training.models import placement
from dlx.training.models.placement import (
    Placement,
    PlacementError,
    check,
    lacking,
    of_run,
    settle,
    unused_gpu,
    wrong_device,
)
from tests.training.conftest import tiny_draft
from tests.training.devices import DEVICES


def test_auto_is_what_this_machine_has() -> None:
    settled = settle(Placement())
    assert torch.device(settled.device).type == DEVICES[-1]
    assert settled.threads == cores() and 1 <= cores() <= (os.cpu_count() or 1)
    assert settle(Placement(device="cpu", threads=3)) == Placement(device="cpu", threads=3)


@pytest.mark.parametrize("name", [*DEVICES, "cpu"])
def test_a_device_that_is_here_can_be_named(name: str) -> None:
    assert torch.ones(2, device=settle(Placement(device=name)).device).sum() == 2


def test_without_a_compiler_layers_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Placement(device="cpu", threads=1, compile=True)
    assert settle(wanted) == wanted
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", _no_compiler)
    assert settle(wanted) == Placement(device="cpu", threads=1)
    assert lacking("cpu") == "C++ compiler"


def _no_compiler() -> str:
    raise InvalidCxxCompiler


@pytest.mark.parametrize("name", ["cuda:999", *sorted({"mps", "cuda"} - {*DEVICES})])
def test_a_device_that_is_not_here_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(PlacementError, match=f"device {name}: this machine.*: choose another, or auto") as caught:
        settle(Placement(device=name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:1 ", "cpu:0", "meta"])
def test_other_words_are_no_devices(name: str) -> None:
    assert wrong_device(name) == "expected auto, cpu, cuda, cuda:N or mps"


def test_ranks_are_as_many_devices_alike() -> None:
    settled = settle(Placement(device="cpu", ranks=2))
    assert (settled.ranks, settled.devices, settled.threads) == (2, ("cpu", "cpu"), max(1, cores() // 2))
    assert settle(settled) == settled == settle(Placement(devices=("cpu", "cpu")))
    assert str(settled).startswith("2 ranks on cpu, ")
    assert settle(Placement(devices=("cpu",))).ranks == 1


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (Placement(devices=("cpu", "cpu"), ranks=3), "2 devices for 3 ranks: name one for each, or none"),
        (Placement(devices=("cpu", "cuda:999")), "device cuda:999: this machine"),
        (Placement(device="cuda", ranks=999), "device cuda"),
        (
            Placement(device="cpu", ranks=3, tensor_parallel=2),
            "tensor_parallel 2: it has to divide the number of ranks (3)",
        ),
        (Placement(device="cpu", tensor_parallel=2), "tensor_parallel 2: it has to divide the number of ranks (1)"),
        (Placement(device="cpu", machines=2), "2 machines: say where they meet, HOST:PORT of the node's"),
    ],
)
def test_ranks_that_cannot_be_are_refused_in_one_line(wanted: Placement, reason: str) -> None:
    with pytest.raises(PlacementError, match=re.escape(reason)) as caught:
        settle(wanted)
    assert "\n" not in str(caught.value)


def test_an_exact_run_takes_the_cpu_and_one_rank() -> None:
    exact = tiny_draft([(0, 3)], arithmetic="exact")
    assert of_run(exact, Placement(compile=True)) == Placement(device="cpu")
    assert of_run(tiny_draft([(0, 3)]), Placement(device="cuda:1")) == Placement(device="cuda:1")
    with pytest.raises(PlacementError, match="device cuda:1: an exact run is computed on the CPU: choose cpu, or auto"):
        of_run(exact, Placement(device="cuda:1"))
    with pytest.raises(PlacementError, match="several ranks: a stage of an exact run is trained by one; use 1"):
        of_run(exact, Placement(ranks=2, tensor_parallel=2))


def test_what_fits_no_machine_is_known_without_asking_this_one() -> None:
    with pytest.raises(PlacementError, match=r"has to divide the number of ranks \(2\)"):
        check(Placement(device="cuda:999", ranks=2, tensor_parallel=3))
    check(Placement(device="cuda:999", ranks=4, tensor_parallel=2))


@pytest.mark.parametrize(
    ("here", "devices", "reason"),
    [
        (2, ("cuda:0", "cuda:0"), "each rank needs a device of its own"),
        (2, ("cuda:0", "cpu"), "the ranks of a stage are on the CPU or on CUDA devices"),
        (2, ("cuda:0", "cuda:1"), "several ranks need a torch with nccl: this one has none; use one rank"),
    ],
)
def test_devices_that_do_not_go_together(
    here: int, devices: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: name == "gloo")
    with pytest.raises(PlacementError, match=reason):
        settle(Placement(devices=devices))


@pytest.mark.skipif(torch.cuda.is_available() or torch.version.cuda is not None, reason="this torch can use a GPU")
def test_a_gpu_that_torch_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"/dev/nvidia[0-9]*": ["/dev/nvidia0"]}
    monkeypatch.setattr(placement, "glob", lambda pattern: here.get(pattern, []))
    assert unused_gpu() == (
        f"this machine has an NVIDIA GPU, and torch {torch.__version__} was built without support for it"
    )
    here.clear()
    assert unused_gpu() is None
