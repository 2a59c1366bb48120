"""The operations between a decoder's products, in Triton."""

import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, HeadChanges, KVLayer
from corymb.kernels.triton_activations import gate_rows
from corymb.kernels.triton_ahead import Ahead, nothing_ahead
from corymb.kernels.triton_heads import prepare_heads
from corymb.kernels.triton_jit import Launch, next_power_of_2
from corymb.kernels.triton_norms import norm_rows
from corymb.kernels.triton_store import fp8_limit

GATE_BLOCK = 1024
HEADS_PER_PROGRAM = 8


class TritonOperations:
    """Implements `Operations`: one launch each, all of them fit for a CUDA graph."""

    def __init__(self, launch: Launch, ahead: Ahead | None = None) -> None:
        self._launch = launch
        self._ahead = ahead or nothing_ahead()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Operations."""
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
        self._norm(rows, rows, weight, out, eps, add=False)
        return out.view(x.shape)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Operations."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self._norm(x, residual, weight, out, eps, add=True)
        return out

    def rope(self, heads: Tensor, turns: Tensor) -> None:
        """See Operations."""
        _, num_heads, head_dim = heads.shape
        spec = AttentionSpec(num_heads=num_heads, num_kv_heads=0, head_dim=head_dim, scale=1.0)
        self._prepare(heads, HeadChanges(turns=turns), spec, None, None)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See Operations."""
        return self._gate(gate_up, gelu=False)

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        """See Operations."""
        return self._gate(gate_up, gelu=True)

    def prepare_heads(
        self, heads: Tensor, changes: HeadChanges, spec: AttentionSpec, cache: KVLayer, slots: Tensor
    ) -> None:
        """Changes the query heads of `heads` [T, num_heads + 2 num_kv_heads, head_dim] in place, and stores the changed
        keys and the values at `slots` [T] of the pool. The keys in `heads` are left as they were."""
        self._prepare(heads, changes, spec, cache, slots)

    def _norm(self, x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, eps: float, *, add: bool) -> None:
        size, ahead = x.shape[-1], self._ahead.arguments(x)
        norm_rows[(int(ahead["AHEAD"]) + x.shape[0],)](
            x,
            residual,
            weight,
            out,
            x.stride(0),
            residual.stride(0),
            out.stride(0),
            eps,
            **ahead,
            SIZE=size,
            BLOCK=next_power_of_2(size),
            ADD=add,
            EARLY=self._launch.early,
            **self._launch.options(num_warps=8 if size > 1024 else 4),
        )

    def _gate(self, gate_up: Tensor, *, gelu: bool) -> Tensor:
        num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
        num_blocks = -(-size // GATE_BLOCK)
        ahead = self._ahead.arguments(gate_up, -(-self._ahead.num_programs // num_blocks))
        gate_rows[(int(ahead["AHEAD"]) + num_rows, num_blocks)](
            gate_up,
            out,
            gate_up.stride(0),
            out.stride(0),
            **ahead,
            SIZE=size,
            BLOCK=GATE_BLOCK,
            GELU=gelu,
            EARLY=self._launch.early,
            **self._launch.options(num_warps=4),
        )
        return out

    def _prepare(
        self, heads: Tensor, changes: HeadChanges, spec: AttentionSpec, cache: KVLayer | None, slots: Tensor | None
    ) -> None:
        num_tokens, num_heads, head_dim = heads.shape
        half = head_dim // 2
        unused = heads  # a pointer that is never followed
        turns, norms = changes.turns, changes.norms
        prepare_heads[(num_tokens, -(-num_heads // HEADS_PER_PROGRAM))](
            heads,
            unused if turns is None else turns,
            unused if norms is None else norms.query,
            unused if norms is None else norms.key,
            unused if cache is None else cache.keys,
            unused if cache is None else cache.values,
            unused if slots is None else slots,
            heads.stride(0),
            0 if turns is None else turns.stride(0),
            0 if cache is None else cache.keys.stride(0),
            0.0 if norms is None else norms.eps,
            1.0 if cache is None else 1.0 / cache.key_scale,
            1.0 if cache is None else 1.0 / cache.value_scale,
            NUM_HEADS=spec.num_heads,
            NUM_KV_HEADS=spec.num_kv_heads,
            HALF=half,
            BLOCK_HALF=next_power_of_2(half),
            BLOCK_HEADS=HEADS_PER_PROGRAM,
            NORM=norms is not None,
            TURN=turns is not None,
            STORE=cache is not None,
            LIMIT=0.0 if cache is None else fp8_limit(cache),
            EARLY=self._launch.early,
            **self._launch.options(num_warps=4),
        )
