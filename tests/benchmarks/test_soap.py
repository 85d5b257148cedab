"""SOAP as the comparison steps it, against what makes it SOAP."""

import pytest
import torch

from benchmarks.soap import Soap, _Basis


def test_the_first_step_is_as_long_in_every_direction_and_decays_apart() -> None:
    numbers = torch.Generator().manual_seed(1)
    before, gradient = (torch.randn(3, 6, 6, generator=numbers) for _ in range(2))
    after = before.clone()
    after.grad = gradient * torch.tensor([1.0, 1e-2, 50.0]).view(3, 1, 1)
    Soap([after], lr=0.01, momentum=0.9, weight_decay=0.5).step()
    step = after - before * (1 - 0.01 * 0.5)
    assert step.flatten(1).norm(dim=1).tolist() == pytest.approx([0.01 * 6] * 3, rel=1e-2)
    assert (step * gradient).flatten(1).sum(1).max() < 0


def test_replicas_step_as_each_would_alone() -> None:
    numbers = torch.Generator().manual_seed(2)
    start, gradients = torch.randn(2, 6, 8, generator=numbers), torch.randn(25, 2, 6, 8, generator=numbers)

    def stepped(which: slice) -> torch.Tensor:
        weights = start[which].clone()
        one = Soap([weights], lr=0.01, momentum=0.9, weight_decay=0.1)
        for gradient in gradients:
            weights.grad = gradient[which].clone()
            one.step()
        return weights

    together = stepped(slice(0, 2))
    for which in (slice(0, 1), slice(1, 2)):
        torch.testing.assert_close(together[which], stepped(which), rtol=0, atol=1e-4)


def test_where_a_basis_has_one_vector_it_is_adamw() -> None:
    numbers = torch.Generator().manual_seed(4)
    start, gradients = torch.randn(5, 1, 1, generator=numbers), torch.randn(25, 5, 1, 1, generator=numbers)
    own, adamw = start.clone(), start.clone()
    steppers = [
        (own, Soap([own], lr=0.01, momentum=0.9, weight_decay=0.1)),
        (adamw, torch.optim.AdamW([adamw], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)),
    ]
    for gradient in gradients:
        for weights, one in steppers:
            weights.grad = gradient.clone()
            one.step()
    torch.testing.assert_close(own, adamw, rtol=0, atol=1e-6)


def test_a_basis_comes_to_be_that_of_the_eigenvectors() -> None:
    numbers = torch.Generator().manual_seed(3)
    vectors = torch.linalg.qr(torch.randn(2, 8, 8, generator=numbers))[0]
    covariance = vectors @ torch.diag_embed(torch.logspace(0, -3, 8).repeat(2, 1)) @ vectors.mT
    basis = _Basis(2, 8)
    for _ in range(60):
        basis.add(covariance)
        basis.turn()
    torch.testing.assert_close(basis.vectors.mT @ basis.vectors, torch.eye(8).repeat(2, 1, 1), rtol=0, atol=1e-5)
    inside = (basis.vectors.mT @ covariance @ basis.vectors).abs()
    assert (inside - torch.diag_embed(inside.diagonal(dim1=1, dim2=2))).max() < 1e-3
