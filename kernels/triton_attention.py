"""Ragged paged attention in Triton: prefill chunks, decode and any mixture in one kernel, planned on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, Chosen, HeadChanges, KVLayer, RaggedLayout, slots_of
from corymb.kernels.triton_ahead import Ahead, nothing_ahead
from corymb.kernels.triton_attend import attend_lanes
from corymb.kernels.triton_jit import Launch, next_power_of_2
from corymb.kernels.triton_latent_attention import TritonLatents
from corymb.kernels.triton_operations import TritonOperations
from corymb.kernels.triton_plan import TILE_COLUMNS, plan_lanes
from corymb.kernels.triton_store import store
from corymb.kernels.triton_tiling import (
    MERGE_STAGES,
    VARIANTS,
    ChooseTiling,
    Tiling,
    Variant,
    choose_tiling,
    choose_variant,
    padded_dim,
)

LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a plan depends on; layers of equal geometry share one."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None

    @staticmethod
    def of(spec: AttentionSpec) -> "Geometry":
        """A layer's geometry."""
        return Geometry(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest step that a back end is asked to plan."""

    max_rows: int
    max_tokens: int
    usual_rows: int | None = None  # steps of so many rows get a planner of their own; None: there is one for all

    def planned_rows(self, num_rows: int) -> int:
        """For how many rows the planner of a step of so many is made: one program looks at all of them."""
        usual = self.usual_rows or self.max_rows
        return next_power_of_2(usual if num_rows <= usual else self.max_rows)


@dataclass(slots=True)
class Lanes:
    """One geometry's plan: buffers at fixed addresses, so that a captured graph replays with new contents."""

    spec: AttentionSpec
    num_lanes: dict[Variant, int]
    tilings: dict[Variant, Tiling]
    tiles: Tensor  # int32 [max_tokens, TILE_COLUMNS]
    lanes: Tensor  # int32 [lanes + 1], first tile of each
    totals: Tensor  # int32 [3]: blocks a lane, blocks, tiles
    tickets: Tensor  # int32 [max_tokens, num_kv_heads], zero between launches
    part_totals: Tensor  # float32, two parts a lane at most: one that continues a tile and one that begins the next
    part_norms: Tensor
    variant: Variant = "wide"

    @property
    def tiling(self) -> Tiling:
        """This step's variant."""
        return self.tilings[self.variant]


class TritonAttention:
    """Owns the plans' buffers. Implements `GraphAttention`; every launch may be captured in a CUDA graph.

    `deterministic` keeps each tile whole and of one variant, so that a token's output does not depend on its batch.
    """

    def __init__(
        self,
        specs: Sequence[AttentionSpec],
        limits: Limits,
        *,
        device: torch.device,
        kv_dtype: torch.dtype,
        launch: Launch,
        deterministic: bool = False,
        choose: ChooseTiling = choose_tiling,
        ahead: Ahead | None = None,
    ) -> None:
        self._limits = limits
        self._ahead = ahead or nothing_ahead()
        self._launch = launch
        self._deterministic = deterministic
        self._operations = TritonOperations(launch)
        self._layout: RaggedLayout | None = None
        self._lanes = {
            Geometry.of(spec): _make_lanes(
                spec,
                limits,
                {variant: choose(spec, kv_bytes=kv_dtype.itemsize, variant=variant) for variant in VARIANTS},
                device=device,
                num_sms=launch.num_sms,
            )
            for spec in specs
            if spec.latent_dim is None
        }
        self._latents: TritonLatents | None = None
        if any(spec.latent_dim is not None for spec in specs):
            self._latents = TritonLatents(limits.max_tokens, device=device, launch=launch, deterministic=deterministic)

    def plan(self, layout: RaggedLayout) -> None:
        """Divides the step among lanes on the device. Only the tile variant is chosen on the host, from the widths."""
        self._take(layout, int(layout.host_widths.max(initial=1)))
        self._plan_lanes()
        if self._latents is not None:
            self._latents.plan(layout, most_keys=int((layout.host_starts + layout.host_widths).max(initial=1)))

    def plan_graph(self, layout: RaggedLayout) -> None:
        """Always narrow tiles: a graph has one variant of the kernel, right for rows of any width."""
        self._take(layout, 1)

    def plan_captured(self) -> None:
        """Divides the step among lanes."""
        self._plan_lanes()
        if self._latents is not None:
            layout = self._planned()
            self._latents.plan(layout, most_keys=layout.table.shape[1])

    def run_latent(
        self, q: Tensor, latents: Tensor, spec: AttentionSpec, cache: KVLayer, chosen: Chosen | None
    ) -> Tensor:
        """See LatentAttention."""
        assert self._latents is not None, "made for layers without latents"
        return self._latents.run_latent(q, latents, spec, cache, chosen)

    def choose(self, q: Tensor, weights: Tensor, keys: Tensor, spec: AttentionSpec, cache: KVLayer) -> Chosen:
        """See LatentAttention."""
        assert self._latents is not None, "made for layers without latents"
        return self._latents.choose(q, weights, keys, spec, cache)

    def run(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """Stores k and v, then attends."""
        store(k, v, cache, slots_of(self._planned(), spec), launch=self._launch)
        return self.attend(q, spec, cache)

    def run_joined(self, heads: Tensor, changes: HeadChanges, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """Changes the heads and stores keys and values in one launch, then attends."""
        self._operations.prepare_heads(heads, changes, spec, cache, slots_of(self._planned(), spec))
        return self.attend(heads[:, : spec.num_heads], spec, cache)

    def attend(self, q: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """Attends where the new tokens' keys and values are stored already."""
        layout = self._planned()
        lanes = self._lanes[Geometry.of(spec)]
        tiling = lanes.tiling
        num_lanes = lanes.num_lanes[lanes.variant]
        out = torch.empty((q.shape[0], spec.num_heads, spec.head_dim), dtype=q.dtype, device=q.device)
        slot_map = layout.full_to_sliding if spec.window is not None else layout.table
        assert slot_map is not None, "a layer with a window needs the full-to-sliding map"
        attend_lanes[(num_lanes * spec.num_kv_heads,)](
            q,
            out,
            cache.keys,
            cache.values,
            layout.table,
            slot_map,
            lanes.tiles,
            lanes.lanes,
            lanes.totals,
            lanes.tickets,
            lanes.part_totals,
            lanes.part_norms,
            cache.keys if spec.sinks is None else spec.sinks,
            spec.scale * cache.key_scale * LOG2E,
            cache.value_scale,
            q.stride(0),
            q.stride(1),
            cache.keys.stride(0),
            cache.keys.stride(1),
            layout.table.stride(0),
            num_lanes,
            **self._ahead.arguments(q, num_lanes * spec.num_kv_heads),
            NUM_KV_HEADS=spec.num_kv_heads,
            GROUP=spec.num_heads // spec.num_kv_heads,
            HEAD_DIM=spec.head_dim,
            BLOCK_D=padded_dim(spec),
            BLOCK_M=tiling.block_m,
            BLOCK_N=tiling.block_n,
            WINDOW=spec.window or 0,
            SOFT_CAP=spec.soft_cap or 0.0,
            HAS_MAP=spec.window is not None,
            SPLIT=not self._deterministic,
            WIDE=lanes.variant == "wide",
            STAGES=tiling.num_stages,
            PART_STAGES=1 if lanes.variant == "wide" else MERGE_STAGES,
            WIDEN=self._launch.interpreted,
            SINKS=spec.sinks is not None,
            EARLY=self._launch.early,
            **self._launch.options(tiling.num_warps, tiling.num_stages),
        )
        return out

    def _planned(self) -> RaggedLayout:
        assert self._layout is not None, "plan comes before run"
        return self._layout

    def _take(self, layout: RaggedLayout, most_tokens: int) -> None:
        num_rows, num_tokens = layout.rows.shape[0], layout.positions.shape[0]
        if num_rows > self._limits.max_rows or num_tokens > self._limits.max_tokens:
            raise ValueError(
                f"a step of {num_rows} rows and {num_tokens} tokens is larger than this back end was made for "
                f"({self._limits.max_rows} rows, {self._limits.max_tokens} tokens)"
            )
        self._layout = layout
        for lanes in self._lanes.values():
            variant = choose_variant(lanes.spec, num_rows=num_rows, most_tokens=most_tokens)
            lanes.variant = "wide" if self._deterministic else variant

    def _plan_lanes(self) -> None:
        layout = self._planned()
        for lanes in self._lanes.values():
            tiling, spec = lanes.tiling, lanes.spec
            plan_lanes[(1,)](
                layout.rows,
                layout.widths,
                layout.starts,
                layout.offsets,
                lanes.tiles,
                lanes.lanes,
                lanes.totals,
                layout.rows.shape[0],
                lanes.num_lanes[lanes.variant],
                max(tiling.min_share_keys // tiling.block_n, 1),
                TILE_TOKENS=tiling.tile_tokens(spec.num_heads // spec.num_kv_heads),
                BLOCK_N=tiling.block_n,
                WINDOW=spec.window or 0,
                ROWS=self._limits.planned_rows(layout.rows.shape[0]),
                EARLY=self._launch.early,
                **self._launch.options(num_warps=8),
            )


def _make_lanes(
    spec: AttentionSpec, limits: Limits, tilings: dict[Variant, Tiling], *, device: torch.device, num_sms: int
) -> Lanes:
    num_lanes = {
        variant: max(num_sms * tiling.programs_per_sm // spec.num_kv_heads, 1) for variant, tiling in tilings.items()
    }
    num_parts = 2 * spec.num_kv_heads
    rows = max(num_lanes[variant] * tiling.block_m for variant, tiling in tilings.items())

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    return Lanes(
        spec=spec,
        num_lanes=num_lanes,
        tilings=tilings,
        tiles=zeros(limits.max_tokens, TILE_COLUMNS.value),
        lanes=zeros(max(num_lanes.values()) + 1),
        totals=zeros(3),
        tickets=zeros(limits.max_tokens, spec.num_kv_heads),
        part_totals=torch.empty(num_parts * rows * padded_dim(spec), device=device),
        part_norms=torch.empty(num_parts * rows * 2, device=device),
    )
