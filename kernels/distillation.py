"""How far a draft is from its target, row by row, and where to move it: the reference in plain torch."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

SAME = 1e-5  # chances that differ by less than this share of the draft's are taken for equal: l1 has no slope there


@dataclass(frozen=True, slots=True)
class Distance:
    """Of N rows, float32 [N]."""

    cross_entropy: Tensor  # -log of the draft's chance of the label, at temperature 1
    l1: Tensor  # Σ |draft - target| over the vocabulary, at the row's temperature: twice the chance of a rejection


class Distil(Protocol):
    """A back end."""

    def __call__(
        self, draft: Tensor, target: Tensor, *, labels: Tensor, temperature: Tensor, weights: Tensor
    ) -> Distance:
        """Compares logits [N, V] that stand at temperature 1, with labels int64 [N] and temperature float32 [N].

        Overwrites `draft` with the gradient by it of Σ weights[:, 0] × cross_entropy + weights[:, 1] × l1; weights are
        float32 [N, 2]. Logits may be bfloat16; all sums are float32.
        """
        ...


def distil(draft: Tensor, target: Tensor, *, labels: Tensor, temperature: Tensor, weights: Tensor) -> Distance:
    """See Distil. Holds three copies of the logits in float32: callers pass some thousand rows at a time."""
    index = labels[:, None]
    logits = draft.float()
    log_chances = logits.log_softmax(dim=1)
    cross_entropy = -log_chances.gather(1, index)[:, 0]
    gradient = log_chances.exp_()
    gradient.scatter_add_(1, index, torch.full_like(cross_entropy, -1.0)[:, None])
    gradient *= weights[:, :1]

    chances = logits.div_(temperature[:, None]).softmax(dim=1)
    difference = chances - (target.float() / temperature[:, None]).softmax(dim=1)
    l1 = difference.abs().sum(dim=1)
    sign = difference.sign() * (difference.abs() > SAME * chances)
    # Of q = softmax(z / T): d Σ s·q / dz = q (s - Σ s·q) / T.
    mean = (sign * chances).sum(dim=1, keepdim=True)
    gradient += sign.sub_(mean).mul_(chances).mul_((weights[:, 1] / temperature)[:, None])
    draft.copy_(gradient)
    return Distance(cross_entropy, l1)
