"""Faults of one line each that somebody could make in the cache, and in what the scheduler does with it. The tests must
catch every one of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """In `file`, the text `line`, which stands there once, becomes `instead`."""

    name: str
    file: str
    line: str
    instead: str


FAULTS = [
    Fault(
        "what the host reads is not locked while the device makes room",
        "cache/host.py",
        "        receipt = tree.lock(node_id)",
        "        receipt = tree.lock(tree.root.id)",
    ),
    Fault(
        "a window comes back without its first tokens",
        "cache/tier.py",
        "        start = max(path.live_from, end - self.sliding.tail, 0)",
        "        start = max(path.live_from, end - self.sliding.tail, 0) + self.pools.page_size",
    ),
    Fault(
        "what the device evicts is not stored",
        "cache/cache.py",
        "            self.tree.departure = device.path",
        "            self.tree.departure = None",
    ),
    Fault(
        "the host forgets the order of copies",
        "cache/host.py",
        "        copies, self._copies = self._copies, []",
        "        copies, self._copies = self._copies[::-1], []",
    ),
    Fault(
        "a host page is never given back",
        "cache/pools.py",
        """            self.full.free(pages_of(frees["full"], self.page_size))""",
        """            self.full.free(pages_of(frees["full"], self.page_size)[1:])""",
    ),
    Fault(
        "the end of a conversation keeps the rank of the whole",
        "cache/tree.py",
        "        self.full.victims.renew(lower)",
        "        pass",
    ),
    Fault(
        "an end that went makes the next one go",
        "cache/eviction.py",
        "return (int(node.start < node.deepest - slack), node.stamps[FULL])",
        "return (int(node.start < node.stop - slack), node.stamps[FULL])",
    ),
    Fault(
        "a hit is not locked",
        "cache/cache.py",
        "receipt = self.tree.lock(match.node_id)",
        "receipt = self.tree.lock(self.tree.root.id)",
    ),
    Fault(
        "evicting the window inside leaves the state",
        "cache/tree.py",
        "if whole or other.cascade <= component.cascade:",
        "if whole or other is component:",
    ),
    Fault(
        "evicting a state inside takes the window",
        "cache/recurrent.py",
        "    cascade = 0",
        "    cascade = 1",
    ),
    Fault(
        "a leaf outlives its window",
        "cache/tree.py",
        "whole = not node.children and not node.locks[FULL]",
        "whole = component is self.full",
    ),
    Fault(
        "a tombstone is filled in name only",
        "cache/sliding.py",
        "            actions.move(self.name, slots, kept)",
        "            pass",
    ),
    Fault(
        "a split gives the upper part the lower part's window",
        "cache/sliding.py",
        "upper.values[index], lower.values[index] = upper.values[FULL], lower.values[FULL]",
        "upper.values[index] = upper.values[FULL]",
    ),
    Fault(
        "a split loses the lock on the upper part of a window",
        "cache/sliding.py",
        "        upper.locks[index] = lower.locks[index]",
        "        pass",
    ),
    Fault(
        "a window lacks its first token",
        "cache/sliding.py",
        "self.reach = max(window - 1, 1)",
        "self.reach = max(window - 2, 1)",
    ),
    Fault(
        "a tombstone does not interrupt a window",
        "cache/sliding.py",
        "if node.values[self._index] is not None else 0",
        "if node.values[self._index] is not None else self._run",
    ),
    Fault(
        "twins are freed while a late step reads them",
        "cache/cache.py",
        "- np.int32(self.sliding.reach) - size, 0)",
        "- np.int32(self.sliding.reach) + size, 0)",
    ),
    Fault(
        "a state stands for the middle of its node",
        "cache/recurrent.py",
        "node.values[index] is not None and count == node.length",
        "node.values[index] is not None",
    ),
    Fault(
        "the state that a row starts from is not pinned",
        "cache/recurrent.py",
        "        if node.parent is not None:\n            yield node",
        "        yield from ()",
    ),
    Fault(
        "a state that saw a late token is donated",
        "cache/state_pool.py",
        "fits = shared < at <= length or at == length",
        "fits = shared < at",
    ),
    Fault(
        "a snapshot beyond what counts is donated",
        "cache/state_pool.py",
        "usable = [stop for stop in sorted(kept) if stop <= min(length, at)]",
        "usable = sorted(kept)",
    ),
    Fault(
        "a snapshot is wanted where a row that drafts may have been already",
        "cache/state_pool.py",
        "farthest = self.rows.stops[rows] + self.rows.slack[rows]",
        "farthest = self.rows.stops[rows]",
    ),
    Fault(
        "a snapshot is believed taken by the step that may take it",
        "cache/state_pool.py",
        "free = state.landmarks[rows] <= state.stops[rows]",
        "free = state.landmarks[rows] <= starts",
    ),
    Fault(
        "a new sequence starts from what lay there before",
        "cache/state_pool.py",
        "zero=state.working[new[state.source[new] == 0]],",
        "zero=state.working[new[:0]],",
    ),
    Fault(
        "the newest snapshot gives way, not the oldest",
        "cache/state_pool.py",
        "slot = kept.pop(min(kept))",
        "slot = kept.pop(max(kept))",
    ),
    Fault(
        "rows lose all snapshots where one would do",
        "cache/state_pool.py",
        "for stop, row in held[:count]:",
        "for stop, row in held:",
    ),
    Fault(
        "a second state of one end is lost",
        "cache/recurrent.py",
        "            actions.free(self.name, np.array([slot], np.int32))",
        "            pass",
    ),
    Fault(
        "a bound path loses the state where sequences part",
        "cache/recurrent.py",
        "held is not end and len(held.children) == 1 and",
        "held is not end and",
    ),
    Fault(
        "a fresh state is the first to go",
        "cache/recurrent.py",
        "        node.stamps[self.index] = self.now",
        "        node.stamps[self.index] = 0",
    ),
    Fault(
        "a missing state is looked for off the grid",
        "cache/cache.py",
        "branch = known - known % step",
        "branch = known",
    ),
    Fault(
        "a row goes on reading slots that it gave back as duplicates",
        "cache/cache.py",
        "            self.rows.write(row, start + int(differs[0]), slots[differs[0] : differs[-1] + 1])",
        "            pass",
    ),
    Fault(
        "duplicates are kept by nobody",
        "cache/full.py",
        "        actions.free(self.name, arrival.slots[node.start : node.stop])",
        "        pass",
    ),
    Fault(
        "a namespace is forgotten when a branch grows",
        "cache/walk.py",
        "    return page if at else (namespace, page)",
        "    return page if at else ((None, None), page)",
    ),
    Fault(
        "half a page is matched",
        "cache/key.py",
        "    return first - first % page_size",
        "    return first",
    ),
    Fault(
        "unlocking offers no victim",
        "cache/component.py",
        "                self.victims.offer(pinned)",
        "                pass",
    ),
    Fault(
        "a removed leaf's parent is no candidate",
        "cache/tree.py",
        "            component.victims.offer(parent)",
        "            pass",
    ),
    Fault(
        "a prompt runs over the state that is missing",
        "scheduler/cuts.py",
        "return branch if start < branch < stop else stop",
        "return stop",
    ),
    Fault(
        "chunks end on a page rather than where a snapshot is due",
        "scheduler/cuts.py",
        "for step in (self.interval, self.grid, self.page):",
        "for step in (self.page,):",
    ),
    Fault(
        "more are admitted than there are states",
        "scheduler/admission.py",
        "            and self._states < free.states\n",
        "",
    ),
    Fault(
        "prompts wait for a beginning that no hit can end in",
        "scheduler/prefill.py",
        "Beginnings(least=least, step=self._cuts.grid)",
        "Beginnings(least=least, step=self._page)",
    ),
    Fault(
        "the states of a step are said to end before its tokens",
        "scheduler/parts.py",
        "cache.take_state_writes(one.rows, one.starts + one.widths)",
        "cache.take_state_writes(one.rows, one.starts)",
    ),
    Fault(
        "what is to be written is not locked",
        "cache/host.py",
        "        receipt = self.tier.tree.lock(match.node_id)",
        "        receipt = self.tier.tree.lock(self.tier.tree.root.id)",
    ),
    Fault(
        "files are written before the copy is done",
        "cache/host.py",
        "            self._in_flight.append((taken.number, self._keeps))",
        "            self._in_flight.append((0, self._keeps))",
    ),
    Fault(
        "a step reads what is still on its way to the device",
        "cache/crossings.py",
        "numbers = [_last(self._fills, reads), _last(self._fills, writes)",
        "numbers = [_last(self._fills, writes)",
    ),
    Fault(
        "a step overwrites what is still on its way to the device",
        "cache/crossings.py",
        "_last(self._fills, reads), _last(self._fills, writes)",
        "_last(self._fills, reads)",
    ),
    Fault(
        "a step overwrites what the host has not got yet",
        "cache/crossings.py",
        ", _last(self._reads, writes)]",
        "]",
    ),
    Fault(
        "the windows that a step reads are not waited for",
        "cache/crossings.py",
        """        touched["sliding"] = sliding_pool.of(slots)""",
        """        touched["sliding"] = sliding_pool.of(slots[:0])""",
    ),
    Fault(
        "the states that a step starts from are not waited for",
        "cache/crossings.py",
        """        touched["recurrent"] = states""",
        """        touched["recurrent"] = states[:0]""",
    ),
    Fault(
        "what leads to a block has gone meanwhile, and is not missed",
        "cache/host.py",
        "        if tree.measure(key, stop) == stop or tree.reaches(key, stop)[FULL] < fetch.begin:",
        "        if tree.measure(key, stop) == stop:",
    ),
    Fault(
        "the lock of what is written stays",
        "cache/host.py",
        "            self._unlock(self.storage.written())",
        "            list(self.storage.written())",
    ),
    Fault(
        "a salt is no part of a file's name",
        "cache/blocks.py",
        "    return _digest(fingerprint + json.dumps(namespace).encode())",
        "    return _digest(fingerprint)",
    ),
    Fault(
        "a file is named by its own tokens alone",
        "cache/blocks.py",
        "    return Block(parent, _digest(parent.encode() + own), start, stop)",
        "    return Block(parent, _digest(own), start, stop)",
    ),
    Fault(
        "a hit ends where no window or state is",
        "cache/storage.py",
        """            if not ends or self.files.has(f"{following.name}.end"):""",
        """            if blocks:""",
    ),
    Fault(
        "a window or state is used before all that leads there",
        "cache/fetch.py",
        "        return num_read if not self.ends or (num_read == len(self.blocks) and self.end is not None) else 0",
        "        return num_read",
    ),
    Fault(
        "a window comes back shifted by a page",
        "cache/fetch.py",
        "        self._window_start = stop - num_window",
        "        self._window_start = stop - num_window - 1",
    ),
    Fault(
        "a file is believed unread",
        "cache/block_files.py",
        "        if whole[:CHECK_BYTES] != _check(name, content):",
        "        if len(whole) < CHECK_BYTES:",
    ),
    Fault(
        "a file appears before it is whole",
        "cache/block_files.py",
        """        partial = self._folder / f"{TEMPORARY}{os.getpid()}-{next(self._serial)}\"""",
        "        partial = self._folder / name",
    ),
]
