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
        self._places: Tensor | None = None  # of every token in this rank's table

    @property
    def whole(self) -> bool:
        """Whether this rank has all of it."""
        return self.group.size == 1

    def table(self, embedding: Tensor) -> Tensor:
        """A rank's embeddings [width, hidden_size] as `embed` wants them: with a row of zeros for all other tokens."""
        if self.whole:
            return embedding
        self._places = torch.full((self._size,), self._width, device=embedding.device)
        self._places[self._first : self._first + self._count] = torch.arange(self._count, device=embedding.device)
        return torch.cat((embedding, embedding.new_zeros(1, embedding.shape[1])))

    def embed(self, token_ids: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns [T, hidden_size] of token ids [T]."""
        if self._places is None:
            return F.embedding(token_ids, table).to(dtype)
        # All ranks but one add zeros.
        return self.group.first_sum(F.embedding(self._places[token_ids], table).to(dtype))

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
        return self.group.choose(scores, sampling.greedy(scores), self._first)
