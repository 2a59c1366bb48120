"""Two back ends for one model: one for steps of short rows, one for steps with long ones."""

from torch import Tensor

from corymb.kernels.attention import AttentionSpec, GraphAttention, HeadChanges, KVLayer, RaggedLayout

MOST_SHORT_TOKENS = 16  # of a row: decode, verification and short ends of prompts


class MixedAttention:
    """Plans each step with the back end for its longest row. Implements `GraphAttention`."""

    def __init__(self, prefill: GraphAttention, decode: GraphAttention) -> None:
        self._prefill = prefill
        self._decode = decode
        self._current = prefill

    def plan(self, layout: RaggedLayout) -> None:
        """Chooses by the widths."""
        short = int(layout.host_widths.max(initial=1)) <= MOST_SHORT_TOKENS
        self._current = self._decode if short else self._prefill
        self._current.plan(layout)

    def plan_graph(self, layout: RaggedLayout) -> None:
        """Captured graphs are for decode."""
        self._current = self._decode
        self._current.plan_graph(layout)

    def plan_captured(self) -> None:
        """See GraphAttention."""
        self._current.plan_captured()

    def run(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """See Attention."""
        return self._current.run(q, k, v, spec, cache)

    def run_joined(self, heads: Tensor, changes: HeadChanges, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """See JoinedAttention."""
        return self._current.run_joined(heads, changes, spec, cache)
