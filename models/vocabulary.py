"""A vocabulary that several ranks share: each embeds and scores its own tokens."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corymb.kernels.sampling import Choice, Sampling
from corymb.models.group import Group


class Vocabulary:
    """One rank's part: tokens [rank × width, (rank + 1) × width), of which the last rank may lack some."""

    def __init__(self, size: int, width: int, group: Group) -> None:
        """`size` of the whole, `width` of each rank's part."""
        self._size = size
        self._width = width
        self.group = group
        self._first = group.rank * width
        self._count = min(width, size - self._first)

    @property
    def whole(self) -> bool:
        """Whether this rank has all of it."""
        return self.group.size == 1

    def embed(self, token_ids: Tensor, embedding: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns [T, hidden_size] of token ids [T]."""
        if self.whole:
            return F.embedding(token_ids, embedding).to(dtype)
        places = token_ids - self._first
        own = (places >= 0) & (places < self._width)
        found = F.embedding(torch.where(own, places, 0), embedding).to(dtype)
        # All ranks but one add zeros.
        return self.group.first_sum(found.mul_(own[:, None]))

    def own(self, scores: Tensor) -> Tensor:
        """Cuts off what fills a rank's part up."""
        return scores if self._count == self._width else scores[:, : self._count]

    def join(self, scores: Tensor) -> Tensor:
        """Returns [N, size] of the ranks' own scores."""
        if self.whole:
            return scores
        filled = scores if self._count == self._width else F.pad(scores, (0, self._width - self._count))
        gathered = self.group.all_gather(filled.contiguous())
        return gathered.transpose(0, 1).reshape(len(scores), -1)[:, : self._size]

    def greedy(self, scores: Tensor, sampling: Sampling) -> Choice:
        """The best token of every row over all ranks, the lowest id among equals, from each rank's own scores."""
        if self.whole:
            return sampling.greedy(scores)
        best = self._own_best(scores, sampling)
        values, token_ids = self.group.all_gather(best).unbind(1)
        # The first of equals, and NaN before all: a rank whose scores are unusable makes the row so.
        value, rank = values.max(dim=0)
        return Choice(token_ids.gather(0, rank[None])[0].to(torch.int64), value.isfinite())

    def _own_best(self, scores: Tensor, sampling: Sampling) -> Tensor:
        """float32 [2, N]: the best score of every row, NaN where they are unusable, and its token, which is exact."""
        choice = sampling.greedy(scores)
        value = scores.gather(1, choice.token_ids[:, None])[:, 0].float()
        return torch.stack([torch.where(choice.usable, value, torch.nan), (choice.token_ids + self._first).float()])
