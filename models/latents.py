"""Attention to latents (MLA): queries meet keys, and values are summed, as latents; heads expand only the sums."""

from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.kernels.attention import Chosen, LatentAttention
from corymb.models.heads import HeadLinear
from corymb.models.index import Index
from corymb.models.latent_config import LatentConfig
from corymb.models.layers import Parts, RMSNorm, add_product, attention_spec
from corymb.models.linear import Linear
from corymb.models.model import Batch
from corymb.models.rotation import halves

INNER_EPS = 1e-6  # of norms of latents, whatever the other norms have


@dataclass(slots=True)
class LastChosen:
    """What the last layer with an index chose in the forward that runs: layers that share an index read it."""

    keys: Chosen | None = None


class LatentSelfAttention:
    """One layer's attention between a token and those before it."""

    def __init__(self, parts: Parts, name: str, index: int, last_chosen: LastChosen) -> None:
        latent = parts.decoder.latent
        assert latent is not None, "a model without latents"
        self._latent: LatentConfig = latent
        self._layer = index
        self._group = parts.group
        self._spec = attention_spec(parts.decoder, parts.decoder.layers[index])
        self._queries = _Queries(parts, name, latent)
        self._keys = _keys(parts, name, latent)
        self._key_norm = parts.norm(f"{name}.kv_a_layernorm", eps=INNER_EPS)
        self._into_latents, self._out_of_latents = _absorbed(parts, name, latent)
        self._output = parts.linear(f"{name}.o_proj", bias=parts.decoder.output_bias)
        self._index = Index(parts, f"{name}.indexer") if self._spec.index else None
        self._chooses = parts.decoder.layers[index].indexed is not None
        self._last_chosen = last_chosen
        self._operations = parts.operations

    def attend(
        self, delta: Tensor | None, residual: Tensor, norm: RMSNorm, batch: Batch, turns: Tensor | None
    ) -> Tensor:
        """Adds delta to residual in place and attends with the norm of that; returns sums of latents
        [T, num_heads × latent_dim]."""
        assert isinstance(batch.attention, LatentAttention), "latents need a back end that attends to them"
        assert turns is not None, "latents have positions"
        x = norm.after_add(delta, residual)
        cache, latent = batch.kv[self._layer], self._latent
        reduced, nope, rope = self._queries(x)
        compressed = self._keys(x)
        key_rope = compressed[:, None, latent.latent_dim :]
        self._operations.rope(rope, turns)
        self._operations.rope(key_rope, turns)
        keys = torch.cat((self._key_norm(compressed[:, : latent.latent_dim]), key_rope[:, 0]), dim=1)
        queries = torch.cat((self._into_latents(nope), rope), dim=-1)
        if self._index is not None:
            wanted = self._index(x, reduced, turns)
            self._last_chosen.keys = batch.attention.choose(*wanted, self._spec, cache)
        chosen = self._last_chosen.keys if self._chooses else None
        return batch.attention.run_latent(queries, keys, self._spec, cache, chosen).flatten(1)

    def add_to(self, residual: Tensor, attended: Tensor) -> Tensor | None:
        """The output, still to be added to residual; None where it is added already."""
        latents = attended.view(len(attended), -1, self._latent.latent_dim)
        return add_product(self._output, self._out_of_latents(latents).flatten(1), residual, self._group)


class _Queries:
    """Queries, from inputs directly or through a few numbers that an index reads too."""

    def __init__(self, parts: Parts, name: str, latent: LatentConfig) -> None:
        self._split = latent.nope_dim, latent.rope_dim
        bias = parts.decoder.qkv_bias
        self._reduce: Linear | None = None
        self._norm: RMSNorm | None = None
        expand = "q_proj"
        if latent.query_rank is not None:
            self._reduce = parts.linear(f"{name}.q_a_proj", bias=bias)
            self._norm = parts.norm(f"{name}.q_a_layernorm", eps=INNER_EPS)
            expand = "q_b_proj"
        weight = parts.weights.take(f"{name}.{expand}.weight")
        # All heads' parts without positions, then all those that turn: each lie together.
        heads = weight.reshape(-1, sum(self._split), weight.shape[-1])
        turning = halves(heads[:, latent.nope_dim :], latent.interleaved, dim=1)
        self._num_plain = len(heads) * latent.nope_dim
        rows = torch.cat((heads[:, : latent.nope_dim].flatten(0, 1), turning.flatten(0, 1)))
        self._expand = parts.storage.makers.linear(rows, None)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the few numbers [T, query_rank] (x, if there are none), and every head's query [T, heads, dim] in two
        parts: without positions and to be turned."""
        reduced = x if self._reduce is None or self._norm is None else self._norm(self._reduce(x))
        queries = self._expand(reduced)
        plain, turning = queries[:, : self._num_plain], queries[:, self._num_plain :]
        nope_dim, rope_dim = self._split
        return reduced, plain.view(len(x), -1, nope_dim), turning.view(len(x), -1, rope_dim)


def _keys(parts: Parts, name: str, latent: LatentConfig) -> Linear:
    """To latents and, behind them, the part of keys that turns."""
    bias = parts.decoder.qkv_bias
    weight = parts.weights.take(f"{name}.kv_a_proj_with_mqa.weight")
    biases = parts.weights.take(f"{name}.kv_a_proj_with_mqa.bias") if bias else None

    def ordered(rows: Tensor) -> Tensor:
        turning = halves(rows[latent.latent_dim :], latent.interleaved, dim=0)
        return torch.cat((rows[: latent.latent_dim], turning))

    return parts.storage.makers.linear(ordered(weight), None if biases is None else ordered(biases))


def _absorbed(parts: Parts, name: str, latent: LatentConfig) -> tuple[HeadLinear, HeadLinear]:
    """Brings queries to where latents are, and sums of latents to where values are."""
    weight = parts.weights.take(f"{name}.kv_b_proj.weight")
    heads = weight.reshape(-1, latent.nope_dim + latent.value_dim, latent.latent_dim)
    keys, values = heads[:, : latent.nope_dim], heads[:, latent.nope_dim :]
    make = parts.storage.makers.heads
    return make(keys.transpose(1, 2)), make(values)
