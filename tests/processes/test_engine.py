"""The engine's table of requests, fed by hand."""

import asyncio
import logging
import re

import pytest

from corymb.scheduler.messages import Abort, Control, Finish, Generate, Heartbeat, Reply, Sampling, Stats, Text, Texts
from corymb.serve.engine import DuplicateRid, Engine, EngineDied, EngineUnavailable, ServedModel
from corymb.serve.log import DecodeLog
from corymb.serve.metrics import Metrics


class SentMessages:
    """Stands in for the socket to the scheduler."""

    def __init__(self):
        self.messages = []

    def send(self, message):
        self.messages.append(message)


@pytest.fixture
def outbox():
    return SentMessages()


@pytest.fixture
def metrics():
    return Metrics("m")


@pytest.fixture
def engine(outbox, metrics):
    info = ServedModel(names=("m",), path="/m", tokenizer_path="/t", context_length=64, vocab_size=10, eos_ids=(2,))
    engine = Engine(outbox, metrics, info, heartbeat_timeout_s=10)
    engine.ready({"max_total_num_tokens": 100, "page_size": 4})
    return engine


def generate(rid="a"):
    return Generate(rid, b"\1\0\0\0", Sampling(max_new_tokens=4))


def text(stream, content, count, **more):
    return Text(stream.wire_rid, content, [1], 5, more.pop("cached", 0), count, **more)


def samples(metrics):
    """Every sample of the exposition by name and labels, the model name left out."""
    found = {}
    for line in metrics.exposition().decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name.replace('model_name="m",', "").replace('{model_name="m"}', "")] = float(value)
    return found


def test_next_returns_all_that_is_pending(engine):
    async def scenario():
        stream = engine.submit(generate())
        engine.receive(Texts([text(stream, "x", 1)]))
        engine.receive(Texts([text(stream, "y", 2)]))
        assert [got.text for got in await stream.next()] == ["x", "y"]
        waiting = asyncio.create_task(stream.next())
        await asyncio.sleep(0)
        engine.receive(Texts([text(stream, "z", 3, finish=Finish("length"))]))
        assert [got.text for got in await waiting] == ["z"]
        assert stream.finished
        assert engine.num_open == 0

    asyncio.run(scenario())


def test_stop_string_tells_the_scheduler_to_stop(engine, outbox):
    stream = engine.submit(generate())
    engine.receive(Texts([text(stream, "x", 1, finish=Finish("stop", "END"))]))
    assert outbox.messages[1:] == [Abort(stream.wire_rid, stopped=True)]


@pytest.mark.parametrize("finish", [Finish("stop", 2), Finish("length"), Finish("error", message="no")])
def test_finish_of_the_scheduler_needs_no_abort(engine, outbox, finish):
    stream = engine.submit(generate())
    engine.receive(Texts([text(stream, "x", 1, finish=finish)]))
    stream.close()
    assert len(outbox.messages) == 1


def test_closing_an_unfinished_stream_aborts_once(engine, outbox):
    with engine.submit(generate()) as stream:
        pass
    stream.close()
    assert outbox.messages[1:] == [Abort(stream.wire_rid)]
    assert engine.num_open == 0


def test_rid_is_unique_among_open_requests_only(engine):
    first = engine.submit(generate("a"))
    with pytest.raises(DuplicateRid, match="'a'"):
        engine.submit(generate("a"))
    first.close()
    second = engine.submit(generate("a"))
    assert second.wire_rid != first.wire_rid


def test_late_text_of_a_closed_request_does_not_reach_its_successor(engine):
    async def scenario():
        first = engine.submit(generate("a"))
        first.close()
        second = engine.submit(generate("a"))
        engine.receive(Texts([text(first, "old", 1, finish=Finish("abort"))]))
        engine.receive(Texts([text(second, "new", 1)]))
        assert [got.text for got in await second.next()] == ["new"]

    asyncio.run(scenario())


def test_abort_reaches_all_samples_of_a_request_and_no_other(engine, outbox):
    streams = {rid: engine.submit(generate(rid)) for rid in ("a/0", "a/1", "ab", "b")}
    assert engine.abort("a") == 2
    assert outbox.messages[-2:] == [Abort(streams["a/0"].wire_rid), Abort(streams["a/1"].wire_rid)]
    assert engine.abort("nobody") == 0
    assert engine.abort(None) == 4


def test_death_ends_every_stream_after_what_is_pending(engine):
    async def scenario():
        stream = engine.submit(generate())
        engine.receive(Texts([text(stream, "x", 1)]))
        waiting = asyncio.create_task(engine.submit(generate("b")).next())
        await asyncio.sleep(0)
        engine.fail("The scheduler-0 process was killed by signal 9.")
        with pytest.raises(EngineDied, match="signal 9"):
            await waiting
        assert [got.text for got in await stream.next()] == ["x"]
        with pytest.raises(EngineDied):
            await stream.next()
        with pytest.raises(EngineUnavailable, match="signal 9"):
            engine.submit(generate("c"))
        assert not engine.alive

    asyncio.run(scenario())


def test_draining_refuses_new_and_keeps_open_requests(engine):
    stream = engine.submit(generate())
    engine.drain()
    with pytest.raises(EngineUnavailable, match="shutting down"):
        engine.submit(generate("b"))
    engine.receive(Texts([text(stream, "x", 1, finish=Finish("length"))]))
    assert stream.finished


def test_a_flush_waits_for_its_own_reply(engine, outbox):
    async def scenario():
        asking = asyncio.create_task(engine.order("flush_cache", 30))
        await asyncio.sleep(0)
        order = outbox.messages[-1]
        assert isinstance(order, Control)
        engine.receive(Reply("another", ok=False))
        engine.receive(Reply(order.id, ok=True))
        assert (await asking).ok

    asyncio.run(scenario())


def test_old_heartbeat_means_not_alive(outbox, metrics):
    info = ServedModel(names=("m",), path="/m", tokenizer_path="/t", context_length=64, vocab_size=10, eos_ids=(2,))
    engine = Engine(outbox, metrics, info, heartbeat_timeout_s=0.0)
    assert engine.alive
    engine.receive(Heartbeat(1, process="scheduler-0"))
    assert not engine.alive
    assert list(engine.silent_s(0.0)) == ["scheduler-0"]


def test_tokens_are_counted_as_usage_counts_them(engine, metrics):
    first = engine.submit(generate("a/0"))
    second = engine.submit(generate("a/1"), counts_prompt=False)
    engine.receive(Texts([text(first, "x", 1, cached=3, queue_s=0.1), text(second, "x", 1)]))
    engine.receive(Texts([text(first, "xyz", 4, finish=Finish("length"))]))
    second.close()
    found = samples(metrics)
    assert found["corymb_generation_tokens_total"] == 5
    assert found["corymb_prompt_tokens_total"] == 5
    assert found["corymb_cached_tokens_total"] == 3
    assert found["corymb_time_to_first_token_seconds_count"] == 2
    # Three tokens at once are three equal intervals.
    assert found["corymb_inter_token_latency_seconds_count"] == 3
    assert found['corymb_requests_finished_total{reason="length"}'] == 1
    assert found['corymb_requests_finished_total{reason="abort"}'] == 1


def test_counters_exist_at_zero_and_end_in_total(metrics):
    text = metrics.exposition().decode()
    counters = re.findall(r"# TYPE (\S+) counter", text)
    found = samples(metrics)
    assert len(counters) >= 9
    for name in counters:
        values = [value for sample, value in found.items() if sample.split("{")[0] == name]
        assert name.endswith("_total"), name
        assert values, name
        assert set(values) == {0.0}, name


def snapshot(steps=7):
    return Stats(
        num_running=2,
        num_waiting=3,
        pool_used={"full": 25},
        pool_evictable={"full": 50},
        pool_total={"full": 100},
        tree_evictable={"full": 50},
        tree_protected={"full": 20},
        tree_tombstones={"full": 0},
        tree_nodes=3,
        hit_tokens={"full": 11},
        num_steps=steps,
        num_retractions=1,
        num_preemptions=0,
        num_prefill_tokens=30,
        num_cached_tokens=10,
        num_generated_tokens=9 * steps,
        num_aborted=4,
        new_token_ratio=0.7,
        plan_s=[0.0002, 0.0003],
    )


def test_scheduler_stats_are_shown(engine, metrics):
    engine.receive(snapshot())
    found = samples(metrics)
    assert found["corymb_running_requests"] == 2
    assert found["corymb_queued_requests"] == 3
    assert found["corymb_token_usage"] == 0.25
    assert found["corymb_cache_hit_rate"] == 0.25
    assert found["corymb_retractions_total"] == 1
    assert found["corymb_step_plan_seconds_count"] == 2
    assert found['corymb_pool_evictable_tokens{pool="full"}'] == 50


def test_decode_log_writes_every_so_many_steps(caplog):
    log = DecodeLog(40)
    with caplog.at_level(logging.INFO):
        for steps in (0, 10, 39, 40, 79, 90):
            log.take(snapshot(steps))
    assert len(caplog.records) == 2
    assert caplog.messages[0].startswith("running 2, queued 3, token usage 0.25, ")


def test_request_log_says_nothing_of_the_content(outbox, metrics, caplog):
    info = ServedModel(names=("m",), path="/m", tokenizer_path="/t", context_length=64, vocab_size=10, eos_ids=(2,))
    engine = Engine(outbox, metrics, info, heartbeat_timeout_s=10, log_requests=True)
    engine.ready({})
    with caplog.at_level(logging.INFO):
        stream = engine.submit(generate("visible"))
        engine.receive(Texts([text(stream, "secret", 1, finish=Finish("length"))]))
    assert "visible: length after" in caplog.text
    assert "secret" not in caplog.text
