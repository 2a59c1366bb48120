"""Random messages against random schedulers: every request is answered once, exactly, and gives everything back."""

import math

import msgspec
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from corymb.cache.config import HostConfig
from corymb.scheduler import prefetching
from corymb.scheduler.messages import Abort, Control, LogprobOptions

from .bench import Bench, generate

STARTS = [b"", b"the same long beginning of many prompts, longer than the threshold. ", b"the same l", b"other words "]
ENDINGS = st.text("ab", min_size=1, max_size=6).map(str.encode)
PROMPTS = st.builds(lambda start, cut, end: start[:cut] + end, st.sampled_from(STARTS), st.integers(0, 80), ENDINGS)


@st.composite
def options(draw):
    """A configuration that a server may have."""
    page = draw(st.sampled_from([1, 4, 16]))
    pool = draw(st.sampled_from([4, 6, 8, 12, 200])) * 16
    window = draw(st.sampled_from([0, 0, 5, 20]))
    caching = draw(st.sampled_from([True, True, True, False]))
    cache = {
        "page_size": page,
        "num_full_tokens": pool,
        "num_rows": draw(st.sampled_from([2, 4, 17, 17])),
        "context_length": 160,
        "eviction": draw(st.sampled_from(["lru", "lfu", "slru", "priority", "tlru"])),
        "enable_prefix_cache": caching,
    }
    if window:
        cache |= {"sliding_window": window, "num_sliding_tokens": draw(st.sampled_from([6, 7, 10, 40])) * 16}
    if draw(st.sampled_from([False, True])):
        grid = draw(st.sampled_from([1, 4]))
        cache |= {
            "num_states": draw(st.sampled_from([3, 4, 6, 40])),
            "state_grid": grid,
            "state_interval": math.lcm(page, grid) * draw(st.sampled_from([1, 3])),
            "max_states_per_path": draw(st.sampled_from([None, None, 1, 3])),
        }
    policy = draw(st.sampled_from([None, None, "write_through", "write_through_selective", "write_back"]))
    if policy and caching:
        cache["host"] = HostConfig(
            num_full_tokens=draw(st.sampled_from([2, 8, 40])) * 16,
            num_sliding_tokens=draw(st.sampled_from([2, 8, 40])) * 16 if window else 0,
            num_states=draw(st.sampled_from([2, 5, 40])) if "num_states" in cache else 0,
            policy=policy,
        )
    orders = ["fcfs", "lof", "random", "routing-key", "lpm", "dfs-weight", "hrrn"]
    chunk, prefill = draw(st.sampled_from([None, 1, 7, 16, 32, 2048])), draw(st.sampled_from([10, 64, 16384]))
    # One token a retraction, each after a prefill of one token a step, would be right but take for ever.
    retract = draw(st.sampled_from([None, None, 1, 3])) if min(chunk or prefill, prefill) >= 16 else None
    priorities = draw(st.sampled_from([False, True]))
    order = draw(
        st.sampled_from(orders[:2] if priorities else [*orders, *(["shortest-prefill-first"] if caching else [])])
    )
    drafts = 0 if "num_states" in cache else draw(st.sampled_from([0, 0, 1, 4]))
    return {
        "cache": cache,
        "drafts": drafts,
        "schedule_policy": order,
        "schedule_conservativeness": draw(st.sampled_from([0.01, 0.01, 1.0])),
        "max_running_requests": draw(st.sampled_from([1, 3, 16, 16])),
        "max_queued_requests": draw(st.sampled_from([None, None, 2])),
        "queue_timeout_s": draw(st.sampled_from([None, None, 5.0])),
        "max_prefill_tokens": prefill,
        "chunked_prefill_size": chunk,
        "enable_mixed_chunk": not drafts and draw(st.booleans()),
        "enable_priority_scheduling": priorities,
        "schedule_low_priority_values_first": priorities and draw(st.booleans()),
        "priority_scheduling_preemption_threshold": draw(st.sampled_from([0, 10])),
        "retraction_policy": draw(st.sampled_from(["length", "priority"])) if priorities else "length",
        "in_batch_prefix_threshold": draw(st.sampled_from([-1, 4, 32])),
        "test_retract_interval": retract,
        "test_force_cache_miss": draw(st.sampled_from([False, False, False, True])),
    }


@st.composite
def messages(draw, rid):
    """A request that passes the door, unless its prompt is too long for the pool."""
    max_new = draw(st.sampled_from([0, 1, 2, 20, 60]))
    message = generate(
        rid,
        draw(PROMPTS),
        max_new=max_new,
        min_new_tokens=draw(st.integers(0, max_new)),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=tuple(draw(st.sets(st.integers(97, 122), max_size=2))),
        frequency_penalty=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 3)),
        priority=draw(st.sampled_from([None, None, -20, 5, 30])),
        salt=draw(st.sampled_from([None, None, "salt"])),
        routing_key=draw(st.sampled_from([None, "a", "b"])),
    )
    if draw(st.integers(0, 3)) == 0:
        last = len(message.prompt) // 4
        logprobs = LogprobOptions(prompt_from=draw(st.integers(-1, last)))
        return msgspec.structs.replace(message, logprobs=logprobs)
    return message


class Machine(RuleBasedStateMachine):
    """Sends, steps, aborts, pauses and flushes."""

    @initialize(options=options(), depth=st.sampled_from([0, 1, 1, 2]))
    def start(self, options, depth):
        note(f"{options}, depth {depth}")
        self.bench = Bench(**options, depth=depth)
        self.touched = set()  # aborted: the output may be cut short

    @rule(data=st.data(), count=st.integers(1, 5), steps=st.integers(0, 3))
    def send(self, data, count, steps):
        for _ in range(count):
            self.bench.send(data.draw(messages(f"r{len(self.bench.sent)}")))
        self.bench.step(steps)

    @rule(count=st.sampled_from([1, 2, 5, 30]))
    def step(self, count):
        self.bench.step(count)

    @rule(data=st.data(), stopped=st.booleans(), steps=st.integers(0, 2))
    def abort(self, data, stopped, steps):
        rid = f"r{data.draw(st.integers(0, len(self.bench.sent)))}"
        self.touched.add(rid)
        self.bench.send(Abort(rid, stopped))
        self.bench.step(steps)

    @rule()
    def abort_all(self):
        self.touched |= set(self.bench.sent)
        self.bench.send(*(Abort(rid) for rid in self.bench.sent))
        self.bench.step()

    @rule()
    def flush(self):
        self.bench.send(Control("id", "flush_cache"))
        self.bench.step()

    @rule(action=st.sampled_from(["pause", "retract", "continue", "continue"]), steps=st.integers(0, 3))
    def pause(self, action, steps):
        self.bench.send(Control("id", action))
        self.bench.step(steps)

    @rule(seconds=st.sampled_from([0.1, 3.0]))
    def wait(self, seconds):
        self.bench.clock.now_s += seconds

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        bench.send(Control("id", "continue"))
        bench.finish()
        for rid in bench.sent:
            finish = bench.finish_of(rid)
            if finish.reason in {"stop", "length"} and rid not in self.touched:
                bench.check_exact(rid)
            else:
                self.check_cut_short(rid, finish)
        bench.check_empty()

    def check_cut_short(self, rid, finish):
        bench, message = self.bench, self.bench.sent[rid]
        bench.check_beginning(rid)
        if finish.reason == "error":
            needs = len(message.prompt) // 4 + message.sampling.max_new_tokens
            reasons = {
                "queue_full": bench.config.max_queued_requests is not None,
                "queue_timeout": bench.config.queue_timeout_s is not None,
                "kv_pool_too_small": needs > bench.cache.usage()["full"].total,
            }
            assert reasons[finish.code], finish
        else:
            assert rid in self.touched


def test_random_messages_are_answered_exactly_once_and_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(prefetching, "LEAST_SENT_AHEAD", 4)
    run_state_machine_as_test(
        Machine,
        settings=settings(stateful_step_count=20, suppress_health_check=list(HealthCheck)),
    )
