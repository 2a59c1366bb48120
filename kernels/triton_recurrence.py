"""Recurrent layers in Triton: a step of one-token rows is a launch an operation, fit for a CUDA graph."""

from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.kernels.chunks import Chunks, cut
from corymb.kernels.recurrence import GRID, Convolution, DeltaRule, GatedNorm, StateSpace
from corymb.kernels.triton_chunk_scan import scan_rows
from corymb.kernels.triton_chunk_solve import solve_pieces
from corymb.kernels.triton_convolution import convolve_pieces, convolve_rows, convolve_tokens, keep_windows
from corymb.kernels.triton_fold import fold_rows
from corymb.kernels.triton_gate import gate_heads
from corymb.kernels.triton_jit import Launch, next_power_of_2

SHORT_WIDTH = 8  # tokens of a row up to which they are folded one by one
ANY_WIDTH = 1 << 30
CHANNELS = 256  # of a program that convolves single tokens
PIECE_CHANNELS = 64  # of one that convolves pieces
GATE_NUMBERS = 2048  # of a program
WIDE_KEY = 128
LEAST_TILE = 16  # a side of a matrix product
ALIGNMENT = 16  # numbers


@dataclass(frozen=True, slots=True)
class RecurrentTiling:
    """How much a program does; `benchmarks/gpu_recurrent.py` compares."""

    fold_values: int = 32  # value dimensions that are folded token by token
    fold_warps: int = 4
    scan_values: int = 32  # value dimensions that are taken through chunks
    scan_warps: int = 8
    scan_stages: int = 2
    solve_warps: int = 8


@dataclass(frozen=True, slots=True)
class Pieces:
    """A step's `Chunks` on the device, if it has long rows."""

    rows: Tensor  # int32 [P]
    firsts: Tensor  # int32 [P + 1]
    row_pieces: Tensor  # int32 [R + 1]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where a head's numbers lie in a token's line, and what a head is."""

    queries_at: int
    keys_at: int
    values_at: int
    num_heads: int
    group: int  # heads that share keys and queries
    key_dim: int
    value_dim: int

    @staticmethod
    def of_rule(rule: DeltaRule) -> "Geometry":
        """Queries, keys, values."""
        size, group = rule.num_key_heads * rule.key_dim, rule.num_value_heads // rule.num_key_heads
        return Geometry(0, size, 2 * size, rule.num_value_heads, group, rule.key_dim, rule.value_dim)

    @staticmethod
    def of_space(space: StateSpace) -> "Geometry":
        """Inputs, keys, queries."""
        values, keys = space.num_heads * space.head_dim, space.num_groups * space.state_size
        group = space.num_heads // space.num_groups
        return Geometry(values + keys, values, 0, space.num_heads, group, space.state_size, space.head_dim)

    def constants(self) -> dict[str, int]:
        """For kernels."""
        return {
            "QUERIES_AT": self.queries_at,
            "KEYS_AT": self.keys_at,
            "VALUES_AT": self.values_at,
            "HEADS": self.num_heads,
            "GROUP": self.group,
            "KEY_DIM": self.key_dim,
            "VALUE_DIM": self.value_dim,
        }


def choose_tiling(geometry: Geometry) -> RecurrentTiling:
    """Wide keys leave registers for fewer values."""
    return RecurrentTiling(scan_values=16, scan_warps=4) if geometry.key_dim > WIDE_KEY else RecurrentTiling()


@dataclass(frozen=True, slots=True)
class Fold:
    """One operation on states."""

    geometry: Geometry
    mixed: Tensor
    strengths: Tensor | None  # of the delta rule
    steps: Tensor
    rate: Tensor
    bias: Tensor
    skip: Tensor | None  # of the scan
    scale: float = 1.0
    limits: tuple[float, float] = (0.0, float("inf"))  # of a step


class TritonRecurrence:
    """Implements `Recurrence`. Remembers where the last layout was cut.

    `exact`: all rows are folded token by token, so that nothing depends on where they were cut.
    """

    def __init__(self, launch: Launch, *, exact: bool = False, tiling: RecurrentTiling | None = None) -> None:
        self._launch = launch
        self._tiling = tiling
        self._short_width = ANY_WIDTH if exact else SHORT_WIDTH
        self._cut: tuple[RaggedLayout, Pieces] | None = None

    def convolve(self, x: Tensor, convolution: Convolution, windows: Tensor, layout: RaggedLayout) -> Tensor:
        """See Recurrence."""
        slots, weight, bias = _slots(layout), convolution.weight, convolution.bias
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        (width, channels), strides = weight.shape, (x.stride(0), windows.stride(0))
        constants = {"CHANNELS": channels, "WIDTH": width}
        kinds = {"BIAS": bias is not None, "SILU": convolution.silu}
        parameters = (weight, weight if bias is None else bias)  # a pointer that is never followed
        if _is_drafted(layout):
            grid = (len(slots), -(-channels // CHANNELS))
            rows = (slots, layout.offsets, layout.widths, *_marks(layout), out, *strides)
            marking = {"MOVES": layout.moves_states, "MARKS": layout.marks is not None}
            convolve_rows[grid](
                x, *parameters, windows, *rows, BLOCK=CHANNELS, **constants, **kinds, **marking, **self._plain
            )
            return out
        if _is_single(layout, len(x)):
            grid = (len(x), -(-channels // CHANNELS))
            kernel = convolve_tokens[grid]
            kernel(x, *parameters, windows, slots, out, *strides, BLOCK=CHANNELS, **constants, **kinds, **self._plain)
            return out
        pieces = self._pieces(layout)
        grid = (len(pieces.rows), -(-channels // PIECE_CHANNELS))
        convolve_pieces[grid](
            x,
            *parameters,
            windows,
            slots,
            layout.offsets,
            pieces.rows,
            pieces.firsts,
            out,
            *strides,
            BLOCK=PIECE_CHANNELS,
            **constants,
            **kinds,
            **self._plain,
        )
        keep = keep_windows[(len(slots), -(-channels // CHANNELS))]
        keep(x, windows, slots, layout.offsets, layout.widths, *strides, BLOCK=CHANNELS, **constants, **self._plain)
        return out

    def apply_delta_rule(
        self, qkv: Tensor, strengths: Tensor, decays: Tensor, rule: DeltaRule, states: Tensor, layout: RaggedLayout
    ) -> Tensor:
        """See Recurrence."""
        scale = rule.key_dim**-0.5
        fold = Fold(Geometry.of_rule(rule), qkv, strengths, decays, rule.rate, rule.bias, None, scale)
        return self._fold(fold, states, layout)

    def scan(self, xbc: Tensor, steps: Tensor, space: StateSpace, states: Tensor, layout: RaggedLayout) -> Tensor:
        """See Recurrence."""
        limits = space.least_step, space.most_step
        fold = Fold(Geometry.of_space(space), xbc, None, steps, space.rate, space.bias, space.skip, limits=limits)
        return self._fold(fold, states, layout)

    def gate(self, x: Tensor, gate: Tensor, norm: GatedNorm | None) -> Tensor:
        """See Recurrence."""
        num_tokens, num_heads, dim = x.shape
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        block = next_power_of_2(dim)
        lines = max(1, GATE_NUMBERS // block)
        gate_heads[(-(-num_tokens * num_heads // lines),)](
            x.contiguous(),
            gate,
            x if norm is None else norm.weight,
            out,
            gate.stride(0),
            num_tokens * num_heads,
            0.0 if norm is None else norm.eps,
            HEADS=num_heads,
            DIM=dim,
            WEIGHTS=1 if norm is None else len(norm.weight),
            BLOCK=block,
            BLOCK_LINES=lines,
            NORM=norm is not None,
            GATE_FIRST=norm is not None and norm.gate_first,
            **self._plain,
        )
        return out

    @property
    def _plain(self) -> dict[str, int | bool]:
        return self._launch.plain(num_warps=4)

    def _fold(self, fold: Fold, states: Tensor, layout: RaggedLayout) -> Tensor:
        geometry, mixed = fold.geometry, fold.mixed
        shape = (len(mixed), geometry.num_heads, geometry.value_dim)
        out = torch.empty(shape, dtype=mixed.dtype, device=mixed.device)
        if _is_drafted(layout):
            self._fold_short(fold, states, layout, out)
            return out
        single = _is_single(layout, len(mixed))
        widths = layout.host_widths
        if single or bool((widths <= self._short_width).any()):
            self._fold_short(fold, states, layout, out)
        if not single and bool((widths > self._short_width).any()):
            self._fold_long(fold, states, layout, out)
        return out

    def _fold_short(self, fold: Fold, states: Tensor, layout: RaggedLayout, out: Tensor) -> None:
        geometry, mixed = fold.geometry, fold.mixed
        unused = mixed  # a pointer that is never followed
        tiling = self._tiling or choose_tiling(geometry)
        block = min(tiling.fold_values, next_power_of_2(geometry.value_dim))
        slots = _slots(layout)
        fold_rows[(len(slots), geometry.num_heads, -(-geometry.value_dim // block))](
            mixed,
            unused if fold.strengths is None else fold.strengths,
            fold.steps,
            fold.rate,
            fold.bias,
            unused if fold.skip is None else fold.skip,
            states,
            slots,
            layout.offsets,
            layout.widths,
            *_marks(layout),
            out,
            mixed.stride(0),
            0 if fold.strengths is None else fold.strengths.stride(0),
            fold.steps.stride(0),
            states.stride(0),
            fold.scale,
            *fold.limits,
            ANY_WIDTH if _is_drafted(layout) else self._short_width,
            BLOCK_K=next_power_of_2(geometry.key_dim),
            BLOCK_V=block,
            DELTA=fold.strengths is not None,
            MOVES=layout.moves_states,
            MARKS=layout.marks is not None,
            **geometry.constants(),
            **self._launch.plain(tiling.fold_warps),
        )

    def _fold_long(self, fold: Fold, states: Tensor, layout: RaggedLayout, out: Tensor) -> None:
        geometry, mixed, pieces = fold.geometry, fold.mixed, self._pieces(layout)
        own = reading = mixed  # pointers that are never followed
        if fold.strengths is not None:
            own, reading = self._solve(fold, fold.strengths, pieces, layout)
        tiling, slots = self._tiling or choose_tiling(geometry), _slots(layout)
        block_k = max(LEAST_TILE, next_power_of_2(geometry.key_dim))
        block_v = max(LEAST_TILE, min(tiling.scan_values, next_power_of_2(geometry.value_dim)))
        scan_rows[(-(-geometry.value_dim // block_v), geometry.num_heads, len(slots))](
            mixed,
            own,
            reading,
            fold.steps,
            fold.rate,
            fold.bias,
            mixed if fold.skip is None else fold.skip,
            states,
            slots,
            layout.widths,
            pieces.row_pieces,
            pieces.firsts,
            out,
            mixed.stride(0),
            fold.steps.stride(0),
            states.stride(0),
            fold.scale,
            *fold.limits,
            self._short_width,
            BLOCK_K=block_k,
            BLOCK_V=block_v,
            DELTA=fold.strengths is not None,
            WIDE=self._is_wide(mixed),
            STAGES=1 if self._is_wide(mixed) else tiling.scan_stages,
            **geometry.constants(),
            **self._launch.plain(tiling.scan_warps),
        )

    def _solve(self, fold: Fold, strengths: Tensor, pieces: Pieces, layout: RaggedLayout) -> tuple[Tensor, Tensor]:
        geometry, mixed = fold.geometry, fold.mixed
        tiling, lines = self._tiling or choose_tiling(geometry), (len(mixed), geometry.num_heads)
        own = torch.empty((*lines, geometry.value_dim), dtype=mixed.dtype, device=mixed.device)
        reading = torch.empty((*lines, geometry.key_dim), dtype=mixed.dtype, device=mixed.device)
        grid = (len(pieces.rows), geometry.num_heads)
        systems = torch.empty((*grid, GRID, GRID), dtype=torch.float32, device=mixed.device)
        constants = {name: value for name, value in geometry.constants().items() if name != "QUERIES_AT"}
        solve_pieces[grid](
            mixed,
            strengths,
            fold.steps,
            fold.rate,
            fold.bias,
            pieces.rows,
            pieces.firsts,
            layout.widths,
            systems,
            own,
            reading,
            mixed.stride(0),
            strengths.stride(0),
            fold.steps.stride(0),
            self._short_width,
            BLOCK_K=max(LEAST_TILE, next_power_of_2(geometry.key_dim)),
            BLOCK_V=max(LEAST_TILE, next_power_of_2(geometry.value_dim)),
            WIDE=self._is_wide(mixed),
            **constants,
            **self._launch.plain(tiling.solve_warps),
        )
        return own, reading

    def _is_wide(self, mixed: Tensor) -> bool:
        """Whether products are of float32 operands. The interpreter's products of bfloat16 are wrong."""
        return self._launch.interpreted or mixed.dtype == torch.float32

    def _pieces(self, layout: RaggedLayout) -> Pieces:
        if self._cut is None or self._cut[0] is not layout:
            self._cut = layout, _put(cut(layout), layout.offsets.device)
        return self._cut[1]


def _put(chunks: Chunks, device: torch.device) -> Pieces:
    """One copy that nothing waits for, its parts aligned: kernels are compiled for addresses."""
    parts = [torch.from_numpy(part) for part in (chunks.rows, chunks.firsts, chunks.row_chunks)]
    sizes = [-(-len(part) // ALIGNMENT) * ALIGNMENT for part in parts]
    packed = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    for part, place in zip(parts, torch.split(packed, sizes), strict=True):
        place[: len(part)].copy_(part)
    moved = torch.split(packed.to(device, non_blocking=True), sizes)
    return Pieces(*(place[: len(part)] for part, place in zip(parts, moved, strict=True)))


def _slots(layout: RaggedLayout) -> Tensor:
    assert layout.state_slots is not None, "a layer with a state needs its slots"
    return layout.state_slots


def _is_drafted(layout: RaggedLayout) -> bool:
    """Whether its rows are drafts that may be taken back, or those that were kept: the host may not know their widths,
    but all are short."""
    return not layout.moves_states or layout.marks is not None


def _marks(layout: RaggedLayout) -> tuple[Tensor, Tensor]:
    """Marks and their slots; pointers that are never followed where there are none."""
    marks = layout.marks
    return (layout.widths, layout.widths) if marks is None else (marks.widths, marks.slots)


def _is_single(layout: RaggedLayout, num_tokens: int) -> bool:
    """Whether all rows have one token. Shapes alone say it: a captured graph's layout has more rows than its step."""
    return layout.rows.shape[0] == num_tokens
