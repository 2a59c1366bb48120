"""Sampling on a GPU without a word from the host: the functions of `sampling` for rows that its tensors name."""

import torch
from torch import Tensor

from corymb.kernels.sampling import Choice, Draws
from corymb.kernels.triton_cut import cut_rows
from corymb.kernels.triton_draw import join_chunks, peak_chunks, race_chunks
from corymb.kernels.triton_jit import Launch, next_power_of_2
from corymb.kernels.triton_masks import mask_rows

CHUNK = 4096
SEARCH_BLOCK = 4096


class TritonSampling:
    """Takes float32 logits [N, V], `greedy` any type. Nothing here waits for the device; `greedy` may be captured."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def mask(self, logits: Tensor, index: Tensor, bits: Tensor) -> None:
        """See `sampling.Sampling`."""
        block = _chunk(logits)
        mask_rows[(len(index), -(-logits.shape[1] // block))](
            logits,
            index,
            bits,
            logits.stride(0),
            bits.stride(0),
            SIZE=logits.shape[1],
            BLOCK=block,
            **self._launch.plain(num_warps=4),
        )

    def greedy(self, logits: Tensor) -> Choice:
        """See `sampling.greedy`."""
        token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        usable = torch.empty(len(logits), dtype=torch.bool, device=logits.device)
        peaks, winners = self._peaks(logits, None)
        self._join(peaks, winners, None, token_ids, usable)
        return Choice(token_ids, usable)

    def draw(self, logits: Tensor, index: Tensor, draws: Draws, token_ids: Tensor, *, filtered: bool) -> None:
        """Sets token_ids [N] at `index` [n] to samples of those rows of logits; top-k and top-p only if filtered."""
        peaks, winners = self._peaks(logits, index)
        cuts = self._cut(logits, index, draws, peaks) if filtered else winners
        num_chunks = peaks.shape[1]
        scores = torch.empty_like(peaks)
        race_chunks[(len(index), num_chunks)](
            logits,
            index,
            draws.temperature,
            draws.min_p,
            draws.keys,
            peaks,
            cuts,
            scores,
            winners,
            logits.stride(0),
            SIZE=logits.shape[1],
            BLOCK=_chunk(logits),
            CHUNKS=num_chunks,
            BLOCK_CHUNKS=next_power_of_2(num_chunks),
            FILTERED=filtered,
            PORTABLE=self._launch.interpreted,
            **self._launch.plain(num_warps=8),
        )
        self._join(scores, winners, index, token_ids, None)

    def _peaks(self, logits: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor]:
        num_rows = len(logits) if index is None else len(index)
        num_chunks = -(-logits.shape[1] // _chunk(logits))
        peaks = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=logits.device)
        winners = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=logits.device)
        peak_chunks[(num_rows, num_chunks)](
            logits,
            winners if index is None else index,
            peaks,
            winners,
            logits.stride(0),
            SIZE=logits.shape[1],
            BLOCK=_chunk(logits),
            CHUNKS=num_chunks,
            INDEXED=index is not None,
            EARLY=self._launch.early,
            **self._launch.options(num_warps=4),
        )
        return peaks, winners

    def _cut(self, logits: Tensor, index: Tensor, draws: Draws, peaks: Tensor) -> Tensor:
        cuts = torch.empty((len(index), 2), dtype=torch.int32, device=logits.device)
        cut_rows[(len(index),)](
            logits,
            index,
            draws.temperature,
            draws.top_k,
            draws.top_p,
            peaks,
            cuts,
            logits.stride(0),
            SIZE=logits.shape[1],
            BLOCK=min(SEARCH_BLOCK, next_power_of_2(logits.shape[1])),
            CHUNKS=peaks.shape[1],
            BLOCK_CHUNKS=next_power_of_2(peaks.shape[1]),
            **self._launch.plain(num_warps=16),
        )
        return cuts

    def _join(
        self, scores: Tensor, winners: Tensor, index: Tensor | None, token_ids: Tensor, usable: Tensor | None
    ) -> None:
        num_rows, num_chunks = scores.shape
        join_chunks[(num_rows,)](
            scores,
            winners,
            winners if index is None else index,
            token_ids,
            winners if usable is None else usable,
            CHUNKS=num_chunks,
            BLOCK_CHUNKS=next_power_of_2(num_chunks),
            INDEXED=index is not None,
            CHECKED=usable is not None,
            EARLY=self._launch.early,
            **self._launch.options(num_warps=1),
        )


def _chunk(logits: Tensor) -> int:
    return min(CHUNK, next_power_of_2(logits.shape[1]))
