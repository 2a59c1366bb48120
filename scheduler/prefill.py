"""The known tokens' share of a step: the chunk in progress, then whom the queue sends."""

from collections.abc import Sequence

import numpy as np

from corymb.scheduler.admission import NO_LIMIT, OUTPUT_CLIP, Budget, ceil_page
from corymb.scheduler.beginnings import Beginnings
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.cuts import Cuts, stop_at
from corymb.scheduler.intake import Intake, Round
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.lineup import Arranged, Lineup
from corymb.scheduler.order import cap_chunk
from corymb.scheduler.parts import Part, Piece, prefill_part
from corymb.scheduler.ratio import NewTokenRatio
from corymb.scheduler.request import Request
from corymb.scheduler.tally import Tally

RETRY_STEPS = 32  # the ratio falls as steps pass, so a queue that did not fit is looked at again


class Prefill:
    """Gathers pieces of prompts, and of what retracted requests had produced."""

    def __init__(
        self,
        ledger: Ledger,
        config: SchedulerConfig,
        *,
        lineup: Lineup,
        intake: Intake,
        ratio: NewTokenRatio,
        tally: Tally,
    ) -> None:
        """`intake` admits in the order of `lineup`."""
        self._ledger = ledger
        self._config = config
        self._lineup = lineup
        self._intake = intake
        self._ratio = ratio
        self._tally = tally
        self._cuts = Cuts.of(ledger.cache.config)
        self._page = ledger.cache.config.page_size
        self._window = ledger.cache.config.sliding_window if ledger.cache.config.num_sliding_tokens else 0
        self._most = self._most_at_once()
        size = config.chunked_prefill_size
        # A chunk ends a page, so one that is smaller than a page would never end.
        self._chunk_size = None if size is None else ceil_page(min(size, config.max_prefill_tokens), self._page)

    def gather(self, step: int, *, num_decode: int, may_admit: bool) -> list[Piece]:
        """The step's pieces, slots reserved. `num_decode`: rows that decode in the same step."""
        if self._ledger.chunk is None and not (may_admit and self._may_try(step)):
            return []
        now = Round(step, self._budget(num_decode), self._beginnings())
        arranged: Arranged | None = None
        pieces = []
        if self._ledger.chunk is not None:
            if self._config.schedule_policy == "shortest-prefill-first" and len(self._ledger.queue):
                arranged = self._arrange()
            piece = self._continue_chunk(self._ledger.chunk, now.budget, arranged)
            if piece is None:
                return []  # nobody may overtake it to the memory that it waits for
            now.beginnings.add(piece.request.key)
            pieces.append(piece)
        if may_admit and self._may_try(step):
            arranged = arranged or self._arrange()
            pieces += self._intake.admit(arranged.requests, now)
        return pieces

    def part(self, pieces: Sequence[Piece]) -> Part:
        """Plans the pieces; requests whose last known token is among them run from the next step on."""
        part = prefill_part(pieces, self._ledger.rows)
        for piece in pieces:
            self._ledger.rows.computed[piece.row] = piece.start + piece.width
            self._tally.num_prefill_tokens += piece.width
            if piece.opened is not None:
                self._tally.num_cached_tokens += piece.start
                self._count_hits(piece.request)
            if piece.is_last:
                self._ledger.run(piece.request)
            else:
                self._ledger.cut(piece.request)
        self._ledger.rows.outputs[part.rows[part.samples]] += 1
        return part

    def _count_hits(self, request: Request) -> None:
        assert request.lease is not None
        self._tally.hit_tokens.update(request.lease.reaches)

    def _may_try(self, step: int) -> bool:
        if not len(self._ledger.queue):
            return False
        full_since = self._ledger.full_since
        return full_since is None or step - full_since >= RETRY_STEPS or not self._ledger.num_seated

    def _arrange(self) -> Arranged:
        running = [each.routing_key for each in self._ledger.running]
        return self._lineup.arrange(list(self._ledger.queue), running, self._tally.num_prefill_tokens)

    def _beginnings(self) -> Beginnings:
        finds = self._ledger.cache.config.enable_prefix_cache and not self._config.test_force_cache_miss
        least = self._config.in_batch_prefix_threshold if finds else -1
        return Beginnings(least=least, step=self._cuts.grid)

    def _budget(self, num_decode: int) -> Budget:
        chunk = None if self._chunk_size is None else max(self._chunk_size - num_decode, self._page)
        prefill = max(self._config.max_prefill_tokens - num_decode, self._page)
        budget = Budget(cuts=self._cuts, chunk=chunk, prefill=prefill, window=self._window, most=self._most)
        running = self._ledger.running
        growth = running.sliding_growth(self._window) if self._window else 0
        budget.reserve(full=running.output_room() * self._ratio.value, sliding=growth)
        return budget

    def _continue_chunk(self, request: Request, budget: Budget, arranged: Arranged | None) -> Piece | None:
        assert request.lease is not None
        row = request.lease.row
        start = int(self._ledger.rows.computed[row])
        left = len(request.token_ids) - start
        width = self._chunk_width(start, left, budget, arranged)
        width = stop_at(request.lease.branch, start, start + width) - start
        rows = np.array([row], np.int32)
        if self._window:
            self._ledger.cache.slide(rows, np.array([start], np.int32))
        slots = self._ledger.cache.grow(rows, np.array([width], np.int32))
        while slots is None:
            # Others will give memory back, so a chunk that does not fit now waits; alone, it can only shrink.
            width = self._cuts.narrower(start, width) if self._ledger.num_seated == 1 else 0
            if width == 0:
                break
            slots = self._ledger.cache.grow(rows, np.array([width], np.int32))
        if slots is None:
            if self._ledger.num_seated == 1:
                self._ledger.give_up(request, len(request.token_ids))
            return None
        room = min(request.sampling.max_new_tokens - len(request.output_ids), OUTPUT_CLIP)
        budget.continue_chunk(width, left=left - width, output_room=room)
        return Piece(request, row, start, width, slots, None)

    def _chunk_width(self, start: int, left: int, budget: Budget, arranged: Arranged | None) -> int:
        limit = self._most if budget.chunk_left is None else min(budget.chunk_left, self._most)
        if arranged is not None and arranged.uncached is not None:
            limit = cap_chunk(left, limit, self._page, arranged.uncached)
        return left if left <= limit else self._cuts.floor(start, start + limit) - start

    def _most_at_once(self) -> int:
        """New tokens of one request that a step can hold in the sliding pool when nobody else runs: beside them stand
        the window before them and, until that many tokens have been added, what its prefix pins in the tree."""
        if not self._window:
            return NO_LIMIT
        total = self._ledger.cache.usage()["sliding"].total
        return max((total - 2 * self._window) // self._page - 3, 1) * self._page
