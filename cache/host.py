"""The second tier: what the device forgets, host memory may still have."""

from dataclasses import dataclass

from corymb.cache.component import Component
from corymb.cache.config import CacheConfig, HostConfig
from corymb.cache.eviction import FULL, lru
from corymb.cache.key import Key
from corymb.cache.path import Path
from corymb.cache.pools import Pools
from corymb.cache.recurrent import Recurrent
from corymb.cache.sliding import Sliding
from corymb.cache.sliding_pool import SlidingPool
from corymb.cache.slots import Slots
from corymb.cache.tier import Tier
from corymb.cache.tree import Tree
from corymb.cache.writes import Carried, HostCopy

USES_TO_STORE = {"write_through": 1, "write_through_selective": 2}  # finished requests through a path


@dataclass(slots=True)
class Moved:
    """Tokens, or states, by pool, since the start."""

    stored: dict[str, int]
    loaded: dict[str, int]


@dataclass(frozen=True, slots=True)
class HostUsage:
    """What the host's pools hold, by pool, and what went there and came from there."""

    total: dict[str, int]
    used: dict[str, int]
    moved: Moved
    stored_bytes: int
    loaded_bytes: int


class Host:
    """Owns pools in host memory, their tree, and the copies that no plan has taken yet.

    A copy is decided when it is needed and done in the order of decisions before the next step, so a slot of either
    side may be freed and handed out again at once, like those of steps.
    """

    def __init__(self, config: CacheConfig, sizes: HostConfig, device: Tier) -> None:
        """`device`: the tier that requests work in."""
        self._sizes = sizes
        self._device = device
        sliding = Sliding(1, config.sliding_window, config.page_size) if config.num_sliding_tokens else None
        recurrent = Recurrent(2 if sliding else 1, config.max_states_per_path) if config.num_states else None
        auxiliary: list[Component] = [each for each in (sliding, recurrent) if each is not None]
        full = Slots(sizes.num_full_tokens, config.page_size)
        twins = SlidingPool(sizes.num_sliding_tokens, config.page_size, full.num_pages) if sliding else None
        pools = Pools(full, twins, Slots(sizes.num_states, 1) if recurrent else None)
        tree = Tree(config.page_size, lru, auxiliary)
        self.tier = Tier(tree, pools, sliding=sliding, recurrent=recurrent, execute=pools.execute)
        self._copies: list[HostCopy] = []
        names = pools.free()
        self.moved = Moved(dict.fromkeys(names, 0), dict.fromkeys(names, 0))

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

    def usage(self) -> HostUsage:
        """Returns what there is and what was moved so far."""
        total = {"full": self.tier.pools.full.num_tokens}
        if self.tier.pools.sliding:
            total["sliding"] = self.tier.pools.sliding.slots.num_tokens
        if self.tier.pools.states:
            total["recurrent"] = self.tier.pools.states.num_tokens
        used = {name: total[name] - free for name, free in self.tier.pools.free().items()}
        return HostUsage(total, used, self.moved, self._bytes(self.moved.stored), self._bytes(self.moved.loaded))

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

    def take_copies(self) -> list[HostCopy]:
        """Returns the copies decided since the last call, to be done in this order."""
        copies, self._copies = self._copies, []
        return copies

    def clear(self) -> None:
        """Drops everything."""
        self.tier.execute(self.tier.tree.clear())

    def _note(self, carried: list[Carried], counts: dict[str, int], *, to_host: bool) -> None:
        for each in carried:
            counts[each.pool] += len(each.source)
            self._copies.append(HostCopy(each.pool, to_host, each.source, each.target))
