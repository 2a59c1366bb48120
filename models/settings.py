"""How the request in each row wants its tokens chosen; on the host, because it decides which work a step needs."""

import enum
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from corymb.scheduler.messages import LogprobOptions, Sampling
from corymb.scheduler.plan import Int32

LEAST_TEMPERATURE = 1e-5  # below, softmax has one winner in float32 anyway: such requests are greedy


class Needs(enum.IntFlag):
    """What a row wants beyond its best token."""

    BIAS = 1
    PENALTIES = 2
    MINIMUM = 4  # tokens that would end it are forbidden at first
    RANDOM = 8
    FILTERS = 16  # top-k or top-p
    LOGPROBS = 32
    EMBEDDING = 64


class Settings:
    """Owns the sampling parameters by request row. All arrays are indexed by row."""

    def __init__(self, num_rows: int, eos_ids: frozenset[int]) -> None:
        self._eos_ids = eos_ids
        self.needs: NDArray[np.uint8] = np.zeros(num_rows, np.uint8)
        self.temperature: NDArray[np.float32] = np.ones(num_rows, np.float32)
        self.top_k: NDArray[np.int64] = np.zeros(num_rows, np.int64)
        self.top_p: NDArray[np.float32] = np.ones(num_rows, np.float32)
        self.min_p: NDArray[np.float32] = np.zeros(num_rows, np.float32)
        self.seeds: NDArray[np.uint64] = np.zeros(num_rows, np.uint64)
        self.seeded: NDArray[np.bool_] = np.zeros(num_rows, np.bool_)
        self.num_minimum: NDArray[np.int32] = np.zeros(num_rows, np.int32)
        self.penalties: NDArray[np.float32] = np.zeros((3, num_rows), np.float32)  # repetition, presence, frequency
        self.bias_ids: dict[int, NDArray[np.int64]] = {}
        self.bias: dict[int, NDArray[np.float32]] = {}
        self.ending_ids: dict[int, NDArray[np.int64]] = {}
        self.logprobs: dict[int, LogprobOptions] = {}

    def open(self, row: int, sampling: Sampling, logprobs: LogprobOptions | None, *, embeds: bool = False) -> None:
        """A request took the row."""
        self.needs[row] = needs_of(sampling, logprobs) | (Needs.EMBEDDING if embeds else 0)
        self.temperature[row] = sampling.temperature
        self.top_k[row] = sampling.top_k
        self.top_p[row] = sampling.top_p
        self.min_p[row] = sampling.min_p
        self.seeds[row] = sampling.seed & 0xFFFFFFFFFFFFFFFF
        self.seeded[row] = sampling.seeded
        self.num_minimum[row] = sampling.min_new_tokens
        self.penalties[:, row] = sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
        if sampling.logit_bias:
            self._open_bias(row, sampling.logit_bias)
        if sampling.min_new_tokens:
            ending = self._eos_ids | set(sampling.stop_token_ids)
            self.ending_ids[row] = np.array(sorted(ending), np.int64)
        if logprobs:
            self.logprobs[row] = logprobs

    def required(self, rows: Int32, num_outputs: Int32) -> NDArray[np.uint8]:
        """What each of `rows` needs at its next token, as `Needs`."""
        needs = self.needs[rows]
        if (needs & Needs.MINIMUM).any():
            needs[num_outputs >= self.num_minimum[rows]] &= ~np.uint8(Needs.MINIMUM)
        return needs

    def _open_bias(self, row: int, logit_bias: Mapping[int, float]) -> None:
        self.bias_ids[row] = np.fromiter(logit_bias.keys(), np.int64)
        self.bias[row] = np.fromiter(logit_bias.values(), np.float32)


def needs_of(sampling: Sampling, logprobs: LogprobOptions | None) -> Needs:
    """What a request needs at any of its tokens."""
    random = sampling.temperature >= LEAST_TEMPERATURE
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    wanted = {
        Needs.BIAS: bool(sampling.logit_bias),
        Needs.PENALTIES: penalties != (1.0, 0.0, 0.0),
        Needs.MINIMUM: sampling.min_new_tokens > 0,
        Needs.RANDOM: random,
        Needs.FILTERS: random and (sampling.top_k > 0 or sampling.top_p < 1.0),
        Needs.LOGPROBS: logprobs is not None,
    }
    return Needs(sum(need for need, is_wanted in wanted.items() if is_wanted))
