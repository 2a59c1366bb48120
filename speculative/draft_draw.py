"""Chooses drafts as their rows want them."""

import torch
from torch import Tensor

from corymb.kernels.noise import exponential
from corymb.models.settings import LEAST_TEMPERATURE
from corymb.models.speculation import DraftTurn


class Draw:
    """The likeliest token, or one by the noise that the target itself would draw with."""

    any_random: bool  # whether any row may want another than its likeliest

    def __init__(self, turn: DraftTurn, token_ids: Tensor | None, count: int) -> None:
        """`token_ids`: the target's ids of the `count` tokens that can be drafted; None: their own places."""
        self._random = turn.random
        self.any_random = len(self._random) > 0
        temperature = turn.temperature[self._random]
        self._is_random = temperature > 0  # of all rows of a captured turn, some may be greedy
        self._temperature = temperature.clamp(min=LEAST_TEMPERATURE)[:, None]
        self._keys = turn.keys[self._random]
        device = turn.anchors.device
        self._ids = torch.arange(count, dtype=torch.int32, device=device) if token_ids is None else token_ids.int()

    def __call__(self, logits: Tensor, place: int) -> Tensor:
        """Indices [R] into the tokens that can be drafted, of logits [R, N]."""
        picked = logits.argmax(dim=1)
        if self.any_random:
            weights = (logits[self._random] / self._temperature).softmax(dim=1)
            drawn = (weights / exponential(self._keys[:, place], self._ids)).argmax(dim=1)
            picked[self._random] = torch.where(self._is_random, drawn, picked[self._random])
        return picked
