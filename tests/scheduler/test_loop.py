"""The loop: its order of work, what it sends, and that options which cannot work are refused."""

import pytest

from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.loop import IDLE_WAIT_S
from corymb.scheduler.messages import Abort
from corymb.scheduler.validity import validate

from .bench import Bench, generate


class Watch:
    """Notes when steps are launched and read."""

    def __init__(self, bench):
        self.log = []
        launch = bench.runner.launch

        def watched(plan):
            self.log.append(f"launch {plan.step}")
            return Result(launch(plan), plan.step, self.log)

        bench.runner.launch = watched


class Result:
    def __init__(self, result, step, log):
        self.result, self.step, self.log = result, step, log

    def wait(self):
        self.log.append(f"read {self.step}")
        return self.result.wait()


@pytest.mark.parametrize(
    ("depth", "log"),
    [
        (0, ["launch 0", "read 0", "launch 1", "read 1", "launch 2", "read 2"]),
        (1, ["launch 0", "launch 1", "read 0", "launch 2", "read 1", "read 2"]),
    ],
)
def test_depth_one_launches_the_next_step_before_it_reads_the_last(depth, log):
    bench = Bench(overlap_depth=depth)
    watch = Watch(bench)
    bench.send(generate("a", max_new=3, ignore_eos=True))
    bench.finish()
    assert watch.log == log


def test_an_idle_loop_listens_and_a_busy_one_does_not_wait():
    bench = Bench()
    bench.step()
    bench.send(generate("a", max_new=5, ignore_eos=True))
    bench.finish()
    bench.step()
    assert bench.port.waits[:2] == [IDLE_WAIT_S, IDLE_WAIT_S]
    assert set(bench.port.waits[2:-1]) == {0.0}
    assert bench.port.waits[-1] == IDLE_WAIT_S


def test_a_failed_forward_ends_the_loop():
    bench = Bench()
    bench.send(generate("a"))

    def fail(plan):
        raise RuntimeError("device lost")

    bench.runner.launch = fail
    with pytest.raises(RuntimeError, match="device lost"):
        bench.loop.run()


def test_run_returns_when_stopped():
    bench = Bench()
    bench.send(generate("a", max_new=3))
    receive, turns = bench.port.receive, []

    def count(timeout_s):
        turns.append(timeout_s)
        if len(turns) == 10:
            bench.loop.stop()
        return receive(timeout_s)

    bench.port.receive = count
    bench.loop.run()
    assert len(turns) == 10
    bench.check_exact("a")


def test_it_says_since_when_a_step_runs():
    bench = Bench()
    assert bench.loop.step_started_s is None
    bench.send(generate("a", max_new=4, ignore_eos=True))
    bench.step()
    assert bench.loop.step_started_s == bench.clock.now_s
    bench.finish()
    assert bench.loop.step_started_s is None


def test_a_last_snapshot_shows_that_nothing_runs():
    bench = Bench()
    bench.send(generate("a", max_new=4, ignore_eos=True), generate("b", max_new=50, ignore_eos=True))
    bench.step(6)
    bench.send(Abort("b"))
    bench.finish()
    last = bench.port.stats[-1]
    assert (last.num_running, last.num_waiting, last.pool_used) == (0, 0, {"full": 0})
    assert last.num_aborted == 1
    assert last.num_generated_tokens == len(bench.tokens("a")) + len(bench.tokens("b"))
    assert last.num_prefill_tokens + last.num_cached_tokens == 2 * len(b"hello world")


def test_snapshots_carry_each_steps_times_once():
    bench = Bench()
    bench.send(generate("a", max_new=30, ignore_eos=True))
    while not bench.scheduler.is_idle or bench.port.inbox:
        bench.step()
        bench.clock.now_s += 0.4
    assert len(bench.port.stats) > 5
    assert sum(len(stats.plan_s) for stats in bench.port.stats) == 30
    assert sum(len(stats.commit_s) for stats in bench.port.stats) == 30
    assert bench.port.stats[-1].num_steps == 30


WRONG = [
    ({"max_running_requests": 0}, "--max-running-requests"),
    ({"max_prefill_tokens": 0}, "--max-prefill-tokens"),
    ({"chunked_prefill_size": 0}, "--chunked-prefill-size"),
    ({"max_queued_requests": -1}, "--max-queued-requests"),
    ({"queue_timeout_s": 0.0}, "--queue-timeout"),
    ({"queue_timeout_s": float("nan")}, "--queue-timeout"),
    ({"schedule_conservativeness": 0.0}, "--schedule-conservativeness"),
    ({"schedule_conservativeness": float("nan")}, "--schedule-conservativeness"),
    ({"priority_scheduling_preemption_threshold": -1}, "threshold"),
    ({"in_batch_prefix_threshold": -2}, "in-batch"),
    ({"overlap_depth": 2}, "overlap depth"),
    ({"retraction_policy": "priority"}, "--enable-priority-scheduling"),
    ({"schedule_low_priority_values_first": True}, "--enable-priority-scheduling"),
    ({"enable_priority_scheduling": True, "schedule_policy": "lpm"}, "fcfs or lof"),
    ({"test_retract_interval": 0}, "test_retract_interval"),
]


@pytest.mark.parametrize(("options", "names"), WRONG)
def test_options_that_cannot_work_are_refused(options, names):
    with pytest.raises(ValueError, match=names):
        validate(SchedulerConfig(**options), enable_prefix_cache=True)


def test_the_defaults_are_valid():
    validate(SchedulerConfig(), enable_prefix_cache=True)
