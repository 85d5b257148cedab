"""What goes from stage to stage, packed and unpacked on every device."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlx.training.inner.packing import pack, packed_bytes, unpack
from dlx.training.recipe.recipe import Packing
from tests.training.devices import DEVICES

ROWS = st.lists(st.lists(st.floats(width=32), min_size=5, max_size=5), min_size=1, max_size=4)
SHAPE = (2, 3, 5)


def _through(tensor: torch.Tensor, packing: Packing) -> torch.Tensor:
    data = pack(tensor, packing)
    assert len(data) == packed_bytes(tuple(tensor.shape), packing)
    return unpack(bytearray(data), tuple(tensor.shape), packing, tensor.device.type)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("packing", "most"), [("float32", 0.0), ("bfloat16", 2**-8), ("int8", 1 / 253)])
def test_each_token_keeps_its_values_to_a_part_of_its_largest(device: str, packing: Packing, most: float) -> None:
    numbers = torch.Generator().manual_seed(5)
    tensor = (torch.randn(SHAPE, generator=numbers) * torch.tensor([[[1e-20], [1.0], [1e20]]])).to(device)
    found = _through(tensor, packing)
    assert found.dtype == torch.float32 and found.device == tensor.device
    assert ((found - tensor).abs() <= most * tensor.abs().amax(-1, keepdim=True)).all()


@given(rows=ROWS, packing=st.sampled_from(["float32", "bfloat16", "int8"]))
def test_what_is_no_number_stays_none_and_zeros_stay_zeros(rows: list[list[float]], packing: Packing) -> None:
    tensor = torch.tensor(rows)
    found = _through(tensor, packing)
    sound = tensor.isfinite().all(-1)
    assert not found[~sound].isfinite().all(-1).any(), "a diverged replica is not made to look sound"
    assert not found[(tensor == 0).all(-1)].any()
    again = _through(found, packing)
    assert torch.allclose(again[sound & found.isfinite().all(-1)], found[sound & found.isfinite().all(-1)], rtol=1e-2)


@given(data=st.binary(min_size=9 * 2, max_size=9 * 2))
def test_any_bytes_of_the_right_number_are_taken(data: bytes) -> None:
    assert unpack(bytearray(data), (2, 5), "int8").shape == (2, 5)


def test_float32_in_main_memory_is_not_copied() -> None:
    tensor, data = torch.ones(SHAPE), bytearray(4 * 30)
    pack(tensor, "float32")[0] = 1
    assert tensor[0, 0, 0] != 1
    unpack(data, SHAPE, "float32")[0, 0, 0] = 1.0
    assert any(data)


def test_the_smallest_numbers_keep_their_signs() -> None:
    tiny = torch.tensor([[2.5e-43, -2.5e-43, 1e-43, 0.0, 0.0]])
    assert torch.equal(_through(tiny, "int8").sign() * tiny.sign(), tiny.sign().abs())
