"""Random admissions, aborts and retractions under a nearly full pool, on the GPU's own runner: every text is right, and
every pool's conservation check ends at zero."""

import json

import numpy as np
import pytest
import torch

from corymb.cache.cache import Cache
from corymb.models.build import RunnerOptions, build
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.door import Limits
from corymb.scheduler.loop import Loop
from corymb.scheduler.messages import Abort, Generate, Sampling
from corymb.scheduler.scheduler import Scheduler

WINDOW = 6
MOST_TOKENS = 160
NUM_REQUESTS = 200 if torch.cuda.is_available() else 50  # the interpreter is slow


def said_by_hash(prompt, count, window):
    """What the model `hash` says, from its definition."""
    token_ids = list(prompt)
    for _ in range(count):
        terms = [(i + 1) * (token * 40503 % 65521) for i, token in enumerate(token_ids)]
        total = sum(terms) + (sum(terms[-window:]) if window else 0)
        token_ids.append(97 + ((total % 65521) >> 5) % 26)
    return token_ids[len(prompt) :]


class Port:
    """Sends requests in bursts, and aborts some of those that run."""

    def __init__(self, requests, numbers):
        self.waiting = list(requests)
        self.numbers = numbers
        self.open = set()
        self.said = {request.rid: [] for request in requests}
        self.finish = {}
        self.stats = None

    def receive(self, timeout_s):
        now = []
        for _ in range(self.numbers.integers(0, 6)):
            if self.waiting:
                now.append(self.waiting.pop())
                self.open.add(now[-1].rid)
        if self.open and self.numbers.random() < 0.04:
            now.append(Abort(str(self.numbers.choice(sorted(self.open)))))
        return now

    def send_step(self, outputs):
        for output in outputs:
            self.said[output.rid].extend(output.token_ids)
            if output.finish is not None:
                assert output.rid not in self.finish
                self.finish[output.rid] = output.finish.reason
                self.open.discard(output.rid)

    def send(self, message):
        self.stats = message


def make_requests(numbers):
    beginnings = [numbers.integers(97, 123, size=size).tolist() for size in (0, 9, 20)]
    made = []
    for index in range(NUM_REQUESTS):
        prompt = beginnings[numbers.integers(3)] + numbers.integers(97, 123, size=numbers.integers(1, 16)).tolist()
        sampling = Sampling(max_new_tokens=int(numbers.integers(1, 40)), temperature=0.0, ignore_eos=True)
        made.append(Generate(rid=f"r{index}", prompt=np.asarray(prompt, np.int32).tobytes(), sampling=sampling))
    return made


@pytest.mark.timeout(280)
@pytest.mark.parametrize("window", [None, WINDOW], ids=["full", "sliding"])
def test_nothing_is_lost_or_mixed_up_while_memory_is_short(tmp_path, window, seed):
    config = {"architectures": ["CorymbHash"], "vocab_size": 264, "eos_token_id": [257, 259]}
    more = {"sliding_window": window} if window else {}
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 128} | more))
    numbers = np.random.default_rng(seed)
    built = build(
        RunnerOptions(tmp_path, device="cuda", max_running_requests=24, max_total_tokens=MOST_TOKENS),
        lambda *_: None,
    )
    cache = Cache(built.cache_config)
    scheduling = SchedulerConfig(
        max_running_requests=24, chunked_prefill_size=16, schedule_conservativeness=0.05, test_retract_interval=11
    )
    scheduler = Scheduler(scheduling, cache, Limits(built.vocab_size, built.context_length, built.eos_ids))
    requests = make_requests(numbers)
    port = Port(requests, numbers)
    loop = Loop(scheduler, built.runner, port, overlap_depth=1)
    fullest = 0
    while port.waiting or not scheduler.is_idle:
        loop.step()
        cache.check()
        fullest = max(fullest, cache.usage()["full"].leased)
    built.runner.close()

    assert set(port.finish) == {request.rid for request in requests}
    for request in requests:
        prompt, said = np.frombuffer(request.prompt, np.int32).tolist(), port.said[request.rid]
        assert said == said_by_hash(prompt, len(said), window), request.rid
        if port.finish[request.rid] == "length":
            assert len(said) == request.sampling.max_new_tokens
    assert set(port.finish.values()) == {"length", "abort"}
    stats = scheduler.stats()
    assert stats.num_retractions > 3
    assert fullest > 0.9 * MOST_TOKENS
    usage = cache.usage()
    assert {name: pool.leased for name, pool in usage.items()} == dict.fromkeys(usage, 0)
    for pool in usage.values():
        assert pool.free + pool.evictable == pool.total
