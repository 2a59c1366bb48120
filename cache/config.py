"""The cache's part of the server's configuration."""

from typing import Literal

import msgspec

Eviction = Literal["lru", "lfu", "slru", "priority"]


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in tokens are multiples of `page_size`. Page 0 of every pool is reserved as the target of padded writes."""

    num_full_tokens: int
    num_sliding_tokens: int = 0  # 0: the model has no sliding-window layers
    sliding_window: int = 0  # tokens, the current one included
    page_size: int = 1
    num_rows: int = 257  # rows of the request table; row 0 is reserved for padding
    context_length: int = 8192  # columns of the request table
    eviction: Eviction = "lru"
    enable_prefix_cache: bool = True
