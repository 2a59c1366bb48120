"""Log-probabilities of tokens: scored on the device, spelled out on the host.

They are those of the model itself: log_softmax of its logits before bias, penalties, temperature and filters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corymb.kernels.sampling import exact_best
from corymb.models.placement import Place
from corymb.scheduler.messages import Logprob, LogprobOptions

LEAST = -9999.0  # stands for -inf, which JSON cannot say


@dataclass(frozen=True, slots=True)
class Positions:
    """N positions that want logprobs, in the order in which their rows report them."""

    owners: Sequence[int]  # by position: index into the plan's rows
    options: Sequence[LogprobOptions]


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of positions, on the device until `entries` reads them."""

    positions: Positions
    token_ids: Tensor  # int64 [N]
    logprobs: Tensor  # [N]
    top_ids: Tensor  # int64 [N, K], best first; lower ids first among equals
    top_logprobs: Tensor  # [N, K]
    chosen: Tensor  # [N, M], of LogprobOptions.token_ids, padded

    def on_host(self) -> "Scores":
        """Queues copies to the host; to be read once the device has come so far."""

        def copy(tensor: Tensor) -> Tensor:
            return tensor.to("cpu", non_blocking=True)

        return Scores(
            self.positions,
            copy(self.token_ids),
            copy(self.logprobs),
            copy(self.top_ids),
            copy(self.top_logprobs),
            copy(self.chosen),
        )


def log_probabilities(logits: Tensor) -> Tensor:
    """Returns log_softmax of logits [N, V], -inf as LEAST."""
    return logits.log_softmax(dim=1).clamp_(min=LEAST)


def score(logprobs: Tensor, token_ids: Tensor, positions: Positions, place: Place) -> Scores:
    """Scores the tokens [N] and the alternatives that their options ask for, from logprobs [N, V]."""
    num_top = max((options.top for options in positions.options), default=0)
    ordered = exact_best(logprobs, num_top) if num_top else None
    none = torch.empty((len(token_ids), 0), device=logprobs.device)
    return Scores(
        positions=positions,
        token_ids=token_ids,
        logprobs=logprobs.gather(1, token_ids[:, None])[:, 0],
        top_ids=ordered.token_ids if ordered else none,
        top_logprobs=ordered.values if ordered else none,
        chosen=logprobs.gather(1, place(_padded_ids(positions.options))),
    )


def entries(scores: Scores) -> dict[int, list[Logprob]]:
    """What every owner reports, by index into the plan's rows."""
    by_owner: dict[int, list[Logprob]] = {owner: [] for owner in scores.positions.owners}
    columns = zip(
        scores.positions.owners,
        scores.positions.options,
        scores.token_ids.tolist(),
        scores.logprobs.tolist(),
        scores.top_ids.tolist(),
        scores.top_logprobs.tolist(),
        scores.chosen.tolist(),
        strict=True,
    )
    for owner, options, token_id, logprob, top_ids, top_logprobs, chosen in columns:
        top = tuple(zip(top_ids, top_logprobs, strict=True))[: options.top]
        asked = tuple(zip(options.token_ids, chosen, strict=False))  # `chosen` is padded
        by_owner[owner].append(Logprob(token_id, logprob, top, asked))
    return by_owner


def _padded_ids(options: Sequence[LogprobOptions]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    width = max((len(one.token_ids) for one in options), default=0)
    padded = np.zeros((len(options), width), np.int64)
    for line, one in zip(padded, options, strict=True):
        line[: len(one.token_ids)] = one.token_ids
    return padded
