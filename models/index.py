"""The index of sparse attention (DSA): small queries and keys whose products say which keys a token attends to."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corymb.models.layers import Parts
from corymb.models.rotation import halves

NORM_EPS = 1e-6


class Index:
    """Makes an index's queries, weights and keys."""

    def __init__(self, parts: Parts, name: str) -> None:
        latent = parts.decoder.latent
        assert latent is not None, "an index of a model without latents"
        assert latent.index is not None, "an index of a model that has none"
        self._config = latent.index
        self._rope_dim = latent.rope_dim
        queries = parts.weights.take(f"{name}.wq_b.weight")
        queries = queries.reshape(-1, self._config.head_dim, queries.shape[-1])
        self._queries = parts.storage.makers.linear(self._ordered(queries, dim=1).flatten(0, 1), None)
        keys = parts.weights.take(f"{name}.wk.weight")
        self._keys = parts.storage.makers.linear(self._ordered(keys, dim=0), None)
        self._norm_weight = self._ordered(parts.weights.take(f"{name}.k_norm.weight").float(), dim=0)
        self._norm_bias = self._ordered(parts.weights.take(f"{name}.k_norm.bias").float(), dim=0)
        self._weights = parts.exact_linear(f"{name}.weights_proj", bias=False)
        self._scale = (self._config.num_heads * self._config.head_dim) ** -0.5
        self._operations = parts.operations

    def __call__(self, x: Tensor, reduced: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries [T, heads, dim], weights float32 [T, heads] and keys [T, dim], as LatentAttention.choose
        takes them, of x [T, hidden] and the queries' few numbers [T, query_rank]."""
        queries = self._queries(reduced).view(len(x), -1, self._config.head_dim)
        normed = F.layer_norm(
            self._keys(x).float(), (self._config.head_dim,), self._norm_weight, self._norm_bias, NORM_EPS
        )
        keys = normed.to(x.dtype).unsqueeze(1)
        weights = self._weights(x.float()) * self._scale
        return self._turned(queries, turns), weights, self._turned(keys, turns)[:, 0]

    def _turned(self, heads: Tensor, turns: Tensor) -> Tensor:
        """Turns the first part of each head."""
        turning = heads[..., : self._rope_dim].contiguous()
        self._operations.rope(turning, turns)
        return torch.cat((turning, heads[..., self._rope_dim :]), dim=-1)

    def _ordered(self, rows: Tensor, *, dim: int) -> Tensor:
        """Rows of queries and keys, the turning ones in the order in which halves turn."""
        turning, others = torch.split(rows, [self._rope_dim, rows.shape[dim] - self._rope_dim], dim)
        return torch.cat((halves(turning, self._config.interleaved, dim=dim), others), dim)
