"""The device's copy of what the host knows by request row, and the only writer of it."""

import numpy as np
import torch
from torch import Tensor

from corymb.cache.config import CacheConfig
from corymb.models.placement import Mirror, Place
from corymb.scheduler.plan import Int32, StepPlan

_NO_PROMPT = np.empty(0, np.int32)


class Rows:
    """Owns the page table, the full-to-sliding map, and of every row its last sampled token, its prompt and, where a
    runner speculates, its length.

    Writes must come in the order of plans; a row's entries hold until the next request takes the row.
    """

    def __init__(self, config: CacheConfig, place: Place) -> None:
        self._context_length = config.context_length
        self._table = Mirror((config.num_rows, config.context_length), place)
        self._sliding: Mirror | None = None
        if config.num_sliding_tokens:
            self._sliding = Mirror((config.num_full_tokens,), place)
        self.last_sampled = torch.zeros(config.num_rows, dtype=torch.int64, device=place.device)
        self.lengths = torch.zeros(
            config.num_rows, dtype=torch.int32, device=place.device
        )  # tokens whose KV is written
        self.prompts: list[Int32] = [_NO_PROMPT] * config.num_rows

    @property
    def table(self) -> Tensor:
        """The page table, int32 [num_rows, context_length]."""
        return self._table.tensor

    @property
    def full_to_sliding(self) -> Tensor | None:
        """The sliding-pool slot of every full-pool slot, int32; None without a sliding pool."""
        return self._sliding.tensor if self._sliding else None

    def apply(self, plan: StepPlan) -> None:
        """Follows the host's changes that the plan carries, except its new tokens' slots."""
        for opened in plan.opened:
            self.prompts[opened.row] = opened.prompt_ids
        if len(plan.table.rows):
            self.write_slots(plan.table.rows, plan.table.positions, plan.table.slots)
        if plan.sliding is not None and len(plan.sliding.full):
            assert self._sliding is not None, "a plan with sliding writes for a model without a sliding pool"
            self._sliding.write(plan.sliding.full.astype(np.int64), plan.sliding.sliding)

    def write_slots(self, rows: Int32, positions: Int32, slots: Int32) -> None:
        """Sets table[rows, positions] = slots."""
        self._table.write(rows.astype(np.int64) * self._context_length + positions, slots)
