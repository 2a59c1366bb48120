"""The scheduler stepped by hand with a simulated runner: what requests get must not depend on how steps are cut."""

import itertools

import numpy as np
import pytest

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.door import Limits
from corymb.scheduler.loop import Loop
from corymb.scheduler.messages import Finish, Generate, Sampling, Stats
from corymb.scheduler.scheduler import Scheduler
from corymb.scheduler.simulation import SimulatedRunner, choose, fingerprint, weigh

EOS = frozenset({ord("q")})


class Mailbox:
    """A port whose other end is the test."""

    def __init__(self):
        self.inbox, self.outputs, self.replies, self.stats = [], [], [], []

    def receive(self, timeout_s):
        messages, self.inbox = self.inbox, []
        return messages

    def send_step(self, outputs):
        self.outputs += outputs

    def send(self, message):
        (self.stats if isinstance(message, Stats) else self.replies).append(message)


class Bench:
    """A scheduler, its cache, its loop and the requests it was given."""

    def __init__(self, *, cache=None, now=lambda: 1.0, broken=frozenset(), **options):
        sizes = {"num_full_tokens": 4096, "num_rows": 33, "context_length": 512} | (cache or {})
        self.cache = Cache(CacheConfig(**sizes))
        self.config = SchedulerConfig(**options)
        self.scheduler = Scheduler(self.config, self.cache, Limits(128, sizes["context_length"], EOS), clock=now)
        self.port = Mailbox()
        runner = SimulatedRunner(self.cache.config, EOS, broken=broken)
        self.loop = Loop(self.scheduler, runner, self.port, overlap_depth=self.config.overlap_depth, clock=now)
        self.sent = {}

    def send(self, message):
        if isinstance(message, Generate):
            self.sent[message.rid] = message
        self.port.inbox.append(message)

    def step(self, count=1):
        for _ in range(count):
            self.loop.step()
            self.cache.check()

    def finish(self, limit=5000):
        while not self.scheduler.is_idle or self.port.inbox:
            self.step()
            limit -= 1
            assert limit, "the scheduler does not come to an end"

    def of(self, rid):
        return [output for output in self.port.outputs if output.rid == rid]

    def tokens(self, rid):
        return [token for output in self.of(rid) for token in output.token_ids]

    def finish_of(self, rid):
        finishes = [output.finish for output in self.of(rid) if output.finish is not None]
        assert len(finishes) == 1, f"{rid}: {len(finishes)} finishes"
        assert self.of(rid)[-1].finish is not None, "output after the finish"
        return finishes[0]

    def check_exact(self, rid):
        message = self.sent[rid]
        token_ids, finish = naive(message, self.window)
        assert self.tokens(rid) == token_ids
        assert self.finish_of(rid) == finish
        first = self.of(rid)[0]
        assert first.num_cached_tokens < first.num_prompt_tokens or first.num_cached_tokens == 0
        assert len({output.num_cached_tokens for output in self.of(rid)}) == 1

    @property
    def window(self):
        return self.cache.config.sliding_window

    def check_empty(self):
        self.cache.check()
        for usage in self.cache.usage().values():
            assert usage.leased == 0
        assert self.cache.flush()
        for usage in self.cache.usage().values():
            assert usage.free == usage.total
        assert self.cache.num_free_rows == self.cache.config.num_rows - 1


def naive(message, window=0):
    """What a request gets from a server that serves it alone, without a cache."""
    prompt = np.frombuffer(message.prompt, np.int32).tolist()
    sampling, outputs = message.sampling, []
    stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else EOS)
    while len(outputs) < sampling.max_new_tokens:
        outputs.append(choose(weight(prompt + outputs, window), sampling, outputs, EOS))
        if outputs[-1] in stops and len(outputs) > sampling.min_new_tokens:
            return outputs, Finish("stop", matched=outputs[-1])
    return outputs, Finish("length")


def weight(token_ids, window):
    kept = fingerprint(token_ids)
    start = max(len(kept) - window, 0)
    return weigh(kept) + (weigh(kept[start:], start) if window else 0)


def generate(
    rid, prompt=b"hello world", *, max_new=8, logprobs=None, priority=None, salt=None, routing_key=None, **sampling
):
    token_ids = np.array(list(prompt), np.int32).tobytes()
    options = Sampling(max_new_tokens=max_new, **sampling)
    return Generate(
        rid, token_ids, options, logprobs=logprobs, priority=priority, cache_salt=salt, routing_key=routing_key
    )


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_one_request_gets_what_a_naive_server_gives(depth, page_size):
    bench = Bench(cache={"page_size": page_size}, overlap_depth=depth)
    bench.send(generate("a", max_new=40))
    bench.finish()
    bench.check_exact("a")
    bench.check_empty()


MATRIX = list(itertools.product([0, 1], [1, 16], [32, None], [False, True], [None, 3], [4096, 208], [0, 24]))


@pytest.mark.parametrize(("depth", "page", "chunk", "mixed", "retract", "pool", "window"), MATRIX)
def test_output_does_not_depend_on_how_steps_are_cut(depth, page, chunk, mixed, retract, pool, window):
    sliding = {"num_sliding_tokens": max(pool // 2, 160), "sliding_window": window} if window else {}
    bench = Bench(
        cache={"page_size": page, "num_full_tokens": pool, **sliding},
        overlap_depth=depth,
        chunked_prefill_size=chunk,
        enable_mixed_chunk=mixed,
        test_retract_interval=retract,
    )
    for i in range(8):
        bench.send(
            generate(
                f"r{i}",
                b"shared beginning of a prompt, " * (1 + i % 3) + bytes([65 + i]),
                max_new=60,
                ignore_eos=i % 2 == 0,
                seed=i,
            )
        )
        bench.step(i % 3)
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    if retract:
        assert bench.scheduler.stats().num_retractions > 0
    bench.check_empty()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("window", [0, 8])
def test_a_pool_far_too_small_retracts_and_changes_nothing(depth, window):
    sliding = {"num_sliding_tokens": 256, "sliding_window": window} if window else {}
    bench = Bench(cache={"num_full_tokens": 257, **sliding}, overlap_depth=depth, schedule_conservativeness=0.1)
    for i in range(16):
        bench.send(generate(f"r{i}", b"prompt %2d" % i, max_new=64, ignore_eos=True, frequency_penalty=i % 2))
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    assert bench.scheduler.stats().num_retractions > 0
    bench.check_empty()
