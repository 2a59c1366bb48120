"""A scheduler on a bench: its cache, its loop, a simulated runner, and the requests it was given."""

from dataclasses import dataclass, field

import numpy as np

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.door import Limits
from corymb.scheduler.loop import Loop
from corymb.scheduler.messages import Finish, Generate, Logprob, LogprobOptions, Sampling, Stats
from corymb.scheduler.scheduler import Scheduler

from .simulation import RandomBudgets, SimulatedRunner, choose, fingerprint, fold, weigh

EOS = frozenset({ord("q")})
VOCAB_SIZE = 128
PLAIN = CacheConfig(num_full_tokens=2)


class Mailbox:
    """A port whose other end is the test."""

    def __init__(self):
        self.inbox, self.outputs, self.replies, self.stats, self.waits = [], [], [], [], []

    def receive(self, timeout_s):
        self.waits.append(timeout_s)
        messages, self.inbox = self.inbox, []
        return messages

    def send_step(self, outputs):
        self.outputs += outputs

    def send(self, message):
        (self.stats if isinstance(message, Stats) else self.replies).append(message)


class Clock:
    """Stands still unless told."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Bench:
    """Steps a whole scheduler by hand and checks the cache after every step."""

    def __init__(self, *, cache=None, broken=frozenset(), depth=None, matchers=None, condemn=None, drafts=0, **options):
        sizes = {"num_full_tokens": 4096, "num_rows": 33, "context_length": 512} | (cache or {})
        self.cache = Cache(CacheConfig(**sizes))
        self.config = SchedulerConfig(**options)
        self.clock = Clock()
        limits = Limits(VOCAB_SIZE, sizes["context_length"], EOS)
        self.scheduler = Scheduler(
            self.config,
            self.cache,
            limits,
            matchers=matchers,
            condemn=condemn,
            windows=RandomBudgets(drafts) if drafts else None,
            clock=self.clock,
        )
        self.port = Mailbox()
        self.runner = SimulatedRunner(self.cache.config, EOS, broken=broken)
        depth = self.config.overlap_depth if depth is None else depth
        self.loop = Loop(self.scheduler, self.runner, self.port, overlap_depth=depth, clock=self.clock)
        self.sent = {}

    def send(self, *messages):
        for message in messages:
            if isinstance(message, Generate):
                self.sent[message.rid] = message
            self.port.inbox.append(message)

    def step(self, count=1):
        for _ in range(count):
            self.loop.step()
            self.cache.check()

    def finish(self, limit=20_000):
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

    def order(self):
        """Rids in the order of their first output."""
        return list(dict.fromkeys(output.rid for output in self.port.outputs))

    def check_exact(self, rid):
        """The request got what a naive server would have given it."""
        expected = naive(self.sent[rid], self.cache.config)
        assert self.finish_of(rid) == expected.finish
        assert self.tokens(rid) == expected.token_ids
        self.check_beginning(rid)

    def check_beginning(self, rid):
        """What the request got so far is the beginning of what a naive server would have given it."""
        message, outputs = self.sent[rid], self.of(rid)
        expected = naive(message, self.cache.config)
        token_ids = self.tokens(rid)
        assert token_ids == expected.token_ids[: len(token_ids)]
        first = outputs[0]
        assert first.text == message.text
        assert all(output.text is None and output.prompt_logprobs is None for output in outputs[1:])
        assert len({output.num_cached_tokens for output in outputs}) == 1
        assert 0 <= first.num_cached_tokens < first.num_prompt_tokens == len(message.prompt) // 4
        if message.logprobs is not None:
            logprobs = [entry for output in outputs for entry in output.logprobs or []]
            assert logprobs == expected.logprobs[: len(token_ids)]
            if token_ids or outputs[-1].finish == Finish("length"):
                assert first.prompt_logprobs == expected.prompt_logprobs

    def check_empty(self):
        """Nothing is held by anybody."""
        self.cache.check()
        assert all(usage.leased == 0 for usage in self.cache.usage().values())
        assert self.cache.flush()
        assert all(usage.free == usage.total for usage in self.cache.usage().values())
        assert self.cache.num_free_rows == self.cache.config.num_rows - 1


@dataclass
class Expected:
    """What a request gets from a server that serves it alone and without a cache."""

    token_ids: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list | None = None
    finish: Finish | None = None


def naive(message, config=PLAIN):
    prompt = np.frombuffer(message.prompt, np.int32).tolist()
    sampling, expected = message.sampling, Expected(finish=Finish("length"))
    if message.logprobs is not None and message.logprobs.prompt_from >= 0:
        first = message.logprobs.prompt_from
        weights = {at: weight(prompt[:at], config) for at in range(max(first, 1), len(prompt))}
        expected.prompt_logprobs = [Logprob(prompt[at], -float(weights[at])) for at in weights]
        if first == 0:
            expected.prompt_logprobs.insert(0, Logprob(prompt[0], None))
    stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else EOS)
    outputs = expected.token_ids
    while len(outputs) < sampling.max_new_tokens:
        now = weight(prompt + outputs, config)
        outputs.append(choose(now, sampling, outputs, EOS))
        expected.logprobs.append(Logprob(outputs[-1], -float(now)))
        if outputs[-1] in stops and len(outputs) > sampling.min_new_tokens:
            expected.finish = Finish("stop", matched=outputs[-1])
            break
    return expected


def weight(token_ids, config):
    kept, window = fingerprint(token_ids), config.sliding_window
    start = max(len(kept) - window, 0)
    state = int(fold(0, kept)[-1]) if config.num_states else 0
    return weigh(kept) + (weigh(kept[start:], start) if window else 0) + state


def generate(rid, prompt=b"hello world", *, max_new=8, prompt_from=None, seed=0, salt=None, **fields):
    """A Generate; unknown fields go to the sampling options."""
    token_ids = np.array(list(prompt), np.int32).tobytes()
    own = {name: fields.pop(name) for name in ("priority", "routing_key", "arrived_s", "text") if name in fields}
    sampling = Sampling(max_new_tokens=max_new, seed=seed, **fields)
    logprobs = None if prompt_from is None else LogprobOptions(prompt_from=prompt_from)
    return Generate(rid, token_ids, sampling, logprobs=logprobs, cache_salt=salt, **own)
