"""What a draft learns from: cross entropy, the distance of whole distributions, and its own confidence."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corymb.kernels.distillation import Distil
from corymb.speculative.trainable import Guesses

CROSS_ENTROPY, L1, CONFIDENCE = 0.1, 0.9, 1.0
DECAY = 4.0  # a draft's weight falls to 1/e every so many places: it counts only where those before it are accepted


@dataclass(frozen=True, slots=True)
class Answers:
    """What the target says at every place of every block. N = B × A × G."""

    hidden: Tensor  # [N, H], its own last hidden states
    labels: Tensor  # int64 [N], what it wrote
    valid: Tensor  # bool [N]; False beyond an answer's end
    temperature: Tensor  # float32 [N], at which whole distributions are compared


@dataclass(frozen=True, slots=True)
class Losses:
    """Weighted means over all places, and the chance of acceptance place by place."""

    total: Tensor
    cross_entropy: Tensor
    l1: Tensor
    confidence: Tensor
    accepted: Tensor  # float32 [G], mean of Σ min(p, q) where valid


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How hidden states become logits, a chunk of rows at a time: N × V numbers are never there at once."""

    head: Tensor  # [V, H], the target's; it learns nothing
    distil: Distil
    chunk_rows: int = 8192


def losses(guesses: Guesses, answers: Answers, vocabulary: Vocabulary, *, table: Tensor | None) -> Losses:
    """`table`: [V, rank] of the Markov head; None where guesses.hidden holds its part."""
    num_drafts = guesses.hidden.shape[2]
    weights = place_weights(answers.valid, num_drafts)
    hidden = guesses.hidden.flatten(0, 2)
    inner = None if guesses.inner is None else guesses.inner.flatten(0, 2)
    compared, cross_entropy, l1 = _Comparison.apply(  # type: ignore[no-untyped-call]
        hidden, inner, table, answers, vocabulary, weights
    )
    accepted = (1 - l1 / 2).clamp(0, 1)
    doubt = F.binary_cross_entropy_with_logits(guesses.confidence.flatten().float(), accepted, reduction="none")
    confidence = (weights * doubt).sum()
    return Losses(
        total=compared + CONFIDENCE * confidence,
        cross_entropy=(weights * cross_entropy).sum(),
        l1=(weights * l1).sum(),
        confidence=confidence.detach(),
        accepted=_mean_by_place(accepted, answers.valid, num_drafts),
    )


def place_weights(valid: Tensor, num_drafts: int) -> Tensor:
    """Float32 [N] with sum 1: what each place counts."""
    decay = torch.exp(-torch.arange(num_drafts, device=valid.device) / DECAY)
    weights = valid.view(-1, num_drafts) * decay
    return (weights / weights.sum().clamp(min=1e-8)).flatten()


def _mean_by_place(values: Tensor, valid: Tensor, num_drafts: int) -> Tensor:
    kept = valid.view(-1, num_drafts).float()
    return (values.view(-1, num_drafts) * kept).sum(dim=0) / kept.sum(dim=0).clamp(min=1)


class _Comparison(torch.autograd.Function):
    """The products with the vocabulary, the distances, and all gradients, in one pass over chunks of rows."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        inner: Tensor | None,
        table: Tensor | None,
        answers: Answers,
        vocabulary: Vocabulary,
        weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = vocabulary.head
        by_hidden = torch.empty_like(hidden)
        by_inner = None if inner is None else torch.empty_like(inner)
        by_table = None if table is None else torch.zeros_like(table)
        cross_entropy = torch.empty(len(hidden), device=hidden.device)
        l1 = torch.empty_like(cross_entropy)
        of_terms = torch.stack((CROSS_ENTROPY * weights, L1 * weights), dim=1)
        own = None if table is None else table.to(head.dtype)
        for start in range(0, len(hidden), vocabulary.chunk_rows):
            rows = slice(start, start + vocabulary.chunk_rows)
            logits = hidden[rows].to(head.dtype) @ head.T
            if inner is not None and own is not None:
                logits += inner[rows].to(head.dtype) @ own.T
            distance = vocabulary.distil(
                logits,
                answers.hidden[rows].to(head.dtype) @ head.T,
                labels=answers.labels[rows],
                temperature=answers.temperature[rows],
                weights=of_terms[rows],
            )
            cross_entropy[rows], l1[rows] = distance.cross_entropy, distance.l1
            by_hidden[rows] = logits @ head
            if inner is not None and by_inner is not None and by_table is not None and own is not None:
                by_inner[rows] = logits @ own
                by_table += logits.T @ inner[rows].to(head.dtype)
        ctx.save_for_backward(by_hidden, by_inner, by_table)
        total = (of_terms * torch.stack((cross_entropy, l1), dim=1)).sum()
        ctx.mark_non_differentiable(cross_entropy, l1)
        return total, cross_entropy, l1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        by_hidden, by_inner, by_table = ctx.saved_tensors
        scale = gradients[0]
        scaled = [None if one is None else one * scale for one in (by_hidden, by_inner, by_table)]
        return (*scaled, None, None, None)
