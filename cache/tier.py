"""One memory: pools, and the tree that says what lies in them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from corymb.cache.actions import Actions
from corymb.cache.component import Arrival
from corymb.cache.path import Path, path_to
from corymb.cache.pools import Pools
from corymb.cache.recurrent import Recurrent
from corymb.cache.sliding import Sliding
from corymb.cache.slots import Int32
from corymb.cache.tree import Tree
from corymb.cache.writes import Carried


class Source(Protocol):
    """Pools that a path is carried from."""

    def twins_of(self, slots: Int32) -> Int32:
        """The sliding slots of these full slots, which have twins."""
        ...


class Tier:
    """Takes in what another tier has. Borrows its parts: who made them executes what the tree decides."""

    def __init__(
        self,
        tree: Tree,
        pools: Pools,
        *,
        sliding: Sliding | None,
        recurrent: Recurrent | None,
        execute: Callable[[Actions], None],
    ) -> None:
        self.tree = tree
        self.pools = pools
        self.sliding = sliding
        self.recurrent = recurrent
        self.execute = execute

    def path(self, node_id: int) -> Path:
        """What is kept from the root to the end of the node."""
        sliding = self.sliding.index if self.sliding else None
        recurrent = self.recurrent.index if self.recurrent else None
        return path_to(self.tree.nodes[node_id], sliding, recurrent)

    def receive(self, path: Path, source: Source, *, stops: Sequence[int]) -> list[Carried]:
        """Takes what it lacks of a path in slots of `source`: all tokens, the last window, and the states at `stops`,
        evicting for it. Returns the copies that this needs, in pools' slots; none where there is no room."""
        num_tokens = path.num_tokens
        found = self.tree.reach(path.key(num_tokens), num_tokens)
        receipt = self.tree.lock(found.node_id)
        start = self._window(path)
        own = self.path(found.node_id).states if found.num_tokens else {}
        states = {stop: path.states[stop] for stop in stops if stop not in own}
        carried: list[Carried] = []
        if self._make_room(
            {
                "full": num_tokens - found.num_tokens + num_tokens - start,
                "sliding": num_tokens - start,
                "recurrent": len(states),
            }
        ):
            slots = self._take_tokens(path, found.slots, carried)
            if start < num_tokens:
                self._take_window(path, slots, start, source, carried)
            for stop, state in states.items():
                self._take_state(path, slots[:stop], state, carried)
        self.tree.unlock(receipt)
        return carried

    def _window(self, path: Path) -> int:
        """Where the window begins that is to be taken; the path's end for none."""
        end = path.num_tokens
        if self.sliding is None:
            return end
        start = max(path.live_from, end - self.sliding.tail, 0)
        if start > 0 and end - start < self.sliding.reach:
            return end  # a part of a window is read by nobody
        return end if self.tree.reaches(path.key(end), end)[self.sliding.index] == end else start

    def _make_room(self, demand: Mapping[str, int]) -> bool:
        free = self.pools.free()
        wanted = {each.name: demand[each.name] - free[each.name] for each in self.tree.components if each.name in free}
        if any(wanted[each.name] > each.evictable for each in self.tree.components if each.name in free):
            return False
        if max(wanted.values()) > 0:
            self.execute(self.tree.evict(wanted))
        return True

    def _take_tokens(self, path: Path, known: Int32, carried: list[Carried]) -> Int32:
        """Returns this tier's full slots of the path."""
        start, end = len(known), path.num_tokens
        if start == end:
            return known
        slots = self.pools.expand(self.pools.full.allocate((end - start) // self.pools.page_size))
        carried.append(Carried("full", path.slots[start:], slots))
        whole = np.concatenate((known, slots))
        self._insert(Arrival(path.key(end), whole, num_shared=start, finished=False, marks={"sliding": end}))
        return whole

    def _take_window(self, path: Path, slots: Int32, start: int, source: Source, carried: list[Carried]) -> None:
        """The twins come under slots of their own; the tree moves them over to those that it has."""
        twins, pools, end = self.pools.sliding, self.pools, path.num_tokens
        assert twins is not None
        self.tree.reach(path.key(start), start)  # a node ends where the arrival's own begins
        pages = pools.full.allocate((end - start) // pools.page_size)
        twins.pair(pages)
        lent = pools.expand(pages)
        carried.append(Carried("sliding", source.twins_of(path.slots[start:]), pools.twins_of(lent)))
        whole = np.concatenate((slots[:start], lent))
        self._insert(Arrival(path.key(end), whole, num_shared=start, finished=False, marks={"sliding": start}))

    def _take_state(self, path: Path, slots: Int32, state: int, carried: list[Carried]) -> None:
        states, stop = self.pools.states, len(slots)
        assert states is not None
        slot = states.allocate(1)
        carried.append(Carried("recurrent", np.array([state], np.int32), slot))
        marks = {"sliding": stop}
        arrival = Arrival(
            path.key(stop), slots, num_shared=stop, finished=False, marks=marks, states={stop: int(slot[0])}
        )
        self._insert(arrival)

    def _insert(self, arrival: Arrival) -> None:
        self.execute(self.tree.insert(arrival).actions)
