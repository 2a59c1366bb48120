"""The radix tree, its components, slots, leases and eviction: plain Python and numpy. Imports no sibling, nor torch.

A request's life, through `cache.Cache`:

    lease = cache.open(key, limit=len(prompt) - 1)       finds and pins the longest cached prefix, takes a row
    slots = cache.grow(rows, widths)                     reserves slots for a step's new tokens; None: retract someone
    cache.slide(rows, computed)                          gives back sliding slots behind each row's window
    cache.commit(lease, token_ids)                       between chunks: others may use what is computed
    cache.close(lease, token_ids)                        once; None keeps nothing

Device copies of the page table and of the full-to-sliding map follow `take_table_writes` and `take_sliding_writes`;
`take_state_writes` says, once a step, what becomes of recurrent states (`pass_states`: where the step drafts), and
`take_host_copies` what goes to the host's pools or comes from them, and which of that the step must wait for
(`crossings`); `copied` says what is done.

    row of the table   [0, shared) the tree's, pinned   [shared, reserved) the lease's own   [reserved, …) meaningless
    pool               free + evictable (in the tree, unlocked) + leased (in the tree and locked, or own) = total
    states of a row    one that it works in, copied from the tree or cleared before its first step; up to two snapshots

Who owns what: `Cache` the pools, rows and leases; `Tree` the nodes, named outside by number; each `Component` its part
of every node, its locks and its victims. The tree decides and returns `Actions`; the cache executes them.
A `Tier` is one memory, pools and tree: the one that requests work in, and behind it `Host`, whose tree remembers what
was copied to host memory. `Tier.receive` carries a `Path` from either into the other. `Storage` keeps in files, named
by `blocks`, what `Host` holds, and has what a `Fetch` found there read by a thread; `open` takes it to the device.
"""
