"""The loss of a draft against autograd."""

import pytest
import torch

from corymb.kernels.distillation import distil


def loss_of(draft: torch.Tensor, target: torch.Tensor, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """As dspark.md writes it down, term by term."""
    temperature = rows["temperature"][:, None]
    cross_entropy = torch.nn.functional.cross_entropy(draft, rows["labels"], reduction="none")
    l1 = ((draft / temperature).softmax(1) - (target / temperature).softmax(1)).abs().sum(1)
    return (rows["weights"] * torch.stack((cross_entropy, l1), dim=1)).sum()


@pytest.mark.parametrize("seed", range(5))
def test_gradient_is_that_of_the_loss(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    draft = (3 * torch.randn(7, 33, generator=generator)).double().requires_grad_()
    target = 3 * torch.randn(7, 33, generator=generator)
    rows = {
        "labels": torch.randint(33, (7,), generator=generator),
        "temperature": torch.rand(7, generator=generator) + 0.3,
        "weights": torch.rand(7, 2, generator=generator),
    }
    loss = loss_of(draft, target.double(), rows)
    loss.backward()
    overwritten, given = draft.detach().float(), target.clone()
    distance = distil(overwritten, target, **rows)
    assert torch.equal(target, given)
    assert draft.grad is not None
    torch.testing.assert_close(overwritten, draft.grad.float(), atol=2e-6, rtol=1e-4)
    total = rows["weights"][:, 0] @ distance.cross_entropy + rows["weights"][:, 1] @ distance.l1
    torch.testing.assert_close(total, loss.detach().float())


def test_equal_distributions_leave_cross_entropy_alone() -> None:
    logits = torch.randn(4, 20, generator=torch.Generator().manual_seed(1))
    draft = logits.clone()
    ones = torch.ones(4)
    weights = torch.stack((torch.zeros(4), ones), dim=1)
    distance = distil(draft, logits, labels=torch.zeros(4, dtype=torch.int64), temperature=ones, weights=weights)
    assert distance.l1.tolist() == [0, 0, 0, 0]
    assert draft.abs().max() == 0
