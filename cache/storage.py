"""The third tier: what host memory held is in files too, for later, and for the next start."""

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from corymb.cache.block_files import BlockFiles
from corymb.cache.blocks import Block, block, chain, root
from corymb.cache.fetch import Fetch, Fetched, SlotBytes
from corymb.cache.key import TOKEN_BYTES, Int32, Key, Namespace
from corymb.cache.tree import Receipt
from corymb.cache.writes import PoolName, Rows

POOLS: tuple[PoolName, ...] = ("full", "sliding", "recurrent")
BLOCK_TOKENS = 256  # of a file, and the least that is worth reading one
MOST_WRITES = 64  # sequences that wait to be written: they hold their slots on the host
MOST_FETCHES = 8  # requests with contents read, or being read, at once


@dataclass(frozen=True, slots=True)
class Keep:
    """A sequence on the host to be written, and the lock under which its slots stay as they are."""

    namespace: Namespace
    tokens: bytes
    slots: Int32  # of the full pool, one a token
    window: Int32  # of the sliding pool, those of the last tokens; none where the model has no such pool
    state: Int32  # one, or none where the model has no states
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """What the files take, and what was moved since the start, by direction: stored or loaded."""

    used_bytes: int
    max_bytes: int
    num_bytes: dict[str, int]
    seconds: dict[str, float]
    failures: dict[str, int]


class Storage:
    """Owns the files and a thread each to write and to read them. Reads the host's pools in the slots that a `Keep`
    holds; all else is the scheduler's thread's.

    A sequence lies there in blocks: `.full` files with what the full pool keeps of their tokens, and, for models with
    windows or states, `.end` files with what a sequence needs besides that goes on from the block's end.
    """

    def __init__(
        self,
        files: BlockFiles,
        pools: Mapping[PoolName, Rows],
        fingerprint: bytes,
        *,
        page_size: int,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        """`pools`: the host's memory; a name that is not there keeps nothing. `fingerprint`: of all that contents
        depend on besides tokens and namespace."""
        self.files = files
        self._pools = pools
        self._fingerprint = fingerprint
        self._page_size = page_size
        self.block_tokens = -(-block_tokens // page_size) * page_size
        sizes = {name: pools[name].shape[1] if name in pools else 0 for name in POOLS}
        self._sizes = SlotBytes(**sizes)
        self._writer = ThreadPoolExecutor(1, "storage-writes")
        self._reader = ThreadPoolExecutor(1, "storage-reads")
        self._writes: deque[tuple[Keep, Future[None]]] = deque()
        self._num_fetches = 0
        self.num_skipped = 0  # sequences that were not written, because too many waited

    @property
    def num_writing(self) -> int:
        """Sequences that wait to be written, or whose locks nobody has taken back yet."""
        return len(self._writes)

    def usage(self) -> StorageUsage:
        """A snapshot. Sequences that were not written because too many waited count as failures."""
        files, traffic = self.files, self.files.traffic
        failures = {"stored": traffic.failures["stored"] + self.num_skipped, "loaded": traffic.failures["loaded"]}
        return StorageUsage(files.used_bytes, files.max_bytes, {**traffic.num_bytes}, {**traffic.seconds}, failures)

    # ── out ──

    def write(self, keep: Keep) -> bool:
        """Has a sequence written, whose slots hold their contents by now. False: too many wait, and it is not."""
        if len(self._writes) >= MOST_WRITES:
            self.num_skipped += 1
            return False
        self._writes.append((keep, self._writer.submit(self._write, keep)))
        return True

    def written(self) -> Iterator[Receipt]:
        """Yields the locks of sequences that are written, once. Raises what writing raised."""
        while self._writes and self._writes[0][1].done():
            keep, future = self._writes.popleft()
            future.result()
            yield keep.receipt

    def locks(self) -> set[int]:
        """Serials of the receipts that it has not given back."""
        return {keep.receipt.serial for keep, _ in self._writes}

    def drain(self) -> Iterator[Receipt]:
        """Yields all locks: what is not being written yet never will be."""
        for keep, future in self._writes:
            if not future.cancel():
                future.result()
            yield keep.receipt
        self._writes.clear()

    def _write(self, keep: Keep) -> None:
        # Last block first: the files that the others follow are the youngest, and go last.
        blocks = chain(root(self._fingerprint, keep.namespace), keep.tokens, self.block_tokens)[::-1]
        ending = f"{blocks[0].name}.end"
        if (len(keep.window) or len(keep.state)) and not self._has(ending):
            self.files.write(ending, self._content("sliding", keep.window) + self._content("recurrent", keep.state))
        for each in blocks:
            name = f"{each.name}.full"
            if not self._has(name):
                self.files.write(name, self._content("full", keep.slots[each.start : each.stop]))

    def _has(self, name: str) -> bool:
        self.files.touch([name])
        return self.files.has(name)

    def _content(self, pool: PoolName, slots: Int32) -> bytes:
        return self._pools[pool][slots].tobytes() if pool in self._pools else b""

    # ── in ──

    def find(self, key: Key, limit: int, *, known: int, ends: bool) -> Fetch:
        """What the files have of the first `limit` tokens, of which the device has `known`. `ends`: a hit needs a
        window or a state."""
        tokens = key.tokens(limit, self._page_size)
        blocks = self._deepest(root(self._fingerprint, key.namespace), tokens, ends=ends)
        begin = known - known % self.block_tokens
        wanted = [each for each in blocks if each.start >= begin]
        return Fetch(key.namespace, tokens, begin, wanted, ends)

    def _deepest(self, first: str, tokens: bytes, *, ends: bool) -> list[Block]:
        blocks: list[Block] = []
        num_usable, tail = 0, None
        parent, at, size, num_tokens = first, 0, self.block_tokens, len(tokens) // TOKEN_BYTES
        while True:
            short = self._tail(parent, tokens, at, ends=ends)
            if short is not None:
                num_usable, tail = len(blocks), short
            following = block(parent, tokens, at, min(at + size, num_tokens))
            if at + size > num_tokens or not self.files.has(f"{following.name}.full"):
                return blocks[:num_usable] + ([tail] if tail else [])
            blocks.append(following)
            if not ends or self.files.has(f"{following.name}.end"):
                num_usable, tail = len(blocks), None
            parent, at = following.digest, following.stop

    def _tail(self, parent: str, tokens: bytes, at: int, *, ends: bool) -> Block | None:
        """The longest usable block that is shorter than others and follows `parent`."""
        most = min(len(tokens) // TOKEN_BYTES - at, self.block_tokens - 1)
        for length in self.files.lengths(parent):
            if length <= most:
                short = block(parent, tokens, at, at + length)
                if all(self.files.has(f"{short.name}.{kind}") for kind in (["full", "end"] if ends else ["full"])):
                    return short
        return None

    def start(self, fetch: Fetch) -> bool:
        """Begins to read, if it has not begun; False: too many are read now."""
        if fetch.reading is None and self._num_fetches < MOST_FETCHES:
            self._num_fetches += 1
            fetch.reading = self._reader.submit(self._read, fetch)
        return fetch.reading is not None

    def fetched(self, fetch: Fetch) -> Fetched | None:
        """What is read so far; None where that is of no use yet."""
        return Fetched(fetch, self._sizes) if fetch.usable() else None

    def release(self, fetch: Fetch) -> None:
        """Nobody waits for it any more."""
        if not fetch.is_released and fetch.reading is not None:
            self._num_fetches -= 1
        fetch.is_released = True

    def _read(self, fetch: Fetch) -> None:
        names = [f"{each.name}.full" for each in fetch.blocks]
        if fetch.ends:
            last = f"{fetch.blocks[-1].name}.end"
            fetch.end = self.files.read(last)
            if fetch.end is None:
                return
            self.files.touch([last])
        for name in names:
            content = None if fetch.is_released else self.files.read(name)
            if content is None:
                break
            fetch.parts.append(content)
        self.files.touch(reversed(names))
