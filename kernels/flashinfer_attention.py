"""FlashInfer's attention behind our contract, planned once a step for all layers of a kind.

FlashInfer plans on the host, which takes 0.2 to 1.1 ms: a runner should plan a step while the step before it runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flashinfer
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, HeadChanges, KVLayer, RaggedLayout, slots_of
from corymb.kernels.triton_gather import gather_heads
from corymb.kernels.triton_indices import gather_slots
from corymb.kernels.triton_jit import Launch
from corymb.kernels.triton_operations import TritonOperations
from corymb.kernels.triton_store import store

WORKSPACE_BYTES = 256 << 20
# FA3 reads keys that lie together faster than keys found one by one, so a step of long rows copies them first.
MOST_GATHERED = 1 << 15
MOST_GATHERED_SHARE = 4  # keys a query: behind long prefixes the copy costs more than it saves
SHORT_ROWS = 16  # new tokens of a row up to which FA2 beats FA3: 126 against 353 µs for 64 rows of 6 tokens


@dataclass(frozen=True, slots=True)
class Kind:
    """What a plan depends on besides lengths."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    soft_cap: float | None

    @staticmethod
    def of(spec: AttentionSpec) -> "Kind":
        """A layer's kind."""
        return Kind(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.scale, spec.window, spec.soft_cap)


@dataclass(frozen=True, slots=True)
class Lengths:
    """What FlashInfer's planner reads, int32 on the host; `firsts` is the position of the first key that is listed."""

    query_bounds: NDArray[np.int32]  # [R + 1]
    key_bounds: NDArray[np.int32]  # [R + 1]
    firsts: NDArray[np.int32]  # [R]
    most_queries: int

    @property
    def num_keys(self) -> int:
        """Of all rows."""
        return int(self.key_bounds[-1])

    @property
    def worth_gathering(self) -> bool:
        """Whether copying the keys costs less than finding them one by one."""
        few = self.num_keys <= min(MOST_GATHERED, MOST_GATHERED_SHARE * int(self.query_bounds[-1]))
        return few and self.most_queries > SHORT_ROWS

    @staticmethod
    def of(layout: RaggedLayout, window: int | None) -> "Lengths":
        """The layout's lengths; rows that only fill up a captured graph have one token."""
        padding = layout.rows.shape[0] - layout.num_rows
        widths = np.concatenate((layout.host_widths, np.ones(padding, np.int32)))
        starts = np.concatenate((layout.host_starts, np.zeros(padding, np.int32)))
        firsts = np.zeros_like(starts) if window is None else np.maximum(starts - window + 1, 0)
        return Lengths(_bounds(widths), _bounds(starts + widths - firsts), firsts, int(widths.max(initial=1)))


@dataclass(slots=True)
class Wrappers:
    """FlashInfer's objects for one kind. A captured graph of a tier keeps the wrapper that it was captured with."""

    prefill: dict[str, Any] = field(default_factory=dict)  # by FlashInfer's own back end
    captured: dict[int, Any] = field(default_factory=dict)  # decode, by number of rows
    gathered: Any = None  # prefill over copied keys
    current: Any = None
    num_gathered: int = 0  # keys that the current step copies; 0 where it reads the pool


class FlashInferAttention:
    """Owns the workspace and the lists of slots. Implements `JoinedAttention` and `GraphAttention`."""

    def __init__(
        self,
        specs: Sequence[AttentionSpec],
        *,
        max_keys: int,
        device: torch.device,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        launch: Launch,
    ) -> None:
        """`max_keys` bounds the keys that all rows of one step read together."""
        self._dtype = dtype
        self._kv_dtype = kv_dtype
        self._launch = launch
        self._operations = TritonOperations(launch)
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._slots = {
            window: torch.zeros(max_keys, dtype=torch.int32, device=device)
            for window in {spec.window for spec in specs}
        }
        self._copies: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # by KV heads and head size
        self._wrappers = {Kind.of(spec): Wrappers() for spec in specs}
        self._layout: RaggedLayout | None = None

    def plan(self, layout: RaggedLayout) -> None:
        """Plans an eager step."""
        self._plan(layout, self._prefill_wrapper)

    def plan_graph(self, layout: RaggedLayout) -> None:
        """Plans a step that a captured graph of `layout.rows.shape[0]` one-token rows computes."""
        self._plan(layout, self._captured_wrapper)

    def plan_captured(self) -> None:
        """Nothing: this back end plans on the host."""

    def run(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """Stores k and v, then attends."""
        store(k, v, cache, slots_of(self._planned(), spec), launch=self._launch)
        return self._attend(q, spec, cache)

    def run_joined(self, heads: Tensor, changes: HeadChanges, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """Changes the heads and stores keys and values in one launch, then attends."""
        self._operations.prepare_heads(heads, changes, spec, cache, slots_of(self._planned(), spec))
        return self._attend(heads[:, : spec.num_heads], spec, cache)

    def _attend(self, q: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        wrappers = self._wrappers[Kind.of(spec)]
        wrapper, out = wrappers.current, torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if wrappers.num_gathered:
            keys, values = self._gather(wrappers.num_gathered, spec, cache)
            wrapper.run(q, keys, values, out=out)
            return out
        pools = (cache.keys.unsqueeze(1), cache.values.unsqueeze(1))  # pages of one token
        scales = {} if self._kv_dtype.itemsize > 1 else {"k_scale": cache.key_scale, "v_scale": cache.value_scale}
        wrapper.run(q, pools, out=out, **scales)
        return out

    def _gather(self, num_keys: int, spec: AttentionSpec, cache: KVLayer) -> tuple[Tensor, Tensor]:
        heads = (spec.num_kv_heads, spec.head_dim)
        if heads not in self._copies:
            keys, values = torch.empty(
                (2, MOST_GATHERED, *heads), dtype=self._dtype, device=self._workspace.device
            ).unbind()
            self._copies[heads] = keys, values
        keys, values = (copy[:num_keys] for copy in self._copies[heads])
        gather_heads(cache, self._slots[spec.window][:num_keys], keys, values, launch=self._launch)
        return keys, values

    def _planned(self) -> RaggedLayout:
        assert self._layout is not None, "plan comes before run"
        return self._layout

    def _plan(self, layout: RaggedLayout, choose: Callable[[Wrappers, Kind, Lengths], Any]) -> None:
        self._layout = layout
        listed: dict[int | None, Lengths] = {}
        for kind, wrappers in self._wrappers.items():
            lengths = listed.get(kind.window) or self._list_slots(layout, kind.window)
            listed[kind.window] = lengths
            wrappers.num_gathered = 0
            wrappers.current = choose(wrappers, kind, lengths)

    def _list_slots(self, layout: RaggedLayout, window: int | None) -> Lengths:
        lengths = Lengths.of(layout, window)
        put = self._put
        gather_slots(
            layout,
            put(lengths.firsts),
            put(lengths.key_bounds),
            self._slots[window],
            sliding=window is not None,
            launch=self._launch,
        )
        return lengths

    def _put(self, array: NDArray[np.int32]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._workspace.is_cuda:
            # From pageable memory a copy may wait for everything before it.
            return tensor.pin_memory().to(self._workspace.device, non_blocking=True)
        return tensor

    def _prefill_wrapper(self, wrappers: Wrappers, kind: Kind, lengths: Lengths) -> Any:
        if lengths.worth_gathering:
            return self._gathered_wrapper(wrappers, kind, lengths)
        # FA3 takes no 8-bit keys under 16-bit queries.
        short = lengths.most_queries <= SHORT_ROWS or self._kv_dtype.itemsize == 1
        backend = "fa2" if short else "fa3"
        if backend not in wrappers.prefill:
            wrappers.prefill[backend] = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                self._workspace, "NHD", backend=backend
            )
        wrapper = wrappers.prefill[backend]
        wrapper.plan(
            torch.from_numpy(lengths.query_bounds),
            torch.from_numpy(lengths.key_bounds),
            self._slots[kind.window][: lengths.key_bounds[-1]],
            torch.ones(len(lengths.firsts), dtype=torch.int32),
            kind.num_heads,
            kind.num_kv_heads,
            kind.head_dim,
            1,
            causal=True,
            max_token_per_sequence=lengths.most_queries,
            **self._common(kind),
        )
        return wrapper

    def _gathered_wrapper(self, wrappers: Wrappers, kind: Kind, lengths: Lengths) -> Any:
        wrappers.num_gathered = lengths.num_keys
        wrappers.gathered = wrappers.gathered or flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
            self._workspace, "NHD", backend="fa3"
        )
        wrappers.gathered.plan(
            torch.from_numpy(lengths.query_bounds),
            torch.from_numpy(lengths.key_bounds),
            kind.num_heads,
            kind.num_kv_heads,
            kind.head_dim,
            causal=True,
            **(self._common(kind) | {"kv_data_type": self._dtype}),
        )
        return wrappers.gathered

    def _captured_wrapper(self, wrappers: Wrappers, kind: Kind, lengths: Lengths) -> Any:
        num_rows = len(lengths.firsts)
        if num_rows not in wrappers.captured:
            device = self._workspace.device
            wrappers.captured[num_rows] = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace,
                "NHD",
                use_cuda_graph=True,
                use_tensor_cores=True,  # its other kernels know only some group sizes
                paged_kv_indptr_buffer=torch.zeros(num_rows + 1, dtype=torch.int32, device=device),
                paged_kv_indices_buffer=self._slots[kind.window],
                paged_kv_last_page_len_buffer=torch.ones(num_rows, dtype=torch.int32, device=device),
            )
        wrapper = wrappers.captured[num_rows]
        wrapper.plan(
            torch.from_numpy(lengths.key_bounds),
            self._slots[kind.window][:0],  # the buffer itself is filled already: nothing to copy
            torch.ones(num_rows, dtype=torch.int32),
            kind.num_heads,
            kind.num_kv_heads,
            kind.head_dim,
            1,
            **self._common(kind),
        )
        return wrapper

    def _common(self, kind: Kind) -> dict[str, Any]:
        return {
            "sm_scale": kind.scale,
            "window_left": -1 if kind.window is None else kind.window - 1,
            "logits_soft_cap": kind.soft_cap,
            "q_data_type": self._dtype,
            "kv_data_type": self._kv_dtype,
        }


def _bounds(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    bounds = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=bounds[1:])
    return bounds
