"""What storage has of a sequence, on its way to the device."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from corymb.cache.blocks import Block
from corymb.cache.key import Int32, Namespace
from corymb.cache.path import Path
from corymb.cache.writes import Carried, HostCopy, Rows


@dataclass(eq=False, slots=True)
class Fetch:
    """What the files have of a sequence, and how much of it is read so far. Made by `find`, filled by a thread."""

    namespace: Namespace
    tokens: bytes
    begin: int = 0  # tokens before it are on the device
    blocks: list[Block] = field(default_factory=list)  # from `begin` on
    ends: bool = False  # the last block's end file is needed too
    parts: list[memoryview] = field(default_factory=list)
    end: memoryview | None = None
    is_released: bool = False
    reading: Future[None] | None = None

    @property
    def stop(self) -> int:
        """Where it would end, read whole; 0 where there is nothing."""
        return self.blocks[-1].stop if self.blocks else 0

    @property
    def num_read(self) -> int:
        """Where it would end now; 0 where nothing of it can be used yet."""
        count = self.usable()
        return self.blocks[count - 1].stop if count else 0

    @property
    def is_done(self) -> bool:
        """Whether no more will be read. Raises what reading raised."""
        if self.reading is None or not self.reading.done():
            return False
        self.reading.result()
        return True

    def usable(self) -> int:
        """How many blocks could be used now."""
        num_read = len(self.parts)
        return num_read if not self.ends or (num_read == len(self.blocks) and self.end is not None) else 0


@dataclass(frozen=True, slots=True)
class SlotBytes:
    """What a slot of each pool takes on the host."""

    full: int
    sliding: int
    recurrent: int


class Fetched:
    """What is read of a fetch, as a tier has it: token p of the sequence lies in slot p, and there is one state."""

    def __init__(self, fetch: Fetch, sizes: SlotBytes) -> None:
        """At least a block is usable."""
        self._blocks = list(zip(fetch.blocks[: fetch.usable()], fetch.parts, strict=False))
        self._end = fetch.end or memoryview(b"")
        self._sizes = sizes
        stop = self._blocks[-1][0].stop
        num_window = (len(self._end) - sizes.recurrent) // sizes.sliding if sizes.sliding else 0
        self._window_start = stop - num_window
        slots = np.arange(stop, dtype=np.int32)
        states = {stop: 0} if sizes.recurrent else {}
        self.path = Path(fetch.namespace, fetch.tokens, slots, self._window_start, states)

    def twins_of(self, slots: Int32) -> Int32:
        """Places in the window of these slots."""
        return slots - np.int32(self._window_start)

    def copies(self, carried: Carried) -> Iterator[HostCopy]:
        """How to get there what a tier wants of this."""
        if carried.pool == "full":
            yield from self._copies_of_tokens(carried)
        elif carried.pool == "sliding":
            window = self._end[: len(self._end) - self._sizes.recurrent]
            yield HostCopy("sliding", False, carried.source, carried.target, _rows(window, self._sizes.sliding))
        else:
            state = self._end[len(self._end) - self._sizes.recurrent :]
            yield HostCopy("recurrent", False, carried.source, carried.target, _rows(state, self._sizes.recurrent))

    def _copies_of_tokens(self, carried: Carried) -> Iterator[HostCopy]:
        for block, content in self._blocks if self._sizes.full else ():
            mine = (carried.source >= block.start) & (carried.source < block.stop)
            source = carried.source[mine] - np.int32(block.start)
            yield HostCopy("full", False, source, carried.target[mine], _rows(content, self._sizes.full))


def _rows(content: memoryview, size: int) -> Rows:
    return np.frombuffer(content, np.uint8).reshape(-1, size)
