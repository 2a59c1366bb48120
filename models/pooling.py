"""Embeddings: the last hidden state of a prompt's last token, with length 1."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from corymb.models.placement import Place
from corymb.models.settings import Needs


@dataclass(frozen=True, slots=True)
class Pooled:
    """The embeddings of N rows, on the device until `read`."""

    owners: Sequence[int]  # index into the plan's rows
    states: Tensor  # float32 [N, hidden_size]

    def on_host(self) -> "Pooled":
        """Queues a copy to the host; to be read once the device has come so far."""
        return Pooled(self.owners, self.states.to("cpu", non_blocking=True))

    def read(self) -> dict[int, bytes]:
        """Little-endian float32 by index into the plan's rows."""
        rows = self.states.cpu().numpy().astype("<f4", copy=False)
        return {owner: row.tobytes() for owner, row in zip(self.owners, rows, strict=True)}


def pool(hidden: Tensor, index: NDArray[np.int64], needs: NDArray[np.uint8], place: Place) -> Pooled | None:
    """The embeddings among hidden states [N, hidden_size] of the rows that sample; None where nobody wants one.

    `index` [N]: of those rows in the plan. `needs` [N]: what each wants, as `Needs`.
    """
    wanted = np.flatnonzero(needs & Needs.EMBEDDING)
    if not len(wanted):
        return None
    return Pooled(index[wanted].tolist(), F.normalize(hidden[place(wanted)].float(), dim=1))
