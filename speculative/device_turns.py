"""Brings what the host knows of a step's rows to a GPU, in one copy, to where captured graphs expect it."""

import numpy as np
import torch

from corymb.kernels.noise import seeds_of_step
from corymb.kernels.standing import FIRST_OUTPUT, MOST, NOBODY, NUM_FACTS, ROW, SEED, TEMPERATURE, Standing, room
from corymb.models.rows import Rows
from corymb.models.sampler import Sampler
from corymb.models.settings import Needs
from corymb.models.speculation import Tools
from corymb.scheduler.plan import Bool, Int32, StepPlan

NUM_TURNS = 4  # steps whose host memory may still be read by copies


class Turns:
    """Owns that memory. What it returns holds until the next step."""

    def __init__(self, num_rows: int, num_drafts: int, tools: Tools) -> None:
        device = tools.device
        self._stand = tools.stand
        self._facts = torch.zeros(NUM_FACTS * num_rows, dtype=torch.int32, device=device.device)
        self._host = [device.pinned(NUM_FACTS * num_rows) for _ in range(NUM_TURNS)]
        self._copied = [device.mark() for _ in range(NUM_TURNS)]
        self._turn = 0
        self.room = room(num_rows, num_drafts, device.device)

    def put(self, plan: StepPlan, rows: Rows, sampler: Sampler, num_rows: int) -> Standing:
        """Where a plan's rows are, filled up to `num_rows` with nobody."""
        self._turn = (self._turn + 1) % NUM_TURNS
        host, copied, size = self._host[self._turn], self._copied[self._turn], NUM_FACTS * num_rows
        copied.synchronize()
        _fill(host[:size].view(NUM_FACTS, num_rows).numpy(), plan, rows, sampler)
        self._facts[:size].copy_(host[:size], non_blocking=True)
        copied.record()
        standing = self.room.first(num_rows)
        self._stand(self._facts[:size].view(NUM_FACTS, num_rows), rows.last_sampled, rows.lengths, standing)
        return standing


def is_random(plan: StepPlan, sampler: Sampler) -> Bool:
    """Which of a plan's rows want another than their likeliest token, [R]."""
    random: Bool = (sampler.settings.needs[plan.rows] & Needs.RANDOM).astype(np.bool_)
    return random


def _fill(facts: Int32, plan: StepPlan, rows: Rows, sampler: Sampler) -> None:
    assert plan.windows is not None, "only plans with windows draft"
    settings, count = sampler.settings, plan.num_rows
    facts[:, count:] = 0
    facts[ROW, count:] = NOBODY
    facts[ROW, :count] = plan.rows
    facts[FIRST_OUTPUT, :count] = [len(rows.prompts[row]) - 1 for row in plan.rows.tolist()]
    facts[MOST, :count] = plan.windows.most
    heat = np.where(is_random(plan, sampler), settings.temperature[plan.rows], 0).astype(np.float32)
    facts[TEMPERATURE, :count] = heat.view(np.int32)
    seeds = settings.seeds[plan.rows]
    # See verification: rows that promised no tokens draw their drafts afresh in every step.
    seeds = np.where(settings.seeded[plan.rows], seeds, seeds_of_step(seeds, plan.step))
    facts[SEED : SEED + 2, :count] = seeds.view(np.int32).reshape(-1, 2).T
