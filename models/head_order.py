"""How the outputs of a layer's projections to queries, keys and values are laid out for attention.

Where only the first dimensions of a head turn, they are spread over both halves of the head, so that they meet as in a
head that turns as a whole; the table of turns has angles of zero for the rest. Products of queries and keys are sums
over dimensions in any order.
"""

import torch
from torch import Tensor

from corymb.models.config import DecoderConfig
from corymb.models.rope_config import Rope


def order_of(rope: Rope | None, head_dim: int) -> Tensor | None:
    """Where each dimension of a query's or key's head comes from; None where all stay."""
    if rope is None or rope.rotated == 1.0:
        return None
    turned, half = rope.num_rotated(head_dim), head_dim // 2
    kept = half - turned // 2  # dimensions of each half that do not turn
    first, second, rest = torch.split(torch.arange(head_dim), [turned // 2, turned // 2, head_dim - turned])
    return torch.cat((first, rest[:kept], second, rest[kept:]))


def join_heads(queries: Tensor, keys: Tensor, values: Tensor, decoder: DecoderConfig, order: Tensor | None) -> Tensor:
    """The rows of one product: all queries, all keys, all values, then gates if queries come with them."""
    dim, others = decoder.head_dim, queries.shape[1:]
    gates: list[Tensor] = []
    if decoder.output_gate:
        queries, gate = torch.split(queries.reshape(decoder.num_heads, 2 * dim, *others), dim, dim=1)
        queries, gates = queries.reshape(-1, *others), [gate.reshape(-1, *others)]
    if order is not None:
        place = order.to(queries.device)
        queries, keys = (part.reshape(-1, dim, *others)[:, place].reshape(-1, *others) for part in (queries, keys))
    return torch.cat((queries, keys, values, *gates))
