"""The order of rows that a rope turns."""

import torch
from torch import Tensor


def halves(rows: Tensor, interleaved: bool, *, dim: int) -> Tensor:
    """Brings rows whose rope turns neighbours in an order in which it turns halves: products of queries and keys stay
    what they are."""
    if not interleaved:
        return rows
    count = rows.shape[dim]
    places = torch.arange(count, device=rows.device)
    return rows.index_select(dim, torch.cat((places[::2], places[1::2])))
