"""How much of everything there is and where it is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corymb.cache.slots import Slots

if TYPE_CHECKING:
    from corymb.cache.cache import Cache

UNBOUNDED = 1 << 60


@dataclass(frozen=True, slots=True)
class Available:
    """Tokens that `grow` could hand out now, by pool, free or evictable; and rows that it could give a state.
    UNBOUNDED where there is no such pool."""

    full: int
    sliding: int
    states: int


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """Where the usable tokens, or states, of a pool are; page 0 is not counted. total = free + evictable + leased."""

    total: int
    free: int
    evictable: int  # in the tree, unlocked
    leased: int  # in the tree and locked, or an open lease's own


@dataclass(frozen=True, slots=True)
class ComponentUsage:
    """What the tree keeps of one component, in tokens; in states for the recurrent one."""

    evictable: int
    protected: int  # locked by open leases
    num_tombstones: int  # nodes without it


def available(cache: "Cache") -> Available:
    """What is free or may go."""
    full, sliding, states = cache.full.num_free_tokens + cache.tree.full.evictable, UNBOUNDED, UNBOUNDED
    if cache.sliding and cache.sliding_pool:
        sliding = cache.sliding_pool.slots.num_free_tokens + cache.sliding.evictable
    if cache.recurrent and cache.state_pool:
        states = cache.state_pool.slots.num_free + cache.recurrent.evictable + cache.state_pool.num_kept
    return Available(full, sliding, states)


def pool_usage(cache: "Cache") -> dict[str, PoolUsage]:
    """By pool."""
    usage = {"full": _usage(cache.full, cache.tree.full.evictable)}
    if cache.sliding and cache.sliding_pool:
        usage["sliding"] = _usage(cache.sliding_pool.slots, cache.sliding.evictable)
    if cache.recurrent and cache.state_pool:
        usage["recurrent"] = _usage(cache.state_pool.slots, cache.recurrent.evictable)
    return usage


def component_usage(cache: "Cache") -> dict[str, ComponentUsage]:
    """By component."""
    num_nodes = cache.tree.num_nodes
    usage = {
        component.name: ComponentUsage(component.evictable, component.locked, num_nodes - component.num_holding)
        for component in cache.tree.components
    }
    if "index" in usage:
        usage["index"] = usage["full"]  # whose slots it lives in
    return usage


def _usage(slots: Slots, evictable: int) -> PoolUsage:
    total, free = slots.num_tokens, slots.num_free_tokens
    return PoolUsage(total, free, evictable, total - free - evictable)
