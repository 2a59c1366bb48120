"""What attention to latents (MLA) is made of, and which tensors it needs. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """The index that chooses a layer's keys (DSA)."""

    num_heads: int
    head_dim: int
    top_k: int
    interleaved: bool  # its rope turns neighbours, not halves


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Keys and values as one latent a token, from which every head's are a product away."""

    latent_dim: int
    rope_dim: int  # of queries and keys, beside what comes from latents
    nope_dim: int  # of queries and keys, without positions
    value_dim: int
    query_rank: int | None  # queries go through so few numbers; None: they do not
    interleaved: bool  # rope turns neighbours, not halves
    index: IndexConfig | None = None

    @property
    def stored_dim(self) -> int:
        """Numbers that a layer keeps of a token."""
        return self.latent_dim + self.rope_dim

    def tensors(self, hidden: int, num_heads: int, *, bias: bool, indexed: bool) -> dict[str, tuple[int, ...]]:
        """All tensors of one layer's attention, by name within it, in the order in which a model takes them."""
        shapes = self._queries(hidden, num_heads, bias=bias)
        shapes |= _product("kv_a_proj_with_mqa", self.stored_dim, hidden, bias=bias)
        shapes["kv_a_layernorm.weight"] = (self.latent_dim,)
        shapes["kv_b_proj.weight"] = (num_heads * (self.nope_dim + self.value_dim), self.latent_dim)
        shapes |= _product("o_proj", hidden, num_heads * self.value_dim, bias=bias)
        return shapes | (self._index(hidden) if indexed else {})

    def _queries(self, hidden: int, num_heads: int, *, bias: bool) -> dict[str, tuple[int, ...]]:
        outputs = num_heads * (self.nope_dim + self.rope_dim)
        if self.query_rank is None:
            return {"q_proj.weight": (outputs, hidden)}
        shapes = _product("q_a_proj", self.query_rank, hidden, bias=bias)
        return shapes | {"q_a_layernorm.weight": (self.query_rank,), "q_b_proj.weight": (outputs, self.query_rank)}

    def _index(self, hidden: int) -> dict[str, tuple[int, ...]]:
        assert self.index is not None, "an index of a model that has none"
        assert self.query_rank is not None, "an index reads queries of few numbers"
        heads, dim = self.index.num_heads, self.index.head_dim
        return {
            "indexer.wq_b.weight": (heads * dim, self.query_rank),
            "indexer.wk.weight": (dim, hidden),
            "indexer.k_norm.weight": (dim,),
            "indexer.k_norm.bias": (dim,),
            "indexer.weights_proj.weight": (heads, hidden),
        }


def _product(name: str, outputs: int, inputs: int, *, bias: bool) -> dict[str, tuple[int, ...]]:
    weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (outputs, inputs)}
    return weight | {f"{name}.bias": (outputs,)} if bias else weight
