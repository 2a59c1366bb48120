"""Ends of requests: aborts, errors, the queue's bound and time limit, an operator's orders."""

import itertools

import pytest

from corymb.scheduler.loop import IDLE_WAIT_S
from corymb.scheduler.messages import Abort, Control, Finish, TextOptions

from .bench import Bench, generate, naive

LONG = b"a prompt of some sixty tokens so that it is computed in chunks "


def ended(bench, rid):
    finish = bench.finish_of(rid)
    return finish.reason, finish.status, finish.code


# ── abort ──

WHERE = {"before the first step": 0, "chunk in progress": 2, "prompt in flight": 4, "running": 7, "running on": 11}


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", list(WHERE.values()), ids=list(WHERE))
def test_an_abort_ends_a_request_wherever_it_is(steps, depth, stopped):
    bench = Bench(chunked_prefill_size=16, overlap_depth=depth)
    bench.send(generate("gone", LONG, max_new=50, ignore_eos=True), generate("stays", b"other", max_new=20))
    bench.step(steps)
    bench.send(Abort("gone", stopped))
    bench.step()
    assert bench.finish_of("gone").reason == ("stop" if stopped else "abort")
    bench.finish()
    bench.check_exact("stays")
    bench.check_beginning("gone")
    assert bench.scheduler.stats().num_aborted == (not stopped)
    bench.check_empty()


def test_a_waiting_request_can_be_aborted():
    bench = Bench(max_running_requests=1)
    bench.send(generate("runs", max_new=5), generate("waits"))
    bench.step(2)
    bench.send(Abort("waits"))
    bench.finish()
    assert bench.of("waits")[0].finish.reason == "abort"
    bench.check_exact("runs")


def test_a_retracted_request_can_be_aborted_while_its_token_is_in_flight():
    bench = Bench(test_retract_interval=3, overlap_depth=1)
    bench.send(generate("a", max_new=50, ignore_eos=True))
    while not bench.scheduler.stats().num_retractions:
        bench.step()
    bench.send(Abort("a"))
    bench.finish()
    assert ended(bench, "a")[0] == "abort"
    bench.check_empty()


def test_an_unknown_or_finished_request_cannot_be_aborted():
    bench = Bench()
    bench.send(Abort("nobody"), generate("a"))
    bench.finish()
    bench.send(Abort("a"))
    bench.finish()
    bench.check_exact("a")
    assert bench.scheduler.stats().num_aborted == 0


@pytest.mark.parametrize(("stopped", "least"), [(True, len(LONG) + 5), (False, 0)])
def test_what_a_stop_string_ended_stays_cached(stopped, least):
    bench = Bench()
    bench.send(generate("first", LONG, max_new=50, ignore_eos=True))
    bench.step(10)
    bench.send(Abort("first", stopped))
    bench.finish()
    again = LONG + bytes(naive(bench.sent["first"]).token_ids[:20])
    bench.send(generate("second", again))
    bench.finish()
    bench.check_exact("second")
    cached = bench.of("second")[0].num_cached_tokens
    assert cached > least if stopped else cached <= len(LONG)


# ── errors ──


def test_unusable_logits_fail_one_request_alone():
    bench = Bench(broken=frozenset({ord("h")}))
    for i in range(12):
        bench.send(generate(f"r{i}", bytes([65 + i]) * 5, max_new=6, ignore_eos=True))
    bench.finish()
    broken = [rid for rid in bench.sent if ord("h") in naive(bench.sent[rid]).token_ids]
    assert 0 < len(broken) < 12
    for rid in bench.sent:
        if rid in broken:
            assert ended(bench, rid) == ("error", 500, "unusable_output")
            assert ord("h") not in bench.tokens(rid)
            bench.check_beginning(rid)
        else:
            bench.check_exact(rid)
    bench.check_empty()


# ── queue ──


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_one_runs_two_wait_and_the_rest_are_refused_at_once(steps):
    bench = Bench(max_running_requests=1, max_queued_requests=2)
    for i in range(5):
        bench.send(generate(f"r{i}", max_new=40, ignore_eos=True))
        bench.step(steps)
    bench.step()
    for rid in ("r3", "r4"):
        assert ended(bench, rid) == ("error", 503, "queue_full")
        assert "--max-queued-requests" in bench.finish_of(rid).message
    bench.finish()
    for rid in ("r0", "r1", "r2"):
        bench.check_exact(rid)


def test_no_queue_at_all_still_serves():
    bench = Bench(max_running_requests=2, max_queued_requests=0)
    bench.send(*(generate(f"r{i}") for i in range(3)))
    bench.finish()
    assert [bench.finish_of(f"r{i}").reason for i in range(3)].count("error") == 1


def test_the_least_urgent_is_refused_when_priorities_count():
    bench = Bench(max_running_requests=1, max_queued_requests=1, enable_priority_scheduling=True)
    bench.send(generate("runs", max_new=9))
    bench.step(2)
    bench.send(generate("low", priority=0), generate("high", priority=5))
    bench.step()
    assert ended(bench, "low") == ("error", 503, "queue_full")
    bench.finish()
    bench.check_exact("high")


def test_who_waits_too_long_is_told_so_and_who_runs_is_not():
    bench = Bench(max_running_requests=1, queue_timeout_s=1.0)
    bench.send(generate("runs", max_new=40, ignore_eos=True), generate("waits"))
    bench.step(2)
    bench.clock.now_s += 0.9
    bench.step()
    assert not bench.of("waits")
    bench.clock.now_s += 0.2
    bench.step()
    assert ended(bench, "waits") == ("error", 503, "queue_timeout")
    assert bench.finish_of("waits").message.startswith("queue timeout")
    bench.finish()
    bench.check_exact("runs")


def test_a_retracted_request_does_not_time_out():
    bench = Bench(queue_timeout_s=1.0, test_retract_interval=2)
    bench.send(generate("a", max_new=20), generate("b", max_new=20))
    bench.step(2)
    while not bench.scheduler.is_idle:
        bench.clock.now_s += 5.0
        bench.step()
    bench.check_exact("a")
    bench.check_exact("b")


def test_the_first_output_tells_how_long_it_queued_and_how_to_print_it():
    bench = Bench(max_running_requests=1, overlap_depth=0)
    text = TextOptions(stop=("x",))
    bench.send(generate("a", max_new=3, arrived_s=99.0), generate("b", max_new=3, arrived_s=98.0, text=text))
    bench.step()
    bench.clock.now_s += 10.0
    bench.finish()
    assert [output.queue_s for output in bench.of("a")] == [1.0, 0.0, 0.0]
    assert [output.queue_s for output in bench.of("b")] == [12.0, 0.0, 0.0]
    assert [output.text for output in bench.of("b")] == [text, None, None]


# ── control ──


def test_the_cache_is_flushed_when_idle_only():
    bench = Bench()
    bench.send(generate("a", LONG), Control("busy", "flush_cache"))
    bench.step()
    bench.send(Control("busier", "flush_cache"))
    bench.finish()
    bench.send(Control("idle", "flush_cache"))
    bench.finish()
    assert [(reply.id, reply.ok) for reply in bench.port.replies] == [("busy", True), ("busier", False), ("idle", True)]
    assert "1 requests are running" in bench.port.replies[1].message
    assert bench.cache.usage()["full"].evictable == 0


def test_everything_can_be_aborted_at_once():
    bench = Bench(max_running_requests=2)
    bench.send(*(generate(f"r{i}", max_new=50, ignore_eos=True) for i in range(5)))
    bench.step(4)
    bench.send(*(Abort(rid) for rid in bench.sent))
    bench.finish()
    assert bench.scheduler.stats().num_aborted == 5
    assert all(bench.finish_of(rid).reason == "abort" for rid in bench.sent)
    bench.check_empty()


def test_a_retracted_request_keeps_its_place_whatever_the_bound():
    options = {"max_running_requests": 2, "max_queued_requests": 0, "enable_priority_scheduling": True}
    bench = Bench(test_retract_interval=4, overlap_depth=0, **options)
    bench.send(*(generate(rid, rid.encode() * 9, max_new=20, ignore_eos=True, priority=0) for rid in "ab"))
    bench.step(4)
    assert bench.scheduler.stats().num_waiting == 1
    bench.send(generate("c", b"ccc", priority=9))
    bench.finish()
    assert bench.finish_of("c").code == "queue_full"
    bench.check_exact("a")
    bench.check_exact("b")


# ── finishing ──


@pytest.mark.parametrize(("depth", "max_new"), list(itertools.product([0, 1], [1, 2, 9])))
def test_a_length_limit_is_foreseen_so_no_step_too_many_is_launched(depth, max_new):
    bench = Bench(overlap_depth=depth)
    bench.send(generate("a", max_new=max_new, ignore_eos=True))
    bench.finish()
    assert bench.loop.num_steps == max_new


@pytest.mark.parametrize(("depth", "late"), [(0, 0), (1, 1)])
def test_a_token_after_the_end_is_computed_and_dropped(depth, late):
    message = generate("a", max_new=100)
    expected = naive(message)
    assert expected.finish.reason == "stop"
    bench = Bench(overlap_depth=depth)
    bench.send(message)
    bench.finish()
    bench.check_exact("a")
    assert bench.loop.num_steps == len(expected.token_ids) + late
    assert bench.scheduler.stats().num_generated_tokens == len(expected.token_ids)


def test_a_finished_request_can_be_continued_from_its_own_tokens():
    bench = Bench()
    bench.send(generate("a", LONG, max_new=10, ignore_eos=True))
    bench.finish()
    bench.send(generate("b", LONG + bytes(bench.tokens("a")) + b"and on"))
    bench.finish()
    bench.check_exact("b")
    assert bench.of("b")[0].num_cached_tokens >= len(LONG) + 9


def test_stop_ids_end_a_request_where_eos_is_ignored():
    token_id = naive(generate("a", max_new=100, ignore_eos=True)).token_ids[7]
    bench = Bench()
    bench.send(generate("a", max_new=100, ignore_eos=True, stop_token_ids=(token_id,)))
    bench.finish()
    bench.check_exact("a")
    assert bench.finish_of("a") == Finish("stop", matched=token_id)


def test_nothing_is_planned_while_paused_and_the_loop_rests():
    bench = Bench()
    bench.send(generate("a", LONG, max_new=20, ignore_eos=True))
    bench.step(3)
    bench.send(Control("p", "pause"))
    bench.step(2)
    told, waits = len(bench.port.outputs), len(bench.port.waits)
    bench.send(generate("b", max_new=2, ignore_eos=True))
    bench.step(4)
    assert len(bench.port.outputs) == told
    assert set(bench.port.waits[waits:]) == {IDLE_WAIT_S}
    bench.send(Control("c", "continue"))
    bench.finish()
    assert [(reply.id, reply.ok) for reply in bench.port.replies] == [("p", True), ("c", True)]
    assert len(bench.tokens("a")) == 20
    assert len(bench.tokens("b")) == 2


def test_a_pause_may_take_all_memory_back():
    bench = Bench()
    bench.send(generate("a", LONG, max_new=20, ignore_eos=True))
    bench.step(3)
    bench.send(Control("r", "retract"))
    bench.step(2)
    assert bench.cache.usage()["full"].leased == 0
    bench.send(Control("f", "flush_cache"), Control("c", "continue"))
    bench.finish()
    assert [reply.ok for reply in bench.port.replies] == [True, True, True]
    bench.check_exact("a")


def test_orders_that_are_not_for_the_scheduler_are_declined():
    bench = Bench()
    bench.send(Control("s", "start_profile"))
    bench.step()
    assert [reply.ok for reply in bench.port.replies] == [False]
