"""The second tier: what the device forgets, host memory may still have."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from corymb.cache.component import Component
from corymb.cache.config import CacheConfig, HostConfig
from corymb.cache.crossings import Crossings, Touched
from corymb.cache.eviction import FULL, lru
from corymb.cache.fetch import Fetch
from corymb.cache.key import Key
from corymb.cache.path import Path
from corymb.cache.pools import Pools
from corymb.cache.recurrent import Recurrent
from corymb.cache.sliding import Sliding
from corymb.cache.sliding_pool import SlidingPool
from corymb.cache.slots import Slots
from corymb.cache.storage import Keep, Storage, StorageUsage
from corymb.cache.tier import Tier
from corymb.cache.tree import Receipt, Tree
from corymb.cache.writes import Carried, HostCopies, HostCopy, PoolName

EMPTY = np.empty(0, np.int32)
USES_TO_STORE = {"write_through": 1, "write_through_selective": 2}  # finished requests through a path


@dataclass(slots=True)
class Moved:
    """Tokens, or states, by pool, since the start."""

    stored: dict[str, int]
    loaded: dict[str, int]
    restored: dict[str, int]  # from storage


@dataclass(frozen=True, slots=True)
class HostUsage:
    """What the host's pools hold, by pool, and what went there and came from there."""

    total: dict[str, int]
    used: dict[str, int]
    moved: Moved
    stored_bytes: int
    loaded_bytes: int
    storage: StorageUsage | None


class Host:
    """Owns pools in host memory, their tree, and the copies that no plan has taken yet.

    Copies are done in the order of decisions, and a step that reads what they bring or overwrites what they take comes
    behind them: so a slot of either side may be freed and handed out again at once, like those of steps.
    """

    def __init__(self, config: CacheConfig, sizes: HostConfig, device: Tier, storage: Storage | None) -> None:
        """`device`: the tier that requests work in; `storage`: the tier behind this one, if there is one."""
        self._sizes = sizes
        self._device = device
        self.storage = storage
        sliding = Sliding(1, config.sliding_window, config.page_size) if config.num_sliding_tokens else None
        recurrent = Recurrent(2 if sliding else 1, config.max_states_per_path) if config.num_states else None
        auxiliary: list[Component] = [each for each in (sliding, recurrent) if each is not None]
        full = Slots(sizes.num_full_tokens, config.page_size)
        twins = SlidingPool(sizes.num_sliding_tokens, config.page_size, full.num_pages) if sliding else None
        pools = Pools(full, twins, Slots(sizes.num_states, 1) if recurrent else None)
        tree = Tree(config.page_size, lru, auxiliary)
        self.tier = Tier(tree, pools, sliding=sliding, recurrent=recurrent, execute=pools.execute)
        sizes_of: dict[PoolName, int] = {
            "full": config.num_full_tokens,
            "sliding": config.num_sliding_tokens,
            "recurrent": config.num_states,
        }
        self.crossings = Crossings(sizes_of)
        self._copies: list[HostCopy] = []
        self._keeps: list[Keep] = []  # to be written when the copies decided so far are done
        self._in_flight: deque[tuple[int, list[Keep]]] = deque()  # the same, by the number of their copies
        names = pools.free()
        self.moved = Moved(*(dict.fromkeys(names, 0) for _ in range(3)))

    @property
    def stores_departures(self) -> bool:
        """Whether what the device evicts is stored then, and not before."""
        return self._sizes.policy == "write_back"

    def finished(self, node_id: int) -> None:
        """A finished request ended at this node of the device's tree: stores what was used often enough."""
        least = USES_TO_STORE.get(self._sizes.policy)
        node = self._device.tree.nodes[node_id]
        while least is not None and node.parent is not None and node.hits < least:
            node = node.parent
        if least is not None and node.parent is not None:
            self.store(self._device.path(node.id))

    def store(self, path: Path) -> None:
        """Copies a path of the device to the host, where it is not there yet and there is room."""
        carried = self.tier.receive(path, self._device.pools, stops=[*path.states])
        self._note(carried, self.moved.stored, to_host=True)
        if self.storage:
            for stop in sorted({path.num_tokens, *path.states}):
                self._keep(path.key(stop), stop)

    def _keep(self, key: Key, stop: int) -> None:
        """Has storage keep what a sequence needs that goes on from `stop`, if the host has all of it."""
        match = self.tier.tree.match(key, stop)
        if match.num_tokens < stop:
            return
        path, pools, window, state = self.tier.path(match.node_id), self.tier.pools, EMPTY, EMPTY
        if self.tier.sliding:
            start = max(stop - self.tier.sliding.tail + pools.page_size, 0)  # what the lock holds
            window = pools.twins_of(path.slots[start:])
        if self.tier.recurrent:
            state = np.array([path.states[stop]], np.int32)
        receipt = self.tier.tree.lock(match.node_id)
        self._keeps.append(Keep(key.namespace, path.tokens, path.slots, window, state, receipt))

    def load(self, key: Key, limit: int) -> None:
        """Has the device find what the host has of the first `limit` tokens, if that is more."""
        tree = self.tier.tree
        if tree.measure(key, limit) <= self._device.tree.measure(key, limit):
            return
        node_id = tree.match(key, limit).node_id
        receipt = tree.lock(node_id)
        path = self.tier.path(node_id)
        stops = [path.num_tokens] if self.tier.recurrent else []
        carried = self._device.receive(path, self.tier.pools, stops=stops)
        self._note(carried, self.moved.loaded, to_host=False)
        tree.unlock(receipt)

    def find(self, key: Key, limit: int) -> Fetch | None:
        """What storage has of the first `limit` tokens beyond what is at hand; None without storage."""
        if self.storage is None:
            return None
        known = max(self._device.tree.measure(key, limit), self.tier.tree.measure(key, limit))
        reach = self._device.tree.reaches(key, limit)[FULL]
        found = self.storage.find(key, limit, known=reach, ends=len(self.tier.tree.components) > 1)
        return found if found.stop >= known + self.storage.block_tokens else None

    def restore(self, fetch: Fetch) -> None:
        """Has the device find what has been read of a fetch, if that is more than it has."""
        fetched = self.storage.fetched(fetch) if self.storage else None
        if fetched is None:
            return
        path, tree = fetched.path, self._device.tree
        key, stop = fetched.path.key(path.num_tokens), path.num_tokens
        if tree.measure(key, stop) == stop or tree.reaches(key, stop)[FULL] < fetch.begin:
            return
        for each in self._device.receive(path, fetched, stops=[*path.states]):
            self.moved.restored[each.pool] += len(each.source)
            for copy in fetched.copies(each):
                self._decide(copy)

    def locks(self) -> set[int]:
        """Serials of the locks that are open: each is of something that is to be written to storage."""
        in_flight = [keeps for _, keeps in self._in_flight]
        waiting = {keep.receipt.serial for keeps in (self._keeps, *in_flight) for keep in keeps}
        return waiting | (self.storage.locks() if self.storage else set())

    def usage(self) -> HostUsage:
        """Returns what there is and what was moved so far."""
        total = {"full": self.tier.pools.full.num_tokens}
        if self.tier.pools.sliding:
            total["sliding"] = self.tier.pools.sliding.slots.num_tokens
        if self.tier.pools.states:
            total["recurrent"] = self.tier.pools.states.num_tokens
        used = {name: total[name] - free for name, free in self.tier.pools.free().items()}
        stored, loaded = self._bytes(self.moved.stored), self._bytes(self.moved.loaded)
        return HostUsage(total, used, self.moved, stored, loaded, self.storage.usage() if self.storage else None)

    def _bytes(self, counts: dict[str, int]) -> int:
        sizes = {
            "full": self._sizes.full_bytes,
            "sliding": self._sizes.sliding_bytes,
            "recurrent": self._sizes.state_bytes,
        }
        return sum(count * sizes[name] for name, count in counts.items())

    def knows(self, key: Key, limit: int) -> int:
        """Returns how many of the first `limit` tokens the host has, usable or not."""
        return self.tier.tree.reaches(key, limit)[FULL]

    def take_copies(self, reads: Touched, writes: Touched) -> HostCopies:
        """Returns the copies decided since the last call, and what a step must come behind that reads and writes these
        slots of the device."""
        copies, self._copies = self._copies, []
        taken = HostCopies(self.crossings.num_taken + 1, copies, self.crossings.before(reads, writes))
        self.crossings.num_taken = taken.number
        if self.storage:
            self._in_flight.append((taken.number, self._keeps))
            self._keeps = []
        self._unlock_written()
        return taken

    def take_late_copies(self) -> HostCopies | None:
        """Like `take_copies`, while no step is on its way. None where all copies are done."""
        if self._copies or self._keeps or self.crossings.num_done < self.crossings.num_taken:
            return self.take_copies({}, {})
        self._unlock_written()
        return None

    def copied(self, number: int) -> None:
        """The copies taken under this number are done, and all before them."""
        self.crossings.num_done = max(self.crossings.num_done, number)
        while self.storage and self._in_flight and self._in_flight[0][0] <= number:
            for keep in self._in_flight.popleft()[1]:
                if not self.storage.write(keep):
                    self.tier.tree.unlock(keep.receipt)

    def clear(self) -> None:
        """Drops everything but what storage has."""
        if self.storage:
            self._unlock(self.storage.drain())
            for keeps in (self._keeps, *(keeps for _, keeps in self._in_flight)):
                self._unlock(keep.receipt for keep in keeps)
                keeps.clear()
        self.tier.execute(self.tier.tree.clear())

    def _unlock_written(self) -> None:
        if self.storage:
            self._unlock(self.storage.written())

    def _unlock(self, receipts: Iterable[Receipt]) -> None:
        for receipt in receipts:
            self.tier.tree.unlock(receipt)

    def _note(self, carried: list[Carried], counts: dict[str, int], *, to_host: bool) -> None:
        for each in carried:
            counts[each.pool] += len(each.source)
            self._decide(HostCopy(each.pool, to_host, each.source, each.target))

    def _decide(self, copy: HostCopy) -> None:
        self.crossings.note(copy)
        self._copies.append(copy)
