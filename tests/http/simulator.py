"""A scheduler in the event loop of the server: what the HTTP surface needs to be tested alone.

It computes the test models `tape`, `hash` and `uniform` from their definitions, one token a request and step.
"""

import asyncio
import json
from dataclasses import dataclass, field

import numpy as np

from corymb.scheduler.messages import (
    Abort,
    Control,
    Finish,
    Generate,
    Logprob,
    Output,
    Reply,
    Step,
)
from corymb.serve.detokenizer import Detokenizer
from corymb.serve.engine import Engine
from corymb.serve.tokenizer import byte_tokenizer
from corymb.serve.transport import Outbox

TOKENIZER = byte_tokenizer()
EOS_IDS = (257, 259)
VOCAB_SIZE = 264


def tape_logits(prompt: list[int], output: list[int]) -> np.ndarray:
    """The token of the tape 10, the next byte 9, others 0."""
    text = TOKENIZER.decode(prompt, skip_special_tokens=False)
    start = text.rfind("TAPE ") + 5
    tape = TOKENIZER.encode(json.JSONDecoder().raw_decode(text[start:])[0]) if start >= 5 else []
    token = tape[len(output)] if len(output) < len(tape) else 257
    logits = np.zeros(VOCAB_SIZE)
    logits[(token + 1) % 256 if token < 256 else ord("x")] = 9
    logits[token] = 10
    return logits


def hash_logits(prompt: list[int], output: list[int]) -> np.ndarray:
    """A letter that depends on every token and its position."""
    total = sum((i + 1) * ((token * 40503) % 65521) for i, token in enumerate([*prompt, *output]))
    logits = np.zeros(VOCAB_SIZE)
    logits[97 + ((total % 65521) >> 5) % 26] = 10
    return logits


def uniform_logits(prompt: list[int], output: list[int]) -> np.ndarray:
    return np.zeros(VOCAB_SIZE)


MODELS = {"tape": tape_logits, "hash": hash_logits, "uniform": uniform_logits}


@dataclass
class Running:
    """One request."""

    generate: Generate
    prompt: list[int]
    output: list[int] = field(default_factory=list)
    num_cached: int = 0
    started: bool = False


class Simulator(Outbox):
    """Takes what the engine sends and answers through `engine.receive`."""

    def __init__(self, model: str, *, step_s: float = 0.0, max_running: int = 64, max_queued: int = 10_000) -> None:
        self.logits = MODELS[model]
        self.step_s = step_s
        self.max_running = max_running
        self.max_queued = max_queued
        self.running: list[Running] = []
        self.waiting: list[Running] = []
        self.aborted: list[str] = []
        self.ordered: list[Control] = []
        self.seen: list[Generate] = []
        self.cached: set[tuple[str | None, tuple[int, ...]]] = set()
        self.engine: Engine | None = None
        self.detokenizer = Detokenizer(TOKENIZER)
        self.paused = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def send(self, message) -> None:
        if isinstance(message, Generate):
            self._admit(message)
        elif isinstance(message, Control) and not self.paused:
            self.ordered.append(message)
            self.cached.clear()
            self._later(Reply(message.id, message.action != "stop_profile", "done"))
        elif isinstance(message, Abort):
            self.aborted.append(message.rid)
            self.running = [r for r in self.running if r.generate.rid != message.rid]
            self.waiting = [r for r in self.waiting if r.generate.rid != message.rid]
            self._say(message.rid, Finish("abort", message="Aborted."))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _admit(self, message: Generate) -> None:
        self.seen.append(message)
        self.loop = asyncio.get_running_loop()
        if len(self.running) + len(self.waiting) >= self.max_running + self.max_queued:
            finish = Finish("error", message="The queue is full.", status=503, code="queue_full")
            self._say(message.rid, finish)
            return
        self.waiting.append(Running(message, np.frombuffer(message.prompt, np.int32).tolist()))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._loop())

    def _say(self, rid: str, finish: Finish) -> None:
        self._later(self.detokenizer.texts(Step([Output(rid, [], 0, 0, finish)])))

    def _later(self, message) -> None:
        asyncio.get_running_loop().call_soon(self.engine.receive, message)

    async def _loop(self) -> None:
        while self.running or self.waiting:
            await asyncio.sleep(self.step_s)
            if self.paused:
                await asyncio.sleep(0.01)
                continue
            while self.waiting and len(self.running) < self.max_running:
                self.running.append(self._start(self.waiting.pop(0)))
            step = Step([self._step(request) for request in list(self.running)])
            self.engine.receive(self.detokenizer.texts(step))

    def _start(self, request: Running) -> Running:
        salt, prompt = request.generate.cache_salt, tuple(request.prompt)
        request.num_cached = len(prompt) - 1 if (salt, prompt) in self.cached else 0
        self.cached.add((salt, prompt))
        return request

    def _step(self, request: Running) -> Output:
        sampling, logprobs = request.generate.sampling, request.generate.logprobs
        is_first, request.started = not request.started, True
        prompt_logprobs = None
        if is_first and logprobs is not None and logprobs.prompt_from >= 0:
            prompt_logprobs = self._prompt_logprobs(request, logprobs)
        token_ids, entries, finish = [], None, Finish("length")
        if sampling.max_new_tokens > 0:
            logits = self.logits(request.prompt, request.output)
            token_ids = [self._pick(request, self._adjusted(request, logits.copy()))]
            entries = [entry(logits, token_ids[0], logprobs.top, logprobs.token_ids)] if logprobs is not None else None
            request.output += token_ids
            finish = self._finish(request, token_ids[0])
        if finish is not None:
            self.running.remove(request)
        return Output(
            request.generate.rid,
            token_ids,
            len(request.prompt),
            request.num_cached,
            finish,
            request.generate.text if is_first else None,
            entries,
            prompt_logprobs,
            0.0,
            embedding_of(request.prompt) if request.generate.embed else None,
        )

    def _prompt_logprobs(self, request, options):
        entries = [Logprob(request.prompt[0], None)]
        for i in range(1, len(request.prompt)):
            logits = self.logits(request.prompt[:i], []) if self.logits is hash_logits else np.zeros(VOCAB_SIZE)
            entries.append(entry(logits, request.prompt[i], options.top))
        return entries[options.prompt_from :]

    def _adjusted(self, request: Running, logits: np.ndarray) -> np.ndarray:
        sampling = request.generate.sampling
        seen = np.unique([*request.prompt, *request.output])
        rate = np.where(logits[seen] > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
        logits[seen] *= rate
        ids, counts = np.unique(request.output, return_counts=True)
        ids = ids.astype(int)
        logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts
        for token, bias in sampling.logit_bias.items():
            logits[token] += bias
        if len(request.output) < sampling.min_new_tokens:
            logits[[*EOS_IDS, *sampling.stop_token_ids]] = -np.inf
        return logits

    def _pick(self, request: Running, logits: np.ndarray) -> int:
        sampling = request.generate.sampling
        if sampling.temperature == 0:
            return int(logits.argmax())
        noise = np.random.default_rng([sampling.seed % 2**64, len(request.output)]).gumbel(size=VOCAB_SIZE)
        return int((logits / sampling.temperature + noise).argmax())

    def _finish(self, request: Running, token: int) -> Finish | None:
        sampling = request.generate.sampling
        if token in sampling.stop_token_ids or (token in EOS_IDS and not sampling.ignore_eos):
            return Finish("stop", matched=token)
        return Finish("length") if len(request.output) >= sampling.max_new_tokens else None


def embedding_of(prompt: list[int]) -> bytes:
    """Four numbers that depend on the prompt, of length 1."""
    numbers = np.array([len(prompt), prompt[0], prompt[-1], 1], "<f4")
    return (numbers / np.linalg.norm(numbers)).astype("<f4").tobytes()


def entry(logits: np.ndarray, token: int, top: int, chosen: tuple[int, ...] = ()) -> Logprob:
    """Logprobs at one position."""
    scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    best = np.argsort(-scores, kind="stable")[:top]
    pairs = [tuple((int(i), float(scores[i])) for i in ids) for ids in (best, chosen)]
    return Logprob(token, float(scores[token]), *pairs)
