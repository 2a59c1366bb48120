"""The log: standard error of all processes, one line an event."""

import logging
import time

from corymb.scheduler.messages import Stats

logger = logging.getLogger(__name__)


def set_up_logging(level: str) -> None:
    """To be called once a process."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%d %H:%M:%S"
    )


class DecodeLog:
    """Every so many steps, a line of figures; at most as often as the scheduler sends them, once a second."""

    def __init__(self, interval_steps: int) -> None:
        self._interval_steps = interval_steps
        self._last: Stats | None = None
        self._last_s = 0.0

    def take(self, stats: Stats) -> None:
        """The scheduler's latest snapshot."""
        now_s, last = time.monotonic(), self._last
        if last is not None and stats.num_steps - last.num_steps < self._interval_steps:
            return
        if last is not None:
            self._write(stats, last, now_s - self._last_s)
        self._last, self._last_s = stats, now_s

    @staticmethod
    def _write(stats: Stats, last: Stats, seconds: float) -> None:
        computed = stats.num_prefill_tokens - last.num_prefill_tokens
        cached = stats.num_cached_tokens - last.num_cached_tokens
        logger.info(
            "running %d, queued %d, token usage %.2f, %.1f tokens/s, prompt tokens %d computed, %d cached",
            stats.num_running,
            stats.num_waiting,
            max((stats.pool_used[pool] / total for pool, total in stats.pool_total.items() if total), default=0.0),
            (stats.num_generated_tokens - last.num_generated_tokens) / max(seconds, 1e-9),
            computed,
            cached,
        )
