"""Copies between main memory and a device, through pinned memory where the device is a CUDA GPU."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: str) -> Tensor:
    """A tensor of main memory, there; on a GPU without waiting for it."""
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def to_host(tensor: Tensor) -> Tensor:
    """In main memory: the tensor itself, where it is there."""
    if tensor.is_cuda:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
    return tensor.cpu()
