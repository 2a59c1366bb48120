"""The admission budget: how much of a waiting request one step may take in. Numbers only.

Memory is judged for the whole life of a request, compute for one step:

    free - offsets:  [ this pass: admitted | running: outputs still to come × ratio | the candidate: tokens + outputs ]
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from corymb.scheduler.cuts import Cuts, stop_at

OUTPUT_CLIP = 4096  # outputs beyond so many are not reserved
NO_LIMIT = 1 << 60
SIMULATION_RESERVE = 1  # tokens a request that must stay free at every point of the simulation


class Stop(Enum):
    """Why a candidate stays in the queue."""

    MEMORY = "memory"  # nobody after it is tried until something is released
    COMPUTE = "compute"  # this step is full
    REPEAT = "repeat"  # the step computes its beginning already; from the next step on it is in the tree


@dataclass(frozen=True, slots=True)
class Ask:
    """What a candidate needs. `start` tokens are cached already, `extend` must be computed."""

    start: int
    extend: int
    output_room: int  # tokens it may still produce, clipped
    survives: bool | None = None  # the simulation's verdict, where that takes the place of the estimate
    branch: int = 0  # position that its first piece must not run over, as the tree lacks a state there; 0: none


@dataclass(frozen=True, slots=True)
class Free:
    """Free and evictable tokens by pool, right now: read after the candidate's prefix was locked. `states`: requests
    that could be given a recurrent state."""

    full: int
    sliding: int
    states: int = NO_LIMIT


def ceil_page(tokens: int, page_size: int) -> int:
    """`tokens`, rounded up to whole pages."""
    return -(-tokens // page_size) * page_size


class Budget:
    """What one planning pass may still admit."""

    def __init__(self, *, cuts: Cuts, chunk: int | None, prefill: int, window: int = 0, most: int = NO_LIMIT) -> None:
        """`chunk`: tokens a step when prompts may be cut to fit (None: they may not); `prefill`: tokens a pass;
        `window`: of the sliding layers, 0 for none; `most`: tokens of one request that a step can ever hold, so more
        are always cut."""
        self._cuts = cuts
        self._page = cuts.page
        self._window = window
        self._most = most
        self._chunk_left = chunk
        self._input_left = prefill
        self._total = 0.0  # tokens spoken for over the lives of requests
        self._current = 0  # tokens that this step's admitted prompts take
        self._sliding = 0
        self._states = 0
        self._admitted = False
        self._truncated = False

    @property
    def chunk_left(self) -> int | None:
        """Tokens the step may still compute; None where prompts are never cut."""
        return self._chunk_left

    def claim_cut(self) -> bool:
        """Asks to cut one more of this step's prompts; False where one is cut already."""
        claimed, self._truncated = not self._truncated, True
        return claimed

    def reserve(self, *, full: float, sliding: int = 0, states: int = 0) -> None:
        """Sets memory aside for what runs already; negative amounts give it back."""
        self._total += full
        self._sliding += sliding
        self._states += states

    def continue_chunk(self, width: int, *, left: int, output_room: int) -> None:
        """A prompt in progress takes `width` tokens of this step, whose memory it has; `left` tokens come later."""
        self._truncated = left > 0
        self._spend(width)
        self._total += left or output_room

    def admit(self, ask: Ask, free: Free, *, alone: bool) -> int | Stop:
        """Judges a candidate; returns the tokens it may compute now. `alone`: nothing else holds memory, so none will
        ever come free and waiting would last for ever."""
        width = self._width(ask)
        if width is None:
            return Stop.COMPUTE
        if not alone and not self._fits(ask, free, width):
            return Stop.MEMORY
        self._admitted = True
        self._truncated = self._truncated or width < ask.extend
        immediate = ceil_page(width, self._page) + self._page
        self._total += immediate + (0 if width < ask.extend else ask.output_room)
        self._current += immediate
        self._sliding += self._sliding_need(ask, width)
        self._states += 1
        self._spend(width)
        return width

    def shortfall(self, ask: Ask, free: Free) -> int:
        """Tokens that would have to come free for `ask` to fit; 0 or less: it does."""
        # Strictly less than what remains is needed, so an exact fit is one token short.
        return math.floor(ask.extend + ask.output_room + self._page - free.full + self._total) + 1

    def _width(self, ask: Ask) -> int | None:
        need = ceil_page(ask.extend, self._page)
        if self._chunk_left is None:
            # Without chunks a prompt longer than the cap must get through somehow: it may when it is the step's first.
            if need > self._input_left and self._admitted:
                return None
            room = max(need, self._input_left)
        else:
            room = min(self._chunk_left, self._input_left)
        room = min(room, self._most)
        last = ask.start + ask.extend
        stop = stop_at(ask.branch, ask.start, last if need <= room else self._cuts.floor(ask.start, ask.start + room))
        if stop < last and self._truncated:
            return None  # one chunked request at a time
        return stop - ask.start if stop > ask.start else None

    def _fits(self, ask: Ask, free: Free, width: int) -> bool:
        immediate = ceil_page(width, self._page) + self._page
        lives = self.shortfall(ask, free) <= 0 if ask.survives is None else ask.survives
        return (
            lives
            and immediate <= free.full - self._current
            and self._states < free.states
            and (not self._window or self._sliding_need(ask, width) <= free.sliding - self._sliding)
        )

    def _sliding_need(self, ask: Ask, width: int) -> int:
        if not self._window:
            return 0
        # A window is held for long; what a chunk takes beyond it comes back with the next step.
        return max(width - self._window, 0) + min(ask.extend + ask.output_room, self._window) + self._page

    def _spend(self, width: int) -> None:
        need = ceil_page(width, self._page)
        self._input_left -= need
        if self._chunk_left is not None:
            self._chunk_left -= need


def survives(free: int, left: Sequence[int], occupied: Sequence[int]) -> bool:
    """Plays through requests that ignore EOS where nothing is cached: request i produces left[i] more tokens, then
    gives back those and its occupied[i] tokens. True when there is room at every point."""
    released = 0
    order = sorted(range(len(left)), key=lambda i: left[i])
    for done, i in enumerate(order):
        going = len(order) - done
        if free + released - left[i] * going <= SIMULATION_RESERVE * going:
            return False
        released += occupied[i]
    return True
