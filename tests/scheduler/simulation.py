"""A runner without a device.

Its tokens are hashes of what it reads back through the page table and simulated pools, so a wrong slot, order, offset
or stale entry changes them. Steps run only when their results are read: a plan that changes after its launch shows.

Where a plan has windows, rows go on from where this has them. Of each some drafts are right, by chance; what the wrong
ones wrote behind the row's end is poison to whoever reads it later.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from corymb.cache.config import CacheConfig
from corymb.cache.writes import HostCopies, HostCopy, PoolName
from corymb.scheduler.messages import Logprob, Sampling
from corymb.scheduler.plan import LAST_SAMPLED, Drafted, Int32, Masks, Opened, Sampled, StepPlan, Windows

Int64 = NDArray[np.int64]

PRIME = 65_521
SPREAD = 40_503
ALPHABET = 26
FIRST = 97  # "a"


def fingerprint(token_ids: Sequence[int] | Int32) -> Int64:
    """What a slot keeps of its token."""
    return np.asarray(token_ids, np.int64) * SPREAD % PRIME


def weigh(kept: Int64, first_position: int = 0) -> int:
    """A number that depends on what is kept and in which order."""
    return int((np.arange(first_position + 1, first_position + 1 + len(kept)) * kept).sum() % PRIME)


def fold(state: int, kept: Int64) -> Int64:
    """A recurrent state after each of these tokens, from the one before them."""
    states = np.empty(len(kept), np.int64)
    for at, each in enumerate(kept.tolist()):
        state = (state * 31 + each) % PRIME
        states[at] = state
    return states


def choose(
    weight: int, sampling: Sampling, output_ids: Sequence[int], eos_ids: frozenset[int], allowed: Sequence[int] = ()
) -> int:
    """The token that follows, the model's and the sampler's part in one; `allowed`: what a mask leaves."""
    weight += sampling.seed * 7_919 + len(output_ids) * 31
    if sampling.frequency_penalty:
        weight += sum(output_ids)
    if len(allowed):
        return int(allowed[(weight % PRIME >> 5) % len(allowed)])
    token_id = FIRST + (weight % PRIME >> 5) % ALPHABET
    if len(output_ids) < sampling.min_new_tokens:
        masked = eos_ids | frozenset(sampling.stop_token_ids)
        while token_id in masked:
            token_id = FIRST + (token_id - FIRST + 1) % ALPHABET
    return token_id


@dataclass(slots=True)
class _Row:
    opened: Opened
    output_ids: list[int]


class SimulatedResult:
    """A launched step."""

    def __init__(self, runner: "SimulatedRunner", step: int) -> None:
        """Belongs to `runner`."""
        self._runner = runner
        self._step = step

    def drafts(self) -> None:
        """Nothing drafts here."""

    def constrain(self, masks: Masks) -> None:
        """Lets constrained rows sample, once."""
        assert self._step not in self._runner.masks, "a step is constrained twice"
        self._runner.masks[self._step] = masks

    def wait(self) -> Sampled:
        """Runs the steps up to this one."""
        return self._runner.finish(self._step)


class SimulatedRunner:
    """Owns what a real runner would keep on its device: pools, page table, sliding map, last tokens."""

    def __init__(
        self, cache: CacheConfig, eos_ids: frozenset[int] = frozenset(), *, broken: frozenset[int] = frozenset()
    ) -> None:
        """A row whose newest token is in `broken` reports unusable logits."""
        random = np.random.default_rng(0)
        self._window = cache.sliding_window if cache.num_sliding_tokens else 0
        self._eos_ids = eos_ids
        self._broken = broken
        # Poison: what nobody wrote must not read as zero.
        self._full = random.integers(1, PRIME, cache.num_full_tokens)
        self._sliding = random.integers(1, PRIME, max(cache.num_sliding_tokens, 1))
        self._host = {}
        if cache.host is not None:
            sizes = (cache.host.num_full_tokens, cache.host.num_sliding_tokens, cache.host.num_states)
            names = ("full", "sliding", "recurrent")
            self._host = {name: random.integers(1, PRIME, size) for name, size in zip(names, sizes, strict=True)}
        self._map = np.zeros(cache.num_full_tokens, np.int32)
        self._states = random.integers(1, PRIME, cache.num_states)
        self._passed: dict[int, tuple[int, Int64]] = {}  # by row, states after its newest tokens, and how many before
        self._table = np.zeros((cache.num_rows, cache.context_length), np.int32)
        self._last_sampled = np.full(cache.num_rows, -1, np.int32)
        self._lengths = np.zeros(cache.num_rows, np.int32)
        self._luck = Random(3)  # of drafts and copies
        self._lots: deque[HostCopies] = deque()  # not done yet
        self._copied = 0  # the last that is
        self._rows: dict[int, _Row] = {}
        self._queued: deque[StepPlan] = deque()
        self._sampled: dict[int, Sampled] = {}
        self.masks: dict[int, Masks] = {}  # by step

    def launch(self, plan: StepPlan) -> SimulatedResult:
        """Queues a step."""
        self._queued.append(plan)
        return SimulatedResult(self, plan.step)

    def copy(self, copies: HostCopies) -> None:
        """Does copies behind what is queued."""
        self.close()
        self._lots.append(copies)
        self._copy_up_to(copies.number)

    def close(self) -> None:
        """Runs what is queued."""
        while self._queued:
            self._run(self._queued.popleft())

    def finish(self, step: int) -> Sampled:
        """Runs the queue up to `step` and hands out its samples, once."""
        while step not in self._sampled:
            self._run(self._queued.popleft())
        return self._sampled.pop(step)

    def _run(self, plan: StepPlan) -> None:
        assert (plan.constrained is not None) == (plan.step in self.masks), "masks come where rows wait for them"
        assert len(set(plan.rows.tolist())) == plan.num_rows, "a row takes part twice"
        self._follow(plan)
        if plan.windows is not None:
            self._sampled[plan.step] = replace(self._speculate(plan, plan.windows), copied=self._copied)
            return
        offsets = np.concatenate(([0], np.cumsum(plan.widths)))
        assert offsets[-1] == plan.num_tokens == len(plan.slots)
        self._before(plan)
        self._lengths[plan.rows] = plan.starts + plan.widths
        self._store(plan, offsets)
        if plan.states is not None:
            self._states[plan.states.after_to] = self._states[plan.states.after_from]
        token_ids, sampled = [], Sampled(np.empty(0, np.int32), plan.samples.astype(np.int32), 0.0)
        for index, row in enumerate(plan.rows.tolist()):
            self._score_prompt(plan, index, sampled)
            if plan.samples[index]:
                assert plan.num_outputs[index] == len(self._rows[row].output_ids), "output tokens were counted wrong"
                token_ids.append(self._sample(plan, index, row, sampled))
        done = Sampled(
            np.array(token_ids, np.int32),
            sampled.counts,
            0.0,
            sampled.logprobs,
            sampled.prompt_logprobs,
            sampled.errors,
            copied=self._copied,
        )
        self._sampled[plan.step] = done

    def _copy_up_to(self, number: int) -> None:
        device = {"full": self._full, "sliding": self._sliding, "recurrent": self._states}
        while self._lots and self._lots[0].number <= number:
            self._copied = self._lots[0].number
            self._copy(self._lots.popleft().copies, device)

    def _copy(self, copies: Sequence[HostCopy], device: dict[PoolName, Int64]) -> None:
        for copy in copies:
            source, target = device[copy.pool], self._host[copy.pool]
            if not copy.to_host:
                source, target = target, source
            assert len(set(copy.target.tolist())) == len(copy.source), "a slot is copied to twice"
            assert (copy.source > 0).all(), "padding is copied"
            assert (copy.target > 0).all(), "padding is overwritten"
            target[copy.target] = source[copy.source]

    def _follow(self, plan: StepPlan) -> None:
        self._lots.append(plan.copies)
        # As late as the plan allows, or somewhat sooner.
        self._copy_up_to(max(plan.copies.awaited, plan.copies.number - self._luck.randint(0, 4)))
        for opened in plan.opened:
            self._rows[opened.row] = _Row(opened, opened.output_ids.tolist())
            self._last_sampled[opened.row] = -1
        self._table[plan.table.rows, plan.table.positions] = plan.table.slots
        if plan.sliding is not None:
            self._map[plan.sliding.full] = plan.sliding.sliding

    def _before(self, plan: StepPlan) -> None:
        states = plan.states
        assert (states is None) == (len(self._states) == 0)
        if states is not None:
            written = np.concatenate((states.zero, states.before_to))
            assert len(set(states.slots.tolist())) == plan.num_rows, "two rows work in one state"
            assert (states.slots > 0).all(), "a row works in the padding state"
            assert set(written.tolist()) <= set(states.slots.tolist()), "a state of nobody in this step is written"
            assert len(set(written.tolist())) == len(written), "a state is written twice"
            self._states[states.zero] = 0
            self._states[states.before_to] = self._states[states.before_from]

    def _store(self, plan: StepPlan, offsets: Int64) -> None:
        assert len(np.unique(plan.slots)) == len(plan.slots), "two tokens share a slot"
        assert (plan.slots > 0).all(), "slot 0 is padding"
        token_ids = plan.token_ids.copy()
        firsts = offsets[:-1]
        relayed = token_ids[firsts] == LAST_SAMPLED
        token_ids[firsts[relayed]] = self._last_sampled[plan.rows[relayed]]
        assert (token_ids >= 0).all(), "a row has no last token to continue from"
        if plan.states is not None:
            self._fold(plan, token_ids, offsets)
        rows = np.repeat(plan.rows, plan.widths)
        positions = np.arange(len(rows)) - np.repeat(firsts - plan.starts, plan.widths)
        self._table[rows, positions] = plan.slots
        self._full[plan.slots] = fingerprint(token_ids)
        if self._window:
            twins = self._map[plan.slots]
            assert (twins > 0).all(), "a new token has no sliding slot"
            self._sliding[twins] = fingerprint(token_ids)

    def _fold(self, plan: StepPlan, token_ids: Int32, offsets: Int64) -> None:
        assert plan.states is not None
        for index, (row, slot) in enumerate(zip(plan.rows.tolist(), plan.states.slots.tolist(), strict=True)):
            new = fingerprint(token_ids[offsets[index] : offsets[index + 1]])
            passed = fold(int(self._states[slot]), new)
            self._states[slot] = passed[-1]
            self._passed[row] = (int(plan.starts[index]), passed)

    def _speculate(self, plan: StepPlan, windows: Windows) -> Sampled:
        """Rows of windows: each says one token more than drafts were right."""
        assert plan.constrained is None, "grammars are not simulated with drafts"
        self._reserve(plan, windows)
        left = int(windows.most.sum()) if windows.budget is None else windows.budget
        token_ids, sampled = [], Sampled(np.empty(0, np.int32), np.ones(plan.num_rows, np.int32), 0.0)
        verified = np.zeros(plan.num_rows, np.int32)
        for index, row in enumerate(plan.rows.tolist()):
            assert plan.starts[index] <= self._lengths[row], "a row is planned behind its end"
            assert plan.num_outputs[index] <= len(self._rows[row].output_ids), "more outputs than there are"
            verified[index] = min(self._luck.randint(0, int(windows.most[index])), left)
            left -= verified[index]
            accepted = self._luck.randint(0, int(verified[index]))
            end = int(self._lengths[row]) + 1 + int(verified[index])
            for _ in range(accepted + 1):
                self._write(row, int(self._lengths[row]), fingerprint([int(self._last_sampled[row])])[0])
                self._lengths[row] += 1
                token_ids.append(self._sample(plan, index, row, sampled))
            for position in range(int(self._lengths[row]), end):
                self._write(row, position, self._luck.randint(1, PRIME))
            sampled.counts[index] += accepted
        drafted = Drafted(verified, None, 0.0, 0.0) if windows.most.any() else None
        said = np.array(token_ids, np.int32)
        return replace(sampled, token_ids=said, drafted=drafted)

    def _reserve(self, plan: StepPlan, windows: Windows) -> None:
        assert len(np.unique(plan.slots)) == len(plan.slots) == windows.slot_counts.sum(), "slots are counted wrong"
        assert (plan.slots > 0).all(), "slot 0 is padding"
        first = 0
        for row, start, count in zip(plan.rows, windows.slot_starts, windows.slot_counts, strict=True):
            self._table[row, start : start + count] = plan.slots[first : first + count]
            first += count

    def _write(self, row: int, position: int, kept: int) -> None:
        slot = self._table[row, position]
        assert slot > 0, "a token of a window has no slot"
        self._full[slot] = kept
        if self._window:
            assert self._map[slot] > 0, "a token of a window has no sliding slot"
            self._sliding[self._map[slot]] = kept

    def _weight(self, row: int, length: int) -> int:
        slots = self._table[row, :length]
        weight = weigh(self._full[slots])
        if self._window:
            start = max(length - self._window, 0)
            twins = self._map[slots[start:]]
            assert (twins > 0).all(), "a token inside the window has no sliding slot"
            weight += weigh(self._sliding[twins], start)
        if len(self._states):
            before, passed = self._passed[row]
            weight += int(passed[length - 1 - before])
        return weight

    def _score_prompt(self, plan: StepPlan, index: int, sampled: Sampled) -> None:
        if plan.prompt_logprobs_from is None:
            return
        row, start = int(plan.rows[index]), int(plan.starts[index])
        prompt_ids = self._rows[row].opened.prompt_ids
        first = start + int(plan.prompt_logprobs_from[index])
        last = min(start + int(plan.widths[index]), len(prompt_ids) - 1)
        scores = [Logprob(int(prompt_ids[at + 1]), -float(self._weight(row, at + 1))) for at in range(first, last)]
        if scores:
            sampled.prompt_logprobs[index] = scores

    def _sample(self, plan: StepPlan, index: int, row: int, sampled: Sampled) -> int:
        state, length = self._rows[row], int(self._lengths[row])
        weight = self._weight(row, length)
        allowed = self._allowed(plan, index)
        token_id = choose(weight, state.opened.sampling, state.output_ids, self._eos_ids, allowed)
        state.output_ids.append(token_id)
        self._last_sampled[row] = token_id
        if state.opened.logprobs is not None:
            sampled.logprobs.setdefault(index, []).append(Logprob(token_id, -float(weight)))
        if token_id in self._broken:
            sampled.errors[index] = "simulated"
        return token_id

    def _allowed(self, plan: StepPlan, index: int) -> Int64:
        if plan.constrained is None or index not in plan.constrained:
            return np.empty(0, np.int64)
        masks = self.masks[plan.step]
        (at,) = np.flatnonzero(masks.index == index) if index in masks.index else (None,)
        if at is None:
            return np.empty(0, np.int64)  # its request has ended: nobody reads what it samples
        return np.flatnonzero(np.unpackbits(masks.bits[at].view(np.uint8), bitorder="little"))


class RandomBudgets:
    """Windows of up to so many drafts, over all rows any number of them; none in some steps."""

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts
        self._luck = Random(num_drafts)

    def open(self, row: int, step: int) -> None:
        """Nothing is learned."""

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int | None:
        """See WindowPolicy."""
        return self._luck.choice([None, None, self._luck.randint(0, int(most.sum())), 0])

    def learn(self, plan: StepPlan, sampled: Sampled) -> None:
        """Nothing to learn."""
