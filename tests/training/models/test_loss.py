import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from dlx.training.models import loss
from tests.patience import PATIENCE
from tests.training.devices import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [16, 37])
def test_in_chunks_it_is_the_loss_of_all_logits(device: str, dtype: torch.dtype, tokens: int) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(24, 50, device=device)
    hidden = torch.randn(tokens, 24, device=device, requires_grad=True)
    labels = torch.randint(50, (tokens,), device=device)
    leaves = (hidden, *head.parameters())

    def chunked() -> torch.Tensor:
        return loss.cross_entropy(head, tuple(head.parameters()), 8, hidden, labels)

    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
        whole = functional.cross_entropy(head(hidden).float(), labels)
        found = chunked()
    expected = torch.autograd.grad(whole / 3, leaves)
    tolerance = 1e-6 if dtype == torch.float32 else 5e-3
    assert found.dtype == torch.float32 and found.item() == pytest.approx(whole.item(), rel=1e-6)
    for one, other in zip(torch.autograd.grad(found / 3, leaves), expected, strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < tolerance
    with torch.no_grad(), torch.autocast(device, dtype, enabled=dtype != torch.float32):
        assert chunked().item() == pytest.approx(whole.item(), rel=1e-6)


_MEMORY = r"""
import pathlib, re, sys, torch
from dlx.training.models import loss
def peak():  # of this program: what getrusage says includes its parent's
    return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1])
torch.set_num_threads(1)
tokens, width, vocabulary = 2048, 16, 131072
head = torch.nn.Linear(width, vocabulary, bias=False)
hidden = torch.randn(tokens, width, requires_grad=True)
labels = torch.randint(vocabulary, (tokens,))
before = peak()
loss.cross_entropy(head, tuple(head.parameters()), loss.chunk_rows("cpu", vocabulary), hidden, labels).backward()
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_vocabulary_takes_no_memory_for_all_its_logits() -> None:
    logits = 2048 * 131072 * 4  # bytes, of which functional.cross_entropy takes more than twice as many
    done = subprocess.run([sys.executable, "-c", _MEMORY], capture_output=True, timeout=PATIENCE, check=True)
    assert 1024 * int(done.stdout) < logits / 2
