"""The target's part of steps that speculate: windows of drafts are laid out and computed, up to the next tier by a
captured graph. A step without drafts is the same with windows of one token."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from corymb.kernels.attention import GraphAttention, RaggedLayout
from corymb.kernels.packing import Packed, Windows, room
from corymb.kernels.sampling import Choice
from corymb.kernels.triton_packing import TritonPacking
from corymb.models.cuda_decode import Parts
from corymb.models.cuda_device import Device
from corymb.models.cuda_graphs import Graphs
from corymb.models.features import Capture
from corymb.models.model import Batch, ScoringModel
from corymb.models.placement import Place
from corymb.models.speculation import Drafter, Seen, Verified
from corymb.scheduler.plan import Int32


class Verifier:
    """Implements `DeviceTarget`. Owns the memory that windows are laid out in."""

    def __init__(self, parts: Parts, drafter: Drafter, device: Device, tiers: Sequence[int]) -> None:
        """Captures steps of so many tokens."""
        self.rows, self.sampler, self.place = parts.rows, parts.sampler, Place(device.device)
        num_rows, width, rows = len(parts.rows.last_sampled), 1 + drafter.num_drafts, parts.rows
        most = max([num_rows * width, *tiers])
        self._parts = parts
        self._packing = TritonPacking(parts.launch, max_rows=num_rows, max_width=width)
        self._packed = room(most, device.device, sliding=rows.full_to_sliding is not None)
        self._kept_slots = torch.zeros(most, dtype=torch.int64, device=device.device)
        self._drafter = drafter
        self._capture = drafter.capture(most)
        self._forwards = {tier: self._forward(tier, device) for tier in tiers}
        self._last: Forward | None = None
        with torch.inference_mode():
            self._graphs = Graphs(device, tiers, self._forwards.__getitem__)

    def verify(self, windows: Windows, num_tokens: int) -> Verified:
        """See DeviceTarget."""
        tier = self._graphs.fit(num_tokens)
        forward = self._forward(num_tokens) if tier is None else self._forwards[tier]
        self._packing(windows, self.rows.table, self.rows.full_to_sliding, forward.packed)
        forward.plan()
        if tier is None:
            forward.run()
        else:
            self._graphs.replay(tier)
        self._last = forward
        kept_slots = self._kept_slots[: len(forward.packed.slots)]
        return Verified(forward.packed, forward.layout, kept_slots, forward.choice, forward.features)

    def logits(self, index: Tensor) -> Tensor:
        """See DeviceTarget."""
        assert self._last is not None, "verify comes before logits"
        return self._last.logits(index)

    def observe(self, verified: Verified, *, drafted: bool) -> None:
        """See DeviceTarget."""
        layout = replace(verified.layout, slots=verified.kept_slots)
        seen = Seen(layout, verified.packed.token_ids, verified.features, None, located=True, drafted=drafted)
        self._drafter.observe(seen)

    def _forward(self, num_tokens: int, device: Device | None = None) -> "Forward":
        capture = None if self._capture is None else self._capture.first(num_tokens)
        return Forward(self._parts, self._packed.first(num_tokens), capture, device)


class Forward:
    """A step of so many tokens, in memory that is always the same."""

    def __init__(self, parts: Parts, packed: Packed, capture: Capture | None, device: Device | None) -> None:
        """`device`: that it will be captured on; None where it will not."""
        assert isinstance(parts.model, ScoringModel), "models made for tests ask the host for lengths"
        assert isinstance(parts.attention, GraphAttention), "the others ask the host for lengths"
        self.packed = packed
        self.layout = _layout(packed, parts)
        if parts.records:
            self.layout = parts.records.layout(self.layout)
        self.features = None if capture is None else capture.into
        self._parts = parts
        self._model = parts.model
        self._attention = parts.attention
        self._batch = Batch(
            token_ids=packed.token_ids,
            positions=packed.positions,
            layout=self.layout,
            attention=parts.attention,
            kv=parts.kv,
            prompts=parts.rows.prompts,
            states=parts.states.tensors if parts.states else (),
            capture=capture,
        )
        self._device = device
        self._scores: Callable[[], Tensor] | None = None
        self._choice: Choice | None = None

    @property
    def choice(self) -> Choice:
        """The likeliest tokens of the last run."""
        assert self._choice is not None, "it never ran"
        return self._choice

    def logits(self, index: Tensor) -> Tensor:
        """Of some tokens of the last run, to be changed at will."""
        assert self._scores is not None, "it never ran"
        return self._model.finish(self._scores()[index])

    def plan(self) -> None:
        """Queues what a graph needs before its replay."""
        self._attention.plan_graph(self.layout)

    def prepare(self) -> None:
        """See cuda_graphs.Step: rows of one token at slot 0 of row 0."""
        packed = self.packed
        for tensor in (packed.rows, packed.starts, packed.token_ids, packed.positions, packed.slots):
            tensor.zero_()
        packed.widths.fill_(1)
        packed.offsets.copy_(torch.arange(len(packed.offsets), device=packed.offsets.device))
        self.plan()

    def run(self) -> None:
        """See cuda_graphs.Step."""
        self._attention.plan_captured()
        records, batch = self._parts.records, self._batch
        if records:
            batch = replace(batch, replay=records.replay(self.packed, self.layout))
        scores = self._model.head(self._parts.model.forward(batch))
        self._choice = self._model.vocabulary.greedy(scores, self._parts.sampling)
        # Borrowed: kept for every tier, they would fill the GPU.
        self._scores = self._device.borrow(scores) if self._device else lambda: scores


def _layout(packed: Packed, parts: Parts) -> RaggedLayout:
    """The host knows the most that rows can be, and no more."""
    rows = parts.rows
    nothing: Int32 = np.zeros(len(packed.rows), np.int32)
    return RaggedLayout(
        rows=packed.rows,
        widths=packed.widths,
        starts=packed.starts,
        offsets=packed.offsets,
        positions=packed.positions,
        slots=packed.slots,
        sliding_slots=packed.sliding_slots,
        table=rows.table,
        full_to_sliding=rows.full_to_sliding,
        host_rows=nothing,
        host_widths=nothing + 1,
        host_starts=nothing,
    )
