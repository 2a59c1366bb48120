"""How much of everything there is and where it is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corymb.cache.slots import Slots

if TYPE_CHECKING:
    from corymb.cache.cache import Cache


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
