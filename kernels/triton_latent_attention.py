"""Attention to latents in Triton, dense or to chosen keys: chunks of prompts, single tokens and mixtures alike."""

from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, Chosen, KVLayer, RaggedLayout
from corymb.kernels.triton_index import score_keys, select_keys
from corymb.kernels.triton_jit import Launch, next_power_of_2
from corymb.kernels.triton_latents import attend_latents, merge_latents, spread_rows, store_lines

LOG2E = 1.4426950408889634
SMALLEST = 16  # side of a product
MOST_SPLITS = 32
PROGRAMS_PER_SM = 2
SCORE_BYTES = 256 << 20  # of one pass over tokens whose keys are scored
SELECT_BLOCK = 1024  # scores that are looked at together


@dataclass(frozen=True, slots=True)
class LatentTile:
    """One variant of the attention kernel."""

    block_h: int  # heads
    block_n: int  # keys
    splits: int  # of a token's keys
    num_warps: int
    num_stages: int


def choose_latent_tile(
    spec: AttentionSpec, num_tokens: int, *, item_bytes: int, num_sms: int, whole: bool = False
) -> LatentTile:
    """Few tokens leave multiprocessors idle unless their keys are split. `whole`: never, so that a token's sums have
    one order in every batch."""
    wide = item_bytes == 2
    block_h = min(max(next_power_of_2(spec.num_heads), SMALLEST), 64 if wide else SMALLEST)
    programs = num_tokens * -(-spec.num_heads // block_h)
    splits = 1 if whole else min(max(PROGRAMS_PER_SM * num_sms // programs, 1), MOST_SPLITS)
    return LatentTile(block_h, 32 if wide else SMALLEST, splits, num_warps=8 if block_h == 64 else 4, num_stages=2)


class TritonLatents:
    """Owns where each token of the planned step finds its row. Every launch may be captured in a CUDA graph."""

    def __init__(self, max_tokens: int, *, device: torch.device, launch: Launch, deterministic: bool = False) -> None:
        self._launch = launch
        self._deterministic = deterministic
        self._token_rows = torch.zeros(max_tokens, dtype=torch.int32, device=device)
        self._layout: RaggedLayout | None = None
        self._most_keys = 0
        # Of one size, so that there is one kernel to compile; the interpreter takes its time for what is masked.
        self._select_block = 64 if launch.interpreted else SELECT_BLOCK

    def plan(self, layout: RaggedLayout, *, most_keys: int) -> None:
        """Finds each token's row, on the device. No row has more than `most_keys` tokens, the new ones included."""
        self._layout = layout
        self._most_keys = most_keys
        spread_rows[(layout.rows.shape[0],)](
            layout.rows,
            layout.offsets,
            self._token_rows,
            BLOCK=min(256, next_power_of_2(len(self._token_rows))),
            EARLY=self._launch.early,
            **self._launch.options(num_warps=4),
        )

    def run_latent(
        self, q: Tensor, latents: Tensor, spec: AttentionSpec, cache: KVLayer, chosen: Chosen | None
    ) -> Tensor:
        """See LatentAttention."""
        layout = self._planned()
        self._store(latents, cache.keys, layout.slots)
        q = q.contiguous()
        num_tokens, num_heads, latent_dim = len(q), spec.num_heads, spec.value_dim
        tile = choose_latent_tile(
            spec, num_tokens, item_bytes=q.element_size(), num_sms=self._launch.num_sms, whole=self._deterministic
        )
        parts = (num_tokens, tile.splits, num_heads)
        split = tile.splits > 1
        out = torch.empty((num_tokens, num_heads, latent_dim), dtype=q.dtype, device=q.device)
        totals = torch.empty((*parts, latent_dim), dtype=torch.float32, device=q.device) if split else out
        norms = torch.empty((*parts, 2), dtype=torch.float32, device=q.device) if split else out
        early = self._launch.early
        attend_latents[(-(-num_heads // tile.block_h), num_tokens, tile.splits)](
            q,
            cache.keys,
            out,
            layout.table,
            self._token_rows,
            layout.positions,
            layout.table if chosen is None else chosen.slots,
            layout.table if chosen is None else chosen.counts,
            totals,
            norms,
            spec.scale * LOG2E,
            cache.keys.stride(0),
            layout.table.stride(0),
            0 if chosen is None else chosen.slots.stride(0),
            tile.splits,
            HEADS=num_heads,
            LATENT=latent_dim,
            ROPE=spec.head_dim - latent_dim,
            BLOCK_H=tile.block_h,
            BLOCK_L=max(next_power_of_2(latent_dim), SMALLEST),
            BLOCK_R=max(next_power_of_2(spec.head_dim - latent_dim), SMALLEST),
            BLOCK_N=tile.block_n,
            SPLIT=split,
            SPARSE=chosen is not None,
            WIDEN=self._launch.interpreted,
            STAGES=tile.num_stages,
            EARLY=early,
            **self._launch.options(tile.num_warps, tile.num_stages),
        )
        if split:
            merge_latents[(num_heads, num_tokens)](
                totals,
                norms,
                out,
                tile.splits,
                HEADS=num_heads,
                LATENT=latent_dim,
                BLOCK_L=next_power_of_2(latent_dim),
                EARLY=early,
                **self._launch.options(num_warps=4),
            )
        return out

    def choose(self, q: Tensor, weights: Tensor, keys: Tensor, spec: AttentionSpec, cache: KVLayer) -> Chosen:
        """See LatentAttention."""
        layout, index = self._planned(), spec.index
        assert index is not None, "only layers with an index choose"
        assert cache.index_keys is not None, "only layers with an index choose"
        self._store(keys, cache.index_keys, layout.slots)
        num_tokens = len(q)
        chosen = Chosen(
            torch.empty((num_tokens, index.top_k), dtype=torch.int32, device=q.device),
            torch.empty(num_tokens, dtype=torch.int32, device=q.device),
        )
        step = max(SCORE_BYTES // (4 * self._most_keys), 1)
        for first in range(0, num_tokens, step):
            self._choose(q.contiguous(), weights, spec, cache.index_keys, chosen, slice(first, first + step))
        return chosen

    def _choose(
        self, q: Tensor, weights: Tensor, spec: AttentionSpec, pool: Tensor, chosen: Chosen, tokens: slice
    ) -> None:
        """Some of a step's tokens, as many as a buffer of scores has room for."""
        layout, index = self._planned(), spec.index
        assert index is not None, "only layers with an index choose"
        q, weights, positions = q[tokens], weights[tokens], layout.positions[tokens]
        token_rows = self._token_rows[tokens]
        scores = torch.empty((len(q), self._most_keys), dtype=torch.float32, device=q.device)
        block_n = 64 if q.element_size() == 2 else 32
        splits = min(max(4 * self._launch.num_sms // len(q), 1), -(-self._most_keys // block_n))
        score_keys[(splits, len(q))](
            q,
            weights,
            pool,
            scores,
            layout.table,
            token_rows,
            positions,
            q.stride(0),
            weights.stride(0),
            pool.stride(0),
            layout.table.stride(0),
            scores.stride(0),
            splits,
            HEADS=index.num_heads,
            DIM=index.head_dim,
            BLOCK_H=max(next_power_of_2(index.num_heads), SMALLEST),
            BLOCK_D=max(next_power_of_2(index.head_dim), SMALLEST),
            BLOCK_N=block_n,
            TOP_K=index.top_k,
            WIDEN=self._launch.interpreted,
            STAGES=3,
            EARLY=self._launch.early,
            **self._launch.options(num_warps=4, num_stages=3),
        )
        select_keys[(len(q),)](
            scores,
            chosen.slots[tokens],
            chosen.counts[tokens],
            layout.table,
            token_rows,
            positions,
            layout.table.stride(0),
            scores.stride(0),
            chosen.slots.stride(0),
            TOP_K=index.top_k,
            BLOCK=self._select_block,
            EARLY=self._launch.early,
            **self._launch.options(num_warps=8),
        )

    def _store(self, lines: Tensor, pool: Tensor, slots: Tensor) -> None:
        size = lines.shape[-1]
        store_lines[(len(lines),)](
            lines,
            pool,
            slots,
            lines.stride(0),
            pool.stride(0),
            SIZE=size,
            BLOCK=next_power_of_2(size),
            EARLY=self._launch.early,
            **self._launch.options(num_warps=4),
        )

    def _planned(self) -> RaggedLayout:
        assert self._layout is not None, "plan comes before run"
        return self._layout
