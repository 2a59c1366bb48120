"""Chooses each token's experts and brings the pairs of tokens and experts in an order for grouped products."""

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from corymb.kernels.routing import Routing
from corymb.kernels.triton_jit import Count, Launch, jit, next_power_of_2

SCAN = 1024  # pairs that are looked at together


# fmt: off
@jit
def allow_best_groups(rank: tl.tensor, GROUPS: tl.constexpr, SIZE: tl.constexpr, TOP_GROUPS: tl.constexpr) -> tl.tensor:
    """Hides the experts of all but the best groups; `rank` holds GROUPS × SIZE experts, padding at -inf."""
    table = tl.reshape(rank, [GROUPS, SIZE])
    column = tl.arange(0, SIZE)
    group = tl.arange(0, GROUPS)
    first = tl.argmax(table, 1)
    second = tl.max(tl.where(column[None, :] == first[:, None], float("-inf"), table), 1)
    merit = tl.max(table, 1) + second
    kept = group < 0
    for _ in tl.static_range(TOP_GROUPS):
        best = tl.argmax(merit, 0)
        kept = kept | (group == best)
        merit = tl.where(group == best, float("-inf"), merit)
    return tl.reshape(tl.where(kept[:, None], table, float("-inf")), [GROUPS * SIZE])


@jit
def choose_experts(
    logits: tl.tensor, correction: tl.tensor, ids: tl.tensor, weights: tl.tensor, logit_stride: tl.tensor,
    scale: tl.tensor, EXPERTS: tl.constexpr, GROUPS: tl.constexpr, GROUP_SIZE: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr, BLOCK_SIZE: tl.constexpr, TOP_GROUPS: tl.constexpr, TOP_K: tl.constexpr,
    BLOCK_K: tl.constexpr, SIGMOID: tl.constexpr, NORMALIZED: tl.constexpr, CORRECT: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program t chooses token t's experts, the lower number among equals."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK_GROUPS * BLOCK_SIZE)
    expert = place // BLOCK_SIZE * GROUP_SIZE + place % BLOCK_SIZE
    real = (place // BLOCK_SIZE < GROUPS) & (place % BLOCK_SIZE < GROUP_SIZE)
    logit = tl.load(logits + token * logit_stride + expert, mask=real, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        score = 1.0 / (1.0 + tl.exp(-logit))
    else:
        power = tl.exp(logit - tl.max(logit, 0))
        score = power / tl.sum(power, 0)
    rank = score
    if CORRECT:
        rank = score + tl.load(correction + expert, mask=real, other=0.0)
    rank = tl.where(real, rank, float("-inf"))
    if GROUPS > 1:
        rank = allow_best_groups(rank, BLOCK_GROUPS, BLOCK_SIZE, TOP_GROUPS)
    choice = tl.arange(0, BLOCK_K)
    chosen = tl.zeros([BLOCK_K], tl.int32)
    weight = tl.zeros([BLOCK_K], tl.float32)
    total = 1e-20
    for index in tl.static_range(TOP_K):
        best = tl.argmax(rank, 0)
        of_best = tl.sum(tl.where(place == best, score, 0.0), 0)
        total += of_best
        # Bounded: with NaN among the logits, the best may be padding.
        number = tl.minimum(best // BLOCK_SIZE * GROUP_SIZE + best % BLOCK_SIZE, EXPERTS - 1)
        chosen = tl.where(choice == index, number, chosen)
        weight = tl.where(choice == index, of_best, weight)
        rank = tl.where(place == best, float("-inf"), rank)
    if NORMALIZED:
        weight = weight / total
    wanted = choice < TOP_K
    tl.store(ids + token * TOP_K + choice, chosen, mask=wanted)
    tl.store(weights + token * TOP_K + choice, weight * scale, mask=wanted)


@jit
def count_pairs(
    ids: tl.tensor, counts: tl.tensor, num_pairs: "Count", SCAN: tl.constexpr, EARLY: tl.constexpr
) -> None:
    """Program e counts the pairs of expert e."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    expert = tl.program_id(0)
    count = tl.zeros([SCAN], tl.int32)
    for start in range(0, num_pairs, SCAN):
        pair = start + tl.arange(0, SCAN)
        count += tl.where(tl.load(ids + pair, mask=pair < num_pairs, other=-1) == expert, 1, 0)
    tl.store(counts + expert, tl.sum(count, 0))


@jit
def group_pairs(
    ids: tl.tensor, counts: tl.tensor, order: tl.tensor, experts: tl.tensor, total: tl.tensor, num_pairs: "Count",
    EXPERTS: tl.constexpr, BLOCK_EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, SCAN: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program e lists its pairs in `order`, from a multiple of BLOCK_M on; `experts` says whose each block is.

    The rest of its last block is `num_pairs`, which is no pair.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    expert = tl.program_id(0)
    other = tl.arange(0, BLOCK_EXPERTS)
    count = tl.load(counts + other, mask=other < EXPERTS, other=0)
    blocks = (count + BLOCK_M - 1) // BLOCK_M
    first = tl.sum(tl.where(other < expert, blocks, 0), 0)
    own = tl.sum(tl.where(other == expert, blocks, 0), 0)
    if expert == EXPERTS - 1:
        tl.store(total, first + own)
    seen = 0
    for start in range(0, num_pairs, SCAN):
        pair = start + tl.arange(0, SCAN)
        mine = tl.load(ids + pair, mask=pair < num_pairs, other=-1) == expert
        hit = tl.where(mine, 1, 0)
        rank = seen + tl.cumsum(hit, 0) - 1
        tl.store(order + first * BLOCK_M + rank, pair, mask=mine)
        seen += tl.sum(hit, 0)
    tail = seen + tl.arange(0, BLOCK_M)
    tl.store(order + first * BLOCK_M + tail, num_pairs, mask=tail < own * BLOCK_M)
    for start in range(0, own, SCAN):
        block = start + tl.arange(0, SCAN)
        tl.store(experts + first + block, expert, mask=block < own)
# fmt: on


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pair p is choice p % top_k of token p ÷ top_k. Those of one expert stand together, in blocks of `block_m`."""

    order: Tensor  # int32 [most_blocks × block_m], num_pairs where a block has no more pairs
    experts: Tensor  # int32 [most_blocks], of each block
    total: Tensor  # int32 [1], blocks there are
    block_m: int
    num_pairs: int

    @property
    def most_blocks(self) -> int:
        """How many blocks there may be."""
        return len(self.experts)


def choose(logits: Tensor, routing: Routing, correction: Tensor | None, *, launch: Launch) -> tuple[Tensor, Tensor]:
    """Returns the experts, int32 [T, top_k], and weights, float32 [T, top_k], of `torch_experts.route`."""
    num_tokens = len(logits)
    ids = torch.empty((num_tokens, routing.top_k), dtype=torch.int32, device=logits.device)
    weights = torch.empty((num_tokens, routing.top_k), dtype=torch.float32, device=logits.device)
    choose_experts[(num_tokens,)](
        logits,
        logits if correction is None else correction,
        ids,
        weights,
        logits.stride(0),
        routing.scale,
        EXPERTS=routing.num_experts,
        GROUPS=routing.num_groups,
        GROUP_SIZE=routing.group_size,
        BLOCK_GROUPS=next_power_of_2(routing.num_groups),
        BLOCK_SIZE=next_power_of_2(routing.group_size),
        TOP_GROUPS=routing.top_groups,
        TOP_K=routing.top_k,
        BLOCK_K=next_power_of_2(routing.top_k),
        SIGMOID=routing.scores == "sigmoid",
        NORMALIZED=routing.normalized,
        CORRECT=correction is not None,
        EARLY=launch.early,
        **launch.options(num_warps=1),
    )
    return ids, weights


def group(ids: Tensor, num_experts: int, block_m: int, *, launch: Launch) -> Pairs:
    """Brings the pairs of ids [T, top_k] in order: stable, and the same in every run."""
    num_pairs, device = ids.numel(), ids.device
    most_blocks = num_pairs // block_m + min(num_experts, num_pairs)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    pairs = Pairs(
        order=torch.empty(most_blocks * block_m, dtype=torch.int32, device=device),
        experts=torch.empty(most_blocks, dtype=torch.int32, device=device),
        total=torch.empty(1, dtype=torch.int32, device=device),
        block_m=block_m,
        num_pairs=num_pairs,
    )
    # Of one size, so that there is one kernel to compile; the interpreter takes its time for what is masked.
    scan = min(SCAN, next_power_of_2(num_pairs)) if launch.interpreted else SCAN
    count_pairs[(num_experts,)](ids, counts, num_pairs, SCAN=scan, EARLY=launch.early, **launch.options(num_warps=4))
    group_pairs[(num_experts,)](
        ids,
        counts,
        pairs.order,
        pairs.experts,
        pairs.total,
        num_pairs,
        EXPERTS=num_experts,
        BLOCK_EXPERTS=next_power_of_2(num_experts),
        BLOCK_M=block_m,
        SCAN=scan,
        EARLY=launch.early,
        **launch.options(num_warps=4),
    )
    return pairs
