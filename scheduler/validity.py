"""Options that cannot work, alone or together."""

from corymb.scheduler.config import SchedulerConfig


def validate(config: SchedulerConfig, *, enable_prefix_cache: bool, speculates: bool = False) -> None:
    """Raises ValueError with a sentence that says what to change."""
    for sentence in (_wrong_size(config), _wrong_pair(config, enable_prefix_cache, speculates)):
        if sentence is not None:
            raise ValueError(sentence)


def _wrong_size(config: SchedulerConfig) -> str | None:
    at_least_one = {
        "--max-running-requests": config.max_running_requests,
        "--max-prefill-tokens": config.max_prefill_tokens,
        "--chunked-prefill-size": config.chunked_prefill_size,
        "test_retract_interval": config.test_retract_interval,
    }
    for name, value in at_least_one.items():
        if value is not None and value < 1:
            return f"{name} must be at least 1, got {value}."
    if config.max_queued_requests is not None and config.max_queued_requests < 0:
        return f"--max-queued-requests must be 0 or more, got {config.max_queued_requests}."
    if config.queue_timeout_s is not None and not config.queue_timeout_s > 0:
        return f"--queue-timeout must be above 0 seconds, got {config.queue_timeout_s}."
    if not 0 < config.schedule_conservativeness < float("inf"):
        return f"--schedule-conservativeness must be above 0, got {config.schedule_conservativeness}."
    if config.priority_scheduling_preemption_threshold < 0:
        return "--priority-scheduling-preemption-threshold must be 0 or more."
    if config.in_batch_prefix_threshold < -1:
        return "The in-batch prefix threshold must be -1 (off) or more."
    return None if config.overlap_depth in {0, 1} else f"The overlap depth must be 0 or 1, got {config.overlap_depth}."


def _wrong_pair(config: SchedulerConfig, enable_prefix_cache: bool, speculates: bool) -> str | None:
    if config.enable_mixed_chunk and speculates:
        return (
            "--enable-mixed-chunk does not go with --speculative-algorithm: rows that draft share no step with prompts."
        )
    policy = config.schedule_policy
    if config.enable_priority_scheduling and policy not in {"fcfs", "lof"}:
        return f"--enable-priority-scheduling works with --schedule-policy fcfs or lof, not {policy}."
    if not config.enable_priority_scheduling:
        if config.retraction_policy == "priority":
            return "--retraction-policy priority needs --enable-priority-scheduling."
        if config.schedule_low_priority_values_first:
            return "--schedule-low-priority-values-first needs --enable-priority-scheduling."
    if policy == "shortest-prefill-first" and not enable_prefix_cache:
        return "--schedule-policy shortest-prefill-first needs the radix cache; leave out --disable-radix-cache."
    return None
