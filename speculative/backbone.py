"""The layers of a block draft: they look at the target's hidden states through keys and values of their own, and at the
block that they fill."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from corymb.kernels.attention import AttentionSpec, KVLayer
from corymb.kernels.block_attention import BlockAttention, BlockHeads, Contexts
from corymb.models.layers import MLP, Parts, attention_spec
from corymb.models.rope import turn_table
from corymb.speculative.draft_config import DraftConfig


@dataclass(frozen=True, slots=True)
class Blocks:
    """R blocks of B slots each."""

    positions: Tensor  # int64 [R, B]
    contexts: Contexts


class DraftLayer:
    """One layer. What it keeps of a token depends on the target's hidden states of that token alone."""

    def __init__(self, parts: Parts, index: int, attention: BlockAttention, *, causal: bool) -> None:
        """`causal`: see BlockAttention."""
        name, decoder = f"layers.{index}", parts.decoder
        self._spec = attention_spec(decoder, decoder.layers[index])
        self._attention = attention
        self._causal = causal
        self._operations = parts.operations
        heads, biased = f"{name}.self_attn", decoder.qkv_bias
        self._queries = parts.linear(f"{heads}.q_proj", bias=biased)
        self._keys_values = parts.linear(f"{heads}.k_proj", f"{heads}.v_proj", bias=biased)
        self._output = parts.linear(f"{heads}.o_proj", bias=decoder.output_bias)
        self._query_norm = parts.norm(f"{heads}.q_norm")
        self._key_norm = parts.norm(f"{heads}.k_norm")
        self._mlp = MLP(parts, f"{name}.mlp")
        self._input_norm = parts.norm(f"{name}.input_layernorm")
        self._mlp_norm = parts.norm(f"{name}.post_attention_layernorm")

    def inject(self, context: Tensor, turns: Tensor, slots: Tensor, cache: KVLayer) -> None:
        """Keeps keys and values of tokens [T, H] at their slots."""
        keys, values = self._keys_and_values(context, turns)
        cache.keys.index_copy_(0, slots, keys)
        cache.values.index_copy_(0, slots, values)

    def __call__(self, x: Tensor, turns: Tensor, blocks: Blocks, cache: KVLayer) -> Tensor:
        """Of the blocks' slots [R × B, H]."""
        shape, spec = blocks.positions.shape, self._spec
        normed = self._input_norm(x)
        queries = self._query_norm(self._queries(normed).view(len(x), spec.num_heads, spec.head_dim))
        self._operations.rope(queries, turns)
        keys, values = self._keys_and_values(normed, turns)
        heads = BlockHeads(*(part.reshape(*shape, -1, spec.head_dim) for part in (queries, keys, values)))
        attended = self._attention.attend(heads, cache, spec=spec, causal=self._causal)
        x = x + self._output(attended.reshape(len(x), -1))
        return x + self._mlp(self._mlp_norm(x))

    def _keys_and_values(self, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        heads = self._keys_values(x).view(len(x), 2, self._spec.num_kv_heads, self._spec.head_dim)
        keys = self._key_norm(heads[:, 0])
        self._operations.rope(keys, turns)
        return keys, heads[:, 1]


class Backbone:
    """All layers, and what makes one vector of the target's."""

    def __init__(self, parts: Parts, config: DraftConfig, attention: BlockAttention, *, context_length: int) -> None:
        """`context_length`: of the target, whose positions the draft's are."""
        decoder = config.backbone
        self._attention = attention
        self._fuse = parts.linear("fc", bias=False)
        self._context_norm = parts.norm("hidden_norm")
        self._layers = [
            DraftLayer(parts, index, attention, causal=config.causal_windows) for index in range(len(decoder.layers))
        ]
        self._norm = parts.norm("norm")
        rope = decoder.layers[0].rope
        assert rope is not None, "a draft whose layers see no positions"
        device = self._norm.norm.weight.device
        self._turns = turn_table(rope, decoder.head_dim, context_length + config.num_slots, device)

    def inject(self, features: Tensor, positions: Tensor, slots: Tensor, kv: Sequence[KVLayer]) -> None:
        """Keeps what the layers want to know of tokens: features [T, m × H] of the target, int64 [T] each."""
        context = self._context_norm(self._fuse(features))
        turns = self._turns[positions]
        for layer, cache in zip(self._layers, kv, strict=True):
            layer.inject(context, turns, slots, cache)

    def fill(self, x: Tensor, blocks: Blocks, kv: Sequence[KVLayer]) -> Tensor:
        """Returns the hidden states of blocks' slots [R × B, H], after the last norm."""
        self._attention.plan(blocks.contexts)
        turns = self._turns[blocks.positions.flatten()]
        for layer, cache in zip(self._layers, kv, strict=True):
            x = layer(x, turns, blocks, cache)
        return self._norm(x)


def pool_specs(config: DraftConfig) -> list[AttentionSpec]:
    """What the layers keep, one a layer: always in the full pool, whose slots the target never gives up early."""
    decoder = config.backbone
    return [replace(attention_spec(decoder, layer), window=None) for layer in decoder.layers]
