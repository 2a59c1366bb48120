"""The cache as the scheduler sees it: executes what the tree decides, and owns pools and request table."""

import math
from dataclasses import replace

import numpy as np

from corymb.cache.actions import Actions
from corymb.cache.check import check_cache
from corymb.cache.component import Arrival, Component
from corymb.cache.config import CacheConfig, validate
from corymb.cache.crossings import touched_by
from corymb.cache.eviction import order_of
from corymb.cache.fetch import Fetch
from corymb.cache.host import Host
from corymb.cache.index import Index
from corymb.cache.key import Key
from corymb.cache.lease import Lease
from corymb.cache.picture import TreePicture, picture
from corymb.cache.pools import Pools
from corymb.cache.recurrent import Recurrent
from corymb.cache.rows import Rows
from corymb.cache.sliding import Sliding
from corymb.cache.sliding_pool import SlidingPool
from corymb.cache.slots import Int32, Slots
from corymb.cache.state_pool import StatePool
from corymb.cache.storage import Storage
from corymb.cache.tier import Tier
from corymb.cache.tree import Match, Tree
from corymb.cache.usage import Available, ComponentUsage, PoolUsage, available, component_usage, pool_usage
from corymb.cache.writes import HostCopies, SlidingWrites, StateWrites, TableWrites


class Cache:
    """Owns the tree, the pools and the request table. Leases borrow from all three and each is closed once.

    All of it is host memory: device copies follow through `take_table_writes`, `take_sliding_writes` and
    `take_state_writes`. A freed slot may be handed out at once: the device works in the order of plans, and a plan says
    which copies between device and host it must come behind.
    """

    def __init__(self, config: CacheConfig, storage: Storage | None = None) -> None:
        """`storage`: a third tier, behind the host's."""
        validate(config)
        self.config = config
        page_size = config.page_size
        self.rows = Rows(config.num_rows, config.context_length, page_size)
        self.full = Slots(config.num_full_tokens, page_size)
        self.sliding: Sliding | None = None
        self.sliding_pool: SlidingPool | None = None
        self.recurrent: Recurrent | None = None
        self.state_pool: StatePool | None = None
        auxiliary: list[Component] = []
        if config.num_sliding_tokens:
            self.sliding = Sliding(1, config.sliding_window, page_size)
            self.sliding_pool = SlidingPool(config.num_sliding_tokens, page_size, self.full.num_pages)
            auxiliary.append(self.sliding)
        if config.num_states:
            self.recurrent = Recurrent(len(auxiliary) + 1, config.max_states_per_path)
            self.state_pool = StatePool(config.num_states, config.num_rows, config.state_interval, page_size)
            auxiliary.append(self.recurrent)
        if config.has_index:
            auxiliary.append(Index(len(auxiliary) + 1))
        self.tree = Tree(page_size, order_of(config.eviction, config.eviction_slack), auxiliary)
        self._pools = Pools(self.full, self.sliding_pool, self.state_pool.slots if self.state_pool else None)
        self.host = self._make_host(storage)
        self.leases: dict[int, Lease] = {}  # by row
        self.pins_sliding = np.zeros(config.num_rows, np.bool_)  # rows whose receipt still locks sliding state

    def _make_host(self, storage: Storage | None) -> Host | None:
        if self.config.host is None:
            assert storage is None, "storage keeps what the host holds"
            return None
        device = Tier(self.tree, self._pools, sliding=self.sliding, recurrent=self.recurrent, execute=self.execute)
        host = Host(self.config, self.config.host, device, storage)
        if host.stores_departures:
            self.tree.departure = device.path
        return host

    @property
    def table(self) -> Int32:
        """The page table, [num_rows, context_length] of full slots. Row 0 is padding."""
        return self.rows.table

    @property
    def num_free_rows(self) -> int:
        """Leases that could be opened now."""
        return len(self.rows.free)

    def match(self, key: Key, limit: int) -> int:
        """Returns how many of the first `limit` tokens the device has now. Leaves no trace."""
        return self.tree.measure(key, self._usable(limit))

    def promise(self, key: Key, limit: int) -> int:
        """Returns how many of the first `limit` tokens `open` would find now, with what it would load from the host,
        where that fits. Leaves no trace."""
        on_host = self.host.tier.tree.measure(key, self._usable(limit)) if self.host else 0
        return max(self.match(key, limit), on_host)

    def open(self, key: Key, limit: int, *, priority: int = 0, fetch: Fetch | None = None) -> Lease | None:
        """Takes a row that starts with the longest cached prefix of the first `limit` tokens; None when no row is free.
        `fetch`: what of it is being read from storage, as far as that has come.
        Pass the prompt's length - 1 at most: its last token must be computed, for its logits."""
        if not self.rows.free:
            return None
        self._bring(key, limit, fetch)
        match = self.tree.match(key, self._usable(limit))
        receipt = self.tree.lock(match.node_id)
        row = self.rows.open(match.slots)
        lease = Lease(self, row, receipt, namespace=key.namespace, priority=priority)
        lease.reaches = {each.name: reach for each, reach in zip(self.tree.components, match.reaches, strict=True)}
        self.leases[row] = lease
        self.pins_sliding[row] = match.num_tokens > 0
        self._open_state(lease, match, key, limit)
        return lease

    def send_for(self, key: Key, limit: int, fetch: Fetch | None) -> int:
        """Has the device get what `open` would bring there, while others compute. Returns the number of its copies; 0:
        there is nothing to bring, or no room."""
        self._bring(key, limit, fetch)
        return self.host.crossings.next_fill if self.host else 0

    def has_come(self, number: int) -> bool:
        """Whether the copies of this number are known to be done."""
        return self.host is None or self.host.crossings.num_done >= number

    def is_coming(self, key: Key, limit: int) -> bool:
        """Whether some of what `open` would find is still on its way to the device."""
        if self.host is None or not self.host.crossings.any_filling:
            return False
        match = self.tree.peek(key, self._usable(limit))
        state = self.tree.value(match.node_id, self.recurrent) if self.recurrent else None
        return self.host.crossings.before(touched_by(match.slots, state, self.sliding_pool), {}) > 0

    def find_stored(self, key: Key, limit: int) -> Fetch | None:
        """What storage has of the first `limit` tokens beyond what `open` would find now; None where that is not worth
        reading."""
        return self.host.find(key, self._usable(limit)) if self.host else None

    def expect(self, lease: Lease, branch: int) -> None:
        """Has the lease leave a state after `branch` tokens, if a step of it ends there: somebody waits for one."""
        if self.state_pool:
            lease.branch = branch
            self.state_pool.rows.branches[lease.row] = branch

    def grow(self, rows: Int32, widths: Int32) -> Int32 | None:
        """Reserves the next `widths` slots of each of these different rows, and a state for rows that have none yet,
        evicting what that takes, and returns the slots flat in row order; None, and nothing has changed, when a pool
        cannot hold them."""
        assert (self.rows.reserved[rows] + widths <= self.config.context_length).all(), "a row outgrows the table"
        num_pages = self.rows.num_new_pages(rows, widths)
        num_states = self.state_pool.num_missing(rows) if self.state_pool else 0
        if not self._make_room(num_pages * self.config.page_size, num_states):
            return None
        if self.state_pool:
            self.state_pool.seat(rows)
        pages = self.full.allocate(num_pages)
        if self.sliding_pool:
            self.sliding_pool.pair(pages)
        return self.rows.extend(rows, widths, pages)

    def commit(self, lease: Lease, token_ids: Int32) -> None:
        """Puts what an unfinished request has computed, all of `token_ids`, into the tree. The row goes over to the
        tree's slots where others were faster, and the lock moves to the new end."""
        if lease.closed:
            raise ValueError(f"the lease of row {lease.row} is closed already")
        row, start = lease.row, int(self.rows.shared[lease.row])
        if not self.config.enable_prefix_cache or len(token_ids) < start + self.config.page_size:
            return
        assert not (self.state_pool and self.state_pool.rows.is_new[row]), "its state is not copied yet"
        node_id, num_tokens = self._insert(lease, token_ids, finished=False)
        slots = self.tree.slots(node_id, start)
        differs = np.flatnonzero(slots != self.table[row, start:num_tokens])
        if len(differs):
            self.rows.write(row, start + int(differs[0]), slots[differs[0] : differs[-1] + 1])
        self.rows.shared[row] = num_tokens
        receipt = self.tree.lock(node_id)
        self.tree.unlock(lease.receipt)
        lease.receipt = receipt
        self.pins_sliding[row] = True
        self._unpin_state(row)

    def close(self, lease: Lease, token_ids: Int32 | None) -> None:
        """Ends a lease. `token_ids` is what has been computed and may stay; with None nothing of its own is kept."""
        if lease.closed:
            raise ValueError(f"the lease of row {lease.row} is closed already")
        row, kept = lease.row, 0
        if token_ids is not None and self.config.enable_prefix_cache:
            _, kept = self._insert(lease, token_ids, finished=True)
        self._free_own(row, kept)
        if self.state_pool:
            self.state_pool.close(row)
        self.tree.unlock(lease.receipt)
        self.rows.close(row)
        self.pins_sliding[row] = False
        del self.leases[row]
        lease.closed = True

    def slide(self, rows: Int32, computed: Int32) -> None:
        """Frees the sliding slots that no query at position `computed` of its row or later reads. One page and one
        token more stay, so that what the row inserts ends in a whole window even if its last step is late."""
        if self.sliding is None or self.sliding_pool is None:
            return
        size = np.int32(self.config.page_size)
        edges = np.maximum(computed - np.int32(self.sliding.reach) - size, 0)
        edges -= edges % size
        self._unpin_passed(rows[self.pins_sliding[rows] & (edges >= self.rows.shared[rows])])
        self.sliding_pool.free(self.rows.slide(rows, edges) // size)

    def take_table_writes(self) -> TableWrites:
        """Returns the page-table entries that changed since the last call, other than by `grow`."""
        return self.rows.take_writes()

    def take_sliding_writes(self) -> SlidingWrites | None:
        """Returns the changes of the full-to-sliding map since the last call; None without a sliding pool."""
        return self.sliding_pool.take_writes() if self.sliding_pool else None

    def take_state_writes(self, rows: Int32, stops: Int32) -> StateWrites | None:
        """Plans what a step of these rows, all of which have slots up to `stops`, does to recurrent states; None where
        the model has none. Called once a step, in the order of steps. Takes snapshots where the fixed interval or a
        missing state asks for one and there is room."""
        pool = self.state_pool
        if pool is None:
            return None
        due = pool.due(rows, stops) if self.config.enable_prefix_cache else rows[:0]
        self._make_room_for_snapshots(due)
        begun = rows[pool.rows.is_new[rows]].tolist()
        writes = pool.take(rows, stops, due)
        for row in begun:
            self._unpin_state(row)
        return writes

    def pass_states(self, rows: Int32, starts: Int32, slack: Int32) -> StateWrites | None:
        """Like `take_state_writes`, for a step whose tokens may be taken back: before it its rows have seen `starts`
        tokens, or up to `slack` more, and there their states stay."""
        pool = self.state_pool
        if pool is None:
            return None
        due = pool.due_on_the_way(rows, starts, slack) if self.config.enable_prefix_cache else rows[:0]
        self._make_room_for_snapshots(due)
        return pool.pass_by(rows, starts, slack, due)

    def settle_state(self, row: int, num_accepted: int, num_drafts: int) -> None:
        """Of the drafts of a step of the row, not its last one, so many count."""
        if self.state_pool:
            self.state_pool.settle(row, num_accepted, num_drafts)

    def take_host_copies(self, slots: Int32, table: TableWrites, states: StateWrites | None) -> HostCopies:
        """Returns the copies between device and host decided since the last call. Called once a step, after all that
        can evict, with the slots of its new tokens and what else it changes."""
        if self.host is None:
            return HostCopies()
        begun, worked_in = (states.before_from, states.written) if states else (None, None)
        reads = touched_by(table.slots, begun, self.sliding_pool)
        return self.host.take_copies(reads, touched_by(slots, worked_in, self.sliding_pool))

    def take_late_copies(self) -> HostCopies | None:
        """Like `take_host_copies`, while no step is on its way. None where all copies are done."""
        return self.host.take_late_copies() if self.host else None

    def copied(self, number: int) -> None:
        """The copies taken under this number are done, and all before them."""
        if self.host:
            self.host.copied(number)

    def read(self, fetch: Fetch) -> None:
        """Has what was found in storage read, unless it is read already, or too much else is."""
        if self.host and self.host.storage:
            self.host.storage.start(fetch)

    def release(self, fetch: Fetch) -> None:
        """Nobody waits for what is read from storage any more."""
        if self.host and self.host.storage:
            self.host.storage.release(fetch)

    def available(self) -> Available:
        """Returns how many tokens `grow` could hand out now."""
        return available(self)

    def usage(self) -> dict[str, PoolUsage]:
        """Returns where each pool's tokens are."""
        return pool_usage(self)

    def components(self) -> dict[str, ComponentUsage]:
        """Returns what the tree keeps of each component."""
        return component_usage(self)

    def picture(self, max_nodes: int) -> TreePicture:
        """Returns the tree for people to look at, the nodes used last first, and as many of the host's."""
        shown = picture(self.tree, max_nodes)
        if self.host is None:
            return shown
        return replace(shown, host=picture(self.host.tier.tree, max_nodes, tier="host"))

    def flush(self) -> bool:
        """Drops everything cached; returns False, and nothing has changed, while a lease is open."""
        if self.leases:
            return False
        departure, self.tree.departure = self.tree.departure, None
        self.execute(self.tree.clear())
        self.tree.departure = departure
        if self.host:
            self.host.clear()
        return True

    def check(self) -> None:
        """Raises AssertionError when any invariant of tree, pools, rows or leases is broken."""
        check_cache(self)

    def _usable(self, limit: int) -> int:
        return min(limit, self.config.context_length) if self.config.enable_prefix_cache else 0

    def _bring(self, key: Key, limit: int, fetch: Fetch | None) -> None:
        if self.host:
            self.host.load(key, self._usable(limit))
            if fetch and limit:
                self.host.restore(fetch)

    def _open_state(self, lease: Lease, match: Match, key: Key, limit: int) -> None:
        if self.recurrent is None or self.state_pool is None:
            return
        step = math.lcm(self.config.page_size, self.config.state_grid)
        known = max(match.num_full, self.host.knows(key, self._usable(limit)) if self.host else 0)
        branch = known - known % step
        lease.branch = branch if branch > match.num_tokens else 0
        state = self.tree.value(match.node_id, self.recurrent)
        source = int(state[0]) if state is not None else 0
        self.state_pool.open(lease.row, source, start=match.num_tokens, branch=lease.branch)

    def _unpin_state(self, row: int) -> None:
        """The state that a row starts from has been copied, or was not needed."""
        if self.recurrent:
            lease = self.leases[row]
            lease.receipt = self.tree.unlock_part(lease.receipt, self.recurrent)

    def _make_room(self, num_tokens: int, num_states: int) -> bool:
        available = self.available()
        if num_tokens > min(available.full, available.sliding) or num_states > available.states:
            return False
        demand = {"full": num_tokens - self.full.num_free_tokens}
        if self.sliding_pool:
            demand["sliding"] = num_tokens - self.sliding_pool.slots.num_free_tokens
        if self.state_pool:
            demand["recurrent"] = num_states - self.state_pool.slots.num_free
        if max(demand.values()) > 0:
            self.execute(self.tree.evict(demand))
        if self.state_pool:
            # What the tree alone could not give: a row can do without its snapshots, but not without a state.
            self.state_pool.reclaim(num_states - self.state_pool.slots.num_free)
        return True

    def _make_room_for_snapshots(self, due: Int32) -> None:
        assert self.state_pool is not None
        missing = self.state_pool.num_new(due) - self.state_pool.slots.num_free
        if missing > 0:
            self.execute(self.tree.evict({"recurrent": missing}))

    def _insert(self, lease: Lease, token_ids: Int32, *, finished: bool) -> tuple[int, int]:
        """Returns the end node and how many tokens of the row now belong to the tree."""
        row = lease.row
        assert len(token_ids) <= self.rows.reserved[row], "tokens without slots cannot be computed"
        num_tokens = len(token_ids) - len(token_ids) % self.config.page_size
        shared = int(self.rows.shared[row])
        states = self.state_pool.give(row, num_tokens, shared, finished=finished) if self.state_pool else {}
        arrival = Arrival(
            key=Key(token_ids, *lease.namespace),
            slots=self.table[row, :num_tokens],
            num_shared=shared,
            finished=finished,
            priority=lease.priority,
            marks={"sliding": int(self.rows.slid[row])},
            states=states,
        )
        inserted = self.tree.insert(arrival)
        self.execute(inserted.actions)
        if self.host and finished and inserted.num_tokens:
            self.host.finished(inserted.node_id)
        return inserted.node_id, inserted.num_tokens

    def _free_own(self, row: int, start: int) -> None:
        pages = self.rows.own_slots(row, start) // np.int32(self.config.page_size)
        if self.sliding_pool:
            self.sliding_pool.free(pages)
        self.full.free(pages)

    def _unpin_passed(self, rows: Int32) -> None:
        for row in rows.tolist():
            lease = self.leases[row]
            if self.sliding:
                lease.receipt = self.tree.unlock_part(lease.receipt, self.sliding)
            self.pins_sliding[row] = False

    def execute(self, actions: Actions) -> None:
        """Does what the tree has decided."""
        if self.host:
            for path in actions.departures:
                self.host.store(path)
        self._pools.execute(actions)
