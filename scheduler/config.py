"""The scheduler's part of the server's configuration."""

from typing import Literal

import msgspec

Order = Literal["fcfs", "lof", "random", "routing-key", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first"]


PrefetchPolicy = Literal["best_effort", "wait_complete", "timeout"]


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Resolved: no `auto` is left in it."""

    schedule_policy: Order = "fcfs"
    schedule_conservativeness: float = 1.0
    max_running_requests: int = 256
    max_queued_requests: int | None = None  # None: no bound
    queue_timeout_s: float | None = None
    max_prefill_tokens: int = 16384
    chunked_prefill_size: int | None = 2048  # None: whole prompts
    enable_mixed_chunk: bool = False
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    retraction_policy: Literal["length", "priority"] = "length"
    overlap_depth: int = 1  # 0: read each step's result before planning the next
    in_batch_prefix_threshold: int = 32  # tokens worth waiting a step for; -1 turns the in-batch prefix rule off
    hicache_storage_prefetch_policy: PrefetchPolicy | None = None  # None: timeout
    random_seed: int = 0
    # Test seams.
    test_retract_interval: int | None = None  # retract one running request every so many steps
    test_force_cache_miss: bool = False
