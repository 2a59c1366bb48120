"""Brings a step's numbers to the device in one copy, to where captured graphs expect them."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.models.cuda_device import Device, Mark
from corymb.scheduler.plan import Int32, StepPlan

ALIGNMENT = 16  # numbers: kernels are compiled for addresses that are multiples of 64 bytes
NUM_SLOTS = 4  # steps whose host memory may still be read by copies


@dataclass(frozen=True, slots=True)
class Shape:
    """How many rows and tokens a step has on the device, padding included."""

    num_rows: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Staged:
    """One step's int32 tensors on the device, parts of one buffer."""

    rows: Tensor  # [R]
    widths: Tensor  # [R]
    starts: Tensor  # [R]
    offsets: Tensor  # [R + 1]
    target_rows: Tensor  # [R], where a row's token is remembered: the row if it samples, else 0
    state_slots: Tensor  # [R]
    token_ids: Tensor  # [T], negative to take the row's last sampled token
    token_rows: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Tensor  # [T]


@dataclass(frozen=True, slots=True)
class Wide:
    """One step's int64 tensors on the device: as models and layouts want them."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    sliding_slots: Tensor | None


class Staging:
    """Owns the buffers that steps arrive in. A step's tensors hold until the next one is put."""

    def __init__(self, device: Device, *, max_rows: int, max_tokens: int, sliding: bool) -> None:
        self._max = Shape(max_rows, max_tokens)
        size = sum(_sizes(self._max))
        self._buffer = _zeros(device, size, wide=False)
        self._host = [device.pinned(size) for _ in range(NUM_SLOTS)]
        self._copied: list[Mark] = [device.mark() for _ in range(NUM_SLOTS)]
        self._next = 0
        self._wide = [_zeros(device, max_tokens, wide=True) for _ in range(4 if sliding else 3)]

    def staged(self, shape: Shape) -> Staged:
        """The tensors of steps of this shape; always the same memory."""
        parts = iter(_split(self._buffer, shape))
        return Staged(*(next(parts)[:count] for count in _counts(shape)))

    def wide(self, shape: Shape) -> Wide:
        """The int64 tensors of steps of this shape; always the same memory."""
        parts = [tensor[: shape.num_tokens] for tensor in self._wide]
        return Wide(parts[0], parts[1], parts[2], parts[3] if len(parts) > 3 else None)

    def put(self, plan: StepPlan, shape: Shape) -> None:
        """Queues the copy of a plan, filled up to `shape` with rows of one token at slot 0 of row 0."""
        assert max(shape.num_rows - self._max.num_rows, shape.num_tokens - self._max.num_tokens) <= 0, shape
        turn = self._next
        self._next = (turn + 1) % NUM_SLOTS
        self._copied[turn].synchronize()
        host = self._host[turn]
        size = sum(_sizes(shape))
        _fill([part.numpy() for part in _split(host, shape)], plan, shape)
        self._buffer[:size].copy_(host[:size], non_blocking=True)
        self._copied[turn].record()


def layout_of(
    plan: StepPlan, staged: Staged, wide: Wide, *, table: Tensor, full_to_sliding: Tensor | None
) -> RaggedLayout:
    """The attention layout of a plan whose numbers are in these tensors."""
    return RaggedLayout(
        rows=staged.rows,
        widths=staged.widths,
        starts=staged.starts,
        offsets=staged.offsets,
        positions=wide.positions,
        slots=wide.slots,
        sliding_slots=wide.sliding_slots,
        table=table,
        full_to_sliding=full_to_sliding,
        host_rows=plan.rows,
        host_widths=plan.widths,
        host_starts=plan.starts,
        state_slots=None if plan.states is None else staged.state_slots,
    )


def _counts(shape: Shape) -> list[int]:
    rows, tokens = shape.num_rows, shape.num_tokens
    return [rows, rows, rows, rows + 1, rows, rows, tokens, tokens, tokens, tokens]


def _sizes(shape: Shape) -> list[int]:
    return [-(-count // ALIGNMENT) * ALIGNMENT for count in _counts(shape)]


def _split(buffer: Tensor, shape: Shape) -> list[Tensor]:
    sizes = _sizes(shape)
    return list(torch.split(buffer[: sum(sizes)], sizes))


def _fill(parts: list[Int32], plan: StepPlan, shape: Shape) -> None:
    """Writes the plan's numbers, then the padding's."""
    rows, widths, starts, offsets, target_rows, state_slots, token_ids, token_rows, positions, slots = parts
    num_rows, num_tokens = plan.num_rows, plan.num_tokens
    ends = np.cumsum(plan.widths)
    _set(rows, plan.rows, 0)
    _set(widths, plan.widths, 0)
    widths[num_rows : num_rows + shape.num_tokens - num_tokens] = 1  # each further token is a row
    _set(starts, plan.starts, 0)
    offsets[0] = 0
    offsets[1 : num_rows + 1] = ends
    further = np.arange(num_tokens + 1, num_tokens + len(offsets) - num_rows)
    offsets[num_rows + 1 :] = np.minimum(further, shape.num_tokens)
    _set(target_rows, plan.rows * plan.samples, 0)
    _set(state_slots, plan.rows[:0] if plan.states is None else plan.states.slots, 0)
    _set(token_ids, plan.token_ids, 0)
    _set(slots, plan.slots, 0)
    if num_rows == num_tokens:
        _set(token_rows, plan.rows, 0)
        _set(positions, plan.starts, 0)
        return
    _set(token_rows, np.repeat(plan.rows, plan.widths), 0)
    first = np.repeat(plan.starts - (ends - plan.widths), plan.widths)
    _set(positions, np.arange(num_tokens, dtype=np.int32) + first, 0)


def _set(part: Int32, values: NDArray[np.integer], padding: int) -> None:
    part[: len(values)] = values
    part[len(values) :] = padding


def _zeros(device: Device, size: int, *, wide: bool) -> Tensor:
    return torch.zeros(size, dtype=torch.int64 if wide else torch.int32, device=device.device)
