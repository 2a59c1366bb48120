"""Steps of long rows, captured piece by piece: everything but attention, which is planned anew for every step.

A replay queues a piece, the attention of a layer, the next piece, and so on. Pieces compute `tier` tokens whatever the
step has; attention sees the step's own tokens alone, so nothing of the others is stored. Those are what an earlier step
left in their place: tokens and positions that exist, and results that nobody reads.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from corymb.kernels.attention import (
    AttentionSpec,
    Chosen,
    HeadChanges,
    JoinedAttention,
    KVLayer,
    LatentAttention,
    RaggedLayout,
)
from corymb.models.cuda_decode import Parts, padding_plan
from corymb.models.cuda_device import Between, Device
from corymb.models.cuda_staging import Shape, Staging, Wide, layout_of
from corymb.models.features import Capture

MOST_WANTED = 64  # tokens of a step that are sampled from
MOST_PADDING = 64  # tokens, of a short step; of a longer one a sixteenth
# Up to so many tokens apart, by the size of the step.
_SPACINGS = ((512, 64), (1024, 128), (2048, 256), (4096, 512))
_WIDEST_SPACING = 1024


def prefill_tiers(most: int) -> list[int]:
    """Token counts to capture, the last one the largest step."""
    tiers, at = [], 32
    while at < most:
        tiers.append(at)
        spacing = next((spacing for below, spacing in _SPACINGS if at < below), _WIDEST_SPACING)
        at = (at // spacing + 1) * spacing
    return [*tiers, most] if most > 0 else []


class Prefills:
    """Owns the captured steps of long rows."""

    def __init__(self, parts: Parts, device: Device, staging: Staging, tiers: Sequence[int]) -> None:
        """Captures the largest first: all share one memory pool."""
        self._order = sorted(tiers)
        speculator = parts.speculator
        self.capture = speculator.drafter.capture(max(tiers)) if speculator and tiers else None  # of the last step
        self._steps: dict[int, Prefill] = {}
        if tiers:
            attended = Attended(max(tiers), device.device)
            wanted = torch.zeros(MOST_WANTED, dtype=torch.int64, device=device.device)
            for tier in reversed(self._order):
                self._steps[tier] = Prefill(parts, device, staging, attended, wanted, tier, capture=self.capture)

    def fit(self, num_tokens: int, num_wanted: int) -> "Prefill | None":
        """The step to replay for so many tokens; None where queueing kernel by kernel wastes less, or where the hidden
        states of more than a few tokens are wanted."""
        if num_wanted > MOST_WANTED:
            return None
        index = bisect_left(self._order, num_tokens)
        if index == len(self._order):
            return None
        tier = self._order[index]
        return self._steps[tier] if tier - num_tokens <= max(MOST_PADDING, num_tokens // 16) else None


class Attended:
    """Where attention leaves its results for the pieces behind it: one buffer for all layers and tiers."""

    def __init__(self, most_tokens: int, device: torch.device) -> None:
        self._most_tokens = most_tokens
        self._device = device
        self._buffers: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def of(self, spec: AttentionSpec, dtype: torch.dtype) -> Tensor:
        """[most_tokens, num_heads, value_dim], always the same for layers of the same shape."""
        key = (spec.num_heads, spec.value_dim, dtype)
        if key not in self._buffers:
            shape = (self._most_tokens, spec.num_heads, spec.value_dim)
            self._buffers[key] = torch.zeros(shape, dtype=dtype, device=self._device)
        return self._buffers[key]


class Prefill:
    """One tier's step. Stands in for the model's attention while it is captured."""

    def __init__(
        self,
        parts: Parts,
        device: Device,
        staging: Staging,
        attended: Attended,
        wanted: Tensor,
        tier: int,
        *,
        capture: Capture | None = None,
    ) -> None:
        """`attended`, `wanted` and `capture` are shared by all tiers."""
        assert isinstance(parts.attention, JoinedAttention), "pieces need a back end that changes the heads itself"
        self._parts = parts
        self._device = device
        self._attention = parts.attention
        self._attended = attended
        self._wanted = wanted
        self._tier = tier
        self._capture = None if capture is None else capture.first(tier)
        self._num_tokens = 1
        self._chosen: Chosen | None = None  # by the last index of the replay that runs
        self._hidden: Callable[[], Tensor] | None = None
        plan, shape = padding_plan(), Shape(1, 1)
        staging.put(plan, shape)
        rows, wide = parts.rows, staging.wide(Shape(tier, tier))
        staged = staging.staged(shape)
        layout = layout_of(plan, staged, staging.wide(shape), table=rows.table, full_to_sliding=rows.full_to_sliding)
        self._attention.plan(layout)
        # Kernels are compiled and loaded, and buffers made: none of that may happen while a graph is captured.
        self._work(lambda eager: eager(), wide, layout)
        device.synchronize()
        self._replay = device.capture_pieces(lambda between: self._work(between, wide, layout))

    def run(self, num_tokens: int, wanted: Tensor) -> Tensor:
        """Queues the planned step of so many tokens; returns the last hidden states of those at `wanted`, to be used
        before another step."""
        self._wanted.zero_()  # what a longer step left may lie past this one's end
        self._wanted[: len(wanted)].copy_(wanted)
        self._num_tokens = num_tokens
        self._replay()
        assert self._hidden is not None, "the step was captured"
        return self._hidden()[: len(wanted)]

    def _work(self, between: Between, wide: Wide, layout: RaggedLayout) -> None:
        parts = self._parts
        stand_in = CutAttention(self, between)
        batch = parts.batch(wide, layout, stand_in, self._wanted, self._capture)
        self._hidden = self._device.borrow(parts.model.forward(batch))

    def attend(
        self, between: Between, heads: Tensor, changes: HeadChanges, spec: AttentionSpec, cache: KVLayer
    ) -> Tensor:
        """Ends a piece: the layer's attention runs between it and the next."""
        out = self._attended.of(spec, heads.dtype)
        # Borrowed: kept for every layer and tier, they would fill the GPU.
        borrowed = self._device.borrow(heads)
        turns = None if changes.turns is None else self._device.borrow(changes.turns)

        def eager() -> None:
            count = self._num_tokens
            now = HeadChanges(None if turns is None else turns()[:count], changes.norms)
            out[:count] = self._attention.run_joined(borrowed()[:count], now, spec, cache)

        between(eager)
        return out[: self._tier]

    def attend_latents(
        self, between: Between, q: Tensor, latents: Tensor, spec: AttentionSpec, cache: KVLayer, *, sparse: bool
    ) -> Tensor:
        """As `attend`, to latents; if `sparse`, to those chosen last."""
        assert isinstance(self._attention, LatentAttention), "latents need a back end that attends to them"
        attention, out = self._attention, self._attended.of(spec, q.dtype)
        queries, new = self._device.borrow(q), self._device.borrow(latents)

        def eager() -> None:
            count, chosen = self._num_tokens, self._chosen if sparse else None
            out[:count] = attention.run_latent(queries()[:count], new()[:count], spec, cache, chosen)

        between(eager)
        return out[: self._tier]

    def choose(
        self, between: Between, inputs: tuple[Tensor, Tensor, Tensor], spec: AttentionSpec, cache: KVLayer
    ) -> None:
        """Ends a piece: a layer's index chooses from `inputs`, its queries, weights and keys."""
        assert isinstance(self._attention, LatentAttention), "an index needs a back end that chooses"
        attention, (q, weights, keys) = self._attention, [self._device.borrow(one) for one in inputs]

        def eager() -> None:
            count = self._num_tokens
            self._chosen = attention.choose(q()[:count], weights()[:count], keys()[:count], spec, cache)

        between(eager)


class CutAttention:
    """Implements `JoinedAttention` for a model that is being captured."""

    def __init__(self, prefill: Prefill, between: Between) -> None:
        self._prefill = prefill
        self._between = between
        nothing = torch.zeros(0, dtype=torch.int32)
        self._something = Chosen(nothing, nothing)

    def plan(self, layout: RaggedLayout) -> None:  # noqa: ARG002
        """Must not be called: the runner plans."""
        raise TypeError("a captured step is planned outside")

    def run(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:  # noqa: ARG002
        """Must not be called: models ask for `run_joined`."""
        raise TypeError("a captured step joins its heads")

    def run_joined(self, heads: Tensor, changes: HeadChanges, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """See JoinedAttention."""
        return self._prefill.attend(self._between, heads, changes, spec, cache)

    def run_latent(
        self, q: Tensor, latents: Tensor, spec: AttentionSpec, cache: KVLayer, chosen: Chosen | None
    ) -> Tensor:
        """See LatentAttention."""
        sparse = chosen is not None
        return self._prefill.attend_latents(self._between, q, latents, spec, cache, sparse=sparse)

    def choose(self, q: Tensor, weights: Tensor, keys: Tensor, spec: AttentionSpec, cache: KVLayer) -> Chosen:
        """See LatentAttention. What it returns only says that something was chosen: each replay chooses anew."""
        self._prefill.choose(self._between, (q, weights, keys), spec, cache)
        return self._something
