"""The pool of recurrent states, and which of them the open rows have."""

from dataclasses import dataclass

import numpy as np

from corymb.cache.slots import Int32, Slots
from corymb.cache.writes import Landmarks, StateWrites

NUM_KEPT = 2  # snapshots of a row: a step that is late may have taken the newest beyond the tokens that count

Kept = dict[int, int]  # slots by the number of tokens that their states have seen


@dataclass(slots=True)
class StateRows:
    """What the open rows have, by row."""

    working: Int32  # slot that the row's steps read and write; 0 before its first
    source: Int32  # slot of the state that it starts from; 0: from nothing
    is_new: np.ndarray[tuple[int], np.dtype[np.bool_]]  # its working slot is not filled yet
    stops: Int32  # tokens that the working state has seen after the steps planned so far, at least
    slack: Int32  # so many more it may have seen: drafts of which nobody knows yet whether they count
    branches: Int32  # where a state is missing in the tree; 0 for nowhere
    landmarks: Int32  # where the newest snapshot is taken, as long as nobody knows by which step; 0: it is taken
    landmark_slots: Int32


class StatePool:
    """Owns the state slots. The tree has those on its nodes; a row has one to work in, and up to two snapshots that it
    gives to the tree when it is inserted or that are taken back when another row needs a slot."""

    def __init__(self, num_states: int, num_rows: int, interval: int, page_size: int = 1) -> None:
        """`interval`: tokens between the snapshots of one sequence, a multiple of `page_size`."""
        self.slots = Slots(num_states, 1)
        self.interval = interval
        self._page_size = page_size
        working, source, *others = (np.zeros(num_rows, np.int32) for _ in range(7))
        self.rows = StateRows(working, source, np.zeros(num_rows, np.bool_), *others)
        self.kept: dict[int, Kept] = {}  # by row, oldest first

    @property
    def num_kept(self) -> int:
        """Snapshots that rows hold."""
        return sum(map(len, self.kept.values()))

    def open(self, row: int, source: int, *, start: int, branch: int) -> None:
        """A row begins with the state in `source` after `start` tokens. The caller keeps that state locked until `take`
        was called with the row."""
        self.rows.source[row], self.rows.is_new[row] = source, True
        self.rows.stops[row], self.rows.slack[row], self.rows.branches[row] = start, 0, branch

    def num_missing(self, rows: Int32) -> int:
        """How many of these rows have no working slot yet."""
        return len(rows) - int(np.count_nonzero(self.rows.working[rows]))

    def seat(self, rows: Int32) -> None:
        """Gives working slots to those of these rows that have none; so many are free."""
        rows = rows[self.rows.working[rows] == 0]
        self.rows.working[rows] = self.slots.allocate(len(rows))

    def due(self, rows: Int32, stops: Int32) -> Int32:
        """Which of these rows end their steps where a snapshot is worth a slot."""
        due: Int32 = rows[(stops % self.interval == 0) | (stops == self.rows.branches[rows])]
        return due

    def num_new(self, due: Int32) -> int:
        """How many further slots snapshots of these rows would take."""
        return sum(len(self.kept.get(row, ())) < NUM_KEPT for row in due.tolist())

    def take(self, rows: Int32, stops: Int32, due: Int32) -> StateWrites:
        """What a step of these rows does, that ends at `stops` and leaves snapshots of the rows `due` where there is a
        slot for them."""
        state = self.rows
        new = rows[state.is_new[rows]]
        state.stops[rows], state.is_new[new] = stops, False
        copied = new[state.source[new] > 0]
        taken = [(row, slot) for row in due.tolist() if (slot := self._keep(row, int(state.stops[row])))]
        snapped = np.array(taken, np.int32).reshape(-1, 2)
        return StateWrites(
            slots=state.working[rows],
            zero=state.working[new[state.source[new] == 0]],
            before_from=state.source[copied],
            before_to=state.working[copied],
            after_from=state.working[snapped[:, 0]],
            after_to=snapped[:, 1],
        )

    # A row that drafts, at the step that was planned last: tokens that the state before it
    # [0, stops) has surely seen   [stops, stops + slack) may have seen

    def due_on_the_way(self, rows: Int32, starts: Int32, slack: Int32) -> Int32:
        """Which of these rows may come by where a snapshot is worth a slot, on their way to a step that begins after
        `starts` tokens, or up to `slack` more. A row has one snapshot on the way at a time."""
        state = self.rows
        free = state.landmarks[rows] <= state.stops[rows]
        due: Int32 = rows[free & (self._next_due(rows) <= starts + slack)]
        return due

    def pass_by(self, rows: Int32, starts: Int32, slack: Int32, due: Int32) -> StateWrites:
        """What a step of these rows does, whose tokens may be taken back: it brings states to its beginning, and leaves
        snapshots on the way there. Those of the rows `due` are wanted from now on, where there is a slot for them."""
        state = self.rows
        assert not state.is_new[rows].any(), "prompts come before drafts"
        state.landmarks[rows[state.landmarks[rows] <= state.stops[rows]]] = 0
        for row, position in zip(due.tolist(), self._next_due(due).tolist(), strict=True):
            slot = self._keep(row, position)
            state.landmarks[row], state.landmark_slots[row] = (position, slot) if slot else (0, 0)
        state.stops[rows], state.slack[rows] = starts, slack
        return StateWrites.only(state.working[rows], Landmarks(state.landmarks[rows], state.landmark_slots[rows]))

    def settle(self, row: int, num_accepted: int, num_drafts: int) -> None:
        """Of the drafts of a step before the row's last so many count."""
        self.rows.stops[row] += num_accepted
        self.rows.slack[row] -= num_drafts

    def _next_due(self, rows: Int32) -> Int32:
        """The first place for a snapshot that no step of the row planned so far can have come by."""
        farthest = self.rows.stops[rows] + self.rows.slack[rows]
        due: Int32 = (farthest // self.interval + 1) * self.interval
        return due

    def _keep(self, row: int, stop: int) -> int:
        kept = self.kept.setdefault(row, {})
        if len(kept) == NUM_KEPT:
            slot = kept.pop(min(kept))
        elif self.slots.num_free:
            slot = int(self.slots.allocate(1)[0])
        else:
            return 0
        kept[stop] = slot
        return slot

    def give(self, row: int, length: int, shared: int, *, finished: bool) -> Kept:
        """Hands over the row's states inside its first `length` tokens, of which the tree has `shared`; it frees what
        it has already. At the end that is the state that the row works in, if it is known what it has seen and that
        these begin with it, and the newest of its snapshots: what lies further back is seldom looked for."""
        kept, at = self.kept.get(row, {}), int(self.rows.stops[row])
        usable = [stop for stop in sorted(kept) if stop <= min(length, at)]
        given = {stop: kept.pop(stop) for stop in (usable[-1:] if finished else usable)}
        known = not self.rows.slack[row] and not self.rows.is_new[row] and at % self._page_size == 0
        fits = shared < at <= length or at == length
        if finished and known and fits and at not in given:
            given[at] = int(self.rows.working[row])
            self.rows.working[row] = 0
        return given

    def close(self, row: int) -> None:
        """Takes back what the row still has."""
        kept = self.kept.pop(row, {})
        working = self.rows.working[row : row + 1]
        self.slots.free(np.concatenate([working[working > 0], np.fromiter(kept.values(), np.int32, len(kept))]))
        state = self.rows
        for field in (state.working, state.source, state.stops, state.slack, state.branches, state.landmarks):
            field[row] = 0
        state.is_new[row] = False

    def reclaim(self, count: int) -> None:
        """Takes `count` snapshots back, those that have seen the fewest tokens first."""
        held = sorted((stop, row) for row, kept in self.kept.items() for stop in kept) if count > 0 else []
        for stop, row in held[:count]:
            self.slots.free(np.array([self.kept[row].pop(stop)], np.int32))
            if self.rows.landmarks[row] == stop:
                self.rows.landmarks[row] = 0
