"""The loss of a draft in one kernel: a program a row reads its logits three times and writes the gradient over them."""

import torch
import triton.language as tl
from torch import Tensor

from corymb.kernels.distillation import SAME, Distance
from corymb.kernels.triton_jit import Launch, jit

BLOCK = 4096
NUM_WARPS = 8
NEAR = tl.constexpr(SAME)


class TritonDistillation:
    """See distillation.Distil."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def __call__(
        self, draft: Tensor, target: Tensor, *, labels: Tensor, temperature: Tensor, weights: Tensor
    ) -> Distance:
        """See distillation.Distil. Both logits need their vocabulary side by side."""
        assert draft.stride(1) == target.stride(1) == 1, "rows of logits must be whole"
        num_rows, vocab_size = draft.shape
        cross_entropy = torch.empty(num_rows, device=draft.device)
        l1 = torch.empty_like(cross_entropy)
        block = BLOCK if not self._launch.interpreted else 64
        distil_rows[(num_rows,)](
            draft,
            target,
            labels,
            temperature,
            weights.contiguous(),
            cross_entropy,
            l1,
            draft.stride(0),
            target.stride(0),
            vocab_size,
            BLOCK=block,
            **self._launch.plain(NUM_WARPS),
        )
        return Distance(cross_entropy, l1)


# fmt: off
@jit
def direction(difference: tl.tensor, chance: tl.tensor) -> tl.tensor:
    """Its sign, zero where two chances are the same but for rounding."""
    return tl.where(tl.abs(difference) > NEAR * chance, tl.where(difference > 0, 1.0, -1.0), 0.0)


@jit
def distil_rows(
    draft: tl.tensor, target: tl.tensor, labels: tl.tensor, temperature: tl.tensor, weights: tl.tensor,
    cross_entropy: tl.tensor, l1: tl.tensor, draft_stride: tl.tensor, target_stride: tl.tensor,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:
    """Program r does row r of SIZE logits."""
    row = tl.program_id(0).to(tl.int64)
    draft += row * draft_stride
    target += row * target_stride
    label = tl.load(labels + row)
    label_logit = tl.load(draft + label).to(tl.float32)
    warmth = 1.0 / tl.load(temperature + row)

    # Sums of exp(logit - best), rescaled whenever a better one comes: the draft's at temperature 1 and at the row's,
    # the target's at the row's.
    best = -float("inf")
    target_best = -float("inf")
    plain_sum = 0.0
    draft_sum = 0.0
    target_sum = 0.0
    for start in range(0, SIZE, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < SIZE
        ours = tl.load(draft + index, mask=inside, other=-float("inf")).to(tl.float32)
        theirs = tl.load(target + index, mask=inside, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(best, tl.max(ours))
        target_higher = tl.maximum(target_best, tl.max(theirs))
        plain_sum = plain_sum * tl.exp(best - higher) + tl.sum(tl.exp(ours - higher))
        draft_sum = draft_sum * tl.exp((best - higher) * warmth) + tl.sum(tl.exp((ours - higher) * warmth))
        target_sum *= tl.exp((target_best - target_higher) * warmth)
        target_sum += tl.sum(tl.exp((theirs - target_higher) * warmth))
        best = higher
        target_best = target_higher
    tl.store(cross_entropy + row, tl.log(plain_sum) + best - label_logit)

    distance = 0.0
    mean_sign = 0.0
    for start in range(0, SIZE, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < SIZE
        ours = tl.load(draft + index, mask=inside, other=-float("inf")).to(tl.float32)
        theirs = tl.load(target + index, mask=inside, other=-float("inf")).to(tl.float32)
        chance = tl.exp((ours - best) * warmth) / draft_sum
        difference = chance - tl.exp((theirs - target_best) * warmth) / target_sum
        distance += tl.sum(tl.abs(difference))
        mean_sign += tl.sum(chance * direction(difference, chance))
    tl.store(l1 + row, distance)

    of_plain = tl.load(weights + 2 * row)
    of_distance = tl.load(weights + 2 * row + 1) * warmth
    for start in range(0, SIZE, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < SIZE
        ours = tl.load(draft + index, mask=inside, other=-float("inf")).to(tl.float32)
        theirs = tl.load(target + index, mask=inside, other=-float("inf")).to(tl.float32)
        chance = tl.exp((ours - best) * warmth) / draft_sum
        difference = chance - tl.exp((theirs - target_best) * warmth) / target_sum
        gradient = of_plain * (tl.exp(ours - best) / plain_sum - (index == label).to(tl.float32))
        gradient += of_distance * chance * (direction(difference, chance) - mean_sign)
        tl.store(draft + index, gradient.to(draft.dtype.element_ty), mask=inside)
# fmt: on
