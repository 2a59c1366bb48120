"""The cache's part of the server's configuration."""

import math
from typing import Literal

import msgspec

Eviction = Literal["lru", "lfu", "slru", "priority", "tlru"]


LEAST_STATES = 2  # one that a request works in, and one that it starts from


WritePolicy = Literal["write_through", "write_through_selective", "write_back"]


class HostConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The pools in host memory, sized like the device's: page 0 is reserved and counted."""

    num_full_tokens: int
    num_sliding_tokens: int = 0
    num_states: int = 0
    policy: WritePolicy = "write_through"
    full_bytes: int = 0  # of a token in the full pool, for metrics
    sliding_bytes: int = 0
    state_bytes: int = 0


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in tokens are multiples of `page_size`. Page 0 of every pool is reserved as the target of padded writes; it
    is counted in the pool's size, so a pool of n tokens has the slots 0 … n - 1."""

    num_full_tokens: int
    num_sliding_tokens: int = 0  # 0: the model has no sliding-window layers
    sliding_window: int = 0  # tokens, the current one included
    num_states: int = 0  # slots for recurrent states, slot 0 among them, which is padding; 0: the model has none
    state_interval: int = 256  # tokens between two snapshots of a sequence; a multiple of state_grid and page_size
    state_grid: int = 1  # prompts are cut at multiples of it: a chunked kernel gives the same bits from there on
    max_states_per_path: int | None = None
    has_index: bool = False  # full's slots hold keys of a sparse-attention index too
    page_size: int = 1
    num_rows: int = 257  # rows of the request table; row 0 is reserved for padding
    context_length: int = 8192  # columns of the request table
    eviction: Eviction = "lru"
    eviction_slack: int = 1024  # tlru: tokens that an idle conversation may lose before all of it is judged by its age
    enable_prefix_cache: bool = True
    host: HostConfig | None = None  # a second tier behind the pools; None: there is none


def validate(config: CacheConfig) -> None:
    """Raises ValueError, saying what to change, for sizes that cannot work together."""
    if config.page_size < 1:
        raise ValueError(f"page_size is {config.page_size}: it must be at least 1")
    for name, size in (("full", config.num_full_tokens), ("sliding", config.num_sliding_tokens)):
        if size % config.page_size:
            raise ValueError(f"num_{name}_tokens is {size}: make it a multiple of page_size ({config.page_size})")
    if config.num_full_tokens < 2 * config.page_size:
        raise ValueError(f"num_full_tokens is {config.num_full_tokens}: two pages are the least, one is reserved")
    if bool(config.num_sliding_tokens) != bool(config.sliding_window):
        raise ValueError("num_sliding_tokens and sliding_window go together: set both or neither")
    if config.num_states:
        _validate_states(config)
    if config.host is not None:
        _validate_host(config, config.host)
    if config.eviction_slack < 0:
        raise ValueError(f"eviction_slack is {config.eviction_slack}: it must be at least 0")
    if config.num_rows < 2:
        raise ValueError(f"num_rows is {config.num_rows}: two rows are the least, row 0 is padding")


def _validate_host(config: CacheConfig, host: HostConfig) -> None:
    if not config.enable_prefix_cache:
        raise ValueError("a second tier without a prefix cache has nothing to keep: leave one of the two out")
    pools = [("full", True, host.num_full_tokens), ("sliding", config.num_sliding_tokens > 0, host.num_sliding_tokens)]
    for name, wanted, size in pools:
        if size % config.page_size or size < 2 * config.page_size * wanted or bool(size) != wanted:
            raise ValueError(
                f"the host's num_{name}_tokens is {size}: make it whole pages of {config.page_size}, two at least, "
                "where the device has such a pool, and 0 where it has not"
            )
    if bool(host.num_states) != bool(config.num_states) or host.num_states == 1:
        raise ValueError(f"the host's num_states is {host.num_states}: two are the least, where the device has states")


def _validate_states(config: CacheConfig) -> None:
    if config.num_states < LEAST_STATES + 1:
        raise ValueError(f"num_states is {config.num_states}: {LEAST_STATES + 1} are the least, one is reserved")
    if config.state_grid < 1:
        raise ValueError(f"state_grid is {config.state_grid}: it must be at least 1")
    step = math.lcm(config.page_size, config.state_grid)
    if config.state_interval < 1 or config.state_interval % step:
        raise ValueError(
            f"state_interval is {config.state_interval}: make it a multiple of {step}, for page_size "
            f"{config.page_size} and state_grid {config.state_grid}"
        )
    if config.max_states_per_path is not None and config.max_states_per_path < 1:
        raise ValueError(f"max_states_per_path is {config.max_states_per_path}: it must be at least 1, or None")
