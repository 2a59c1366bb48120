"""Reported logprobs are the model's own, at the right positions."""

import math

import pytest
import torch
from by_hand import GREEDY, Hand, Part, Running, collect, generate, make_execution, request
from torch import Tensor

from corymb.models import prompt_logprobs
from corymb.models.builtin import HashModel, TapeModel, UniformModel
from corymb.models.runner import CpuRunner
from corymb.scheduler.messages import Logprob, LogprobOptions

HIGH, LOW = -0.0119, -10.0119  # of the hash model's next token, and of any other


def prompt_entries(prompt: str, chunk: int, options: LogprobOptions) -> list[Logprob]:
    runner, hand = CpuRunner(make_execution(HashModel())), Hand()
    running = request(1, prompt, logprobs=options, **GREEDY)
    entries: list[Logprob] = []
    while running.num_computed < len(prompt):
        sampled = runner.launch(hand.plan([Part(running, chunk)])).wait()
        entries += sampled.prompt_logprobs.get(0, [])
    runner.close()
    return entries


def test_output_logprobs_of_tape() -> None:
    running = request(1, 'TAPE "abc"', logprobs=LogprobOptions(top=2, token_ids=(100, 97)), **GREEDY)
    results = generate(TapeModel(), [running], 3)
    for token_id, result in zip((97, 98, 99), results, strict=True):
        (entry,) = result.logprobs[0]
        assert entry.token_id == token_id
        assert entry.logprob == pytest.approx(-0.3219, abs=1e-3)
        assert [token for token, _ in entry.top] == [token_id, token_id + 1]
        assert [logprob for _, logprob in entry.top] == pytest.approx([-0.3219, -1.3219], abs=1e-3)
        assert [token for token, _ in entry.chosen] == [100, 97]
        assert entry.chosen[0][1] == pytest.approx(-1.3219 if token_id == 99 else -10.3219, abs=1e-3)


def test_settings_do_not_change_what_is_reported() -> None:
    options = LogprobOptions(top=1)
    batch = [
        request(1, 'TAPE "abc"', logprobs=options, temperature=1.7, seed=3, top_k=2),
        request(2, 'TAPE "abc"', logprobs=options, presence_penalty=1.5, **GREEDY),
        request(3, 'TAPE "abc"', logprobs=options, logit_bias={120: 40.0}, **GREEDY),
        request(4, 'TAPE "abc"', **GREEDY),
    ]
    first, *_ = generate(TapeModel(), batch, 3)
    assert sorted(first.logprobs) == [0, 1, 2]
    for index in range(3):
        assert first.logprobs[index][0].top == ((97, pytest.approx(-0.3219, abs=1e-3)),)
    assert first.logprobs[2][0].token_id == 120
    assert first.logprobs[2][0].logprob == pytest.approx(-10.3219, abs=1e-3)


def test_alternatives_that_tie_come_by_token_id_in_any_batch() -> None:
    batch = [request(1 + n, "x", logprobs=LogprobOptions(top=n), **GREEDY) for n in (0, 1, 5, 3)]
    (result,) = generate(UniformModel(), batch, 1)
    assert [len(result.logprobs[i][0].top) for i in range(4)] == [0, 1, 5, 3]
    assert [token for token, _ in result.logprobs[2][0].top] == [0, 1, 2, 3, 4]
    assert result.logprobs[3][0].top[2][1] == pytest.approx(-math.log(264))


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_prompt_logprobs_across_chunks(chunk: int) -> None:
    entries = prompt_entries("abcdefgh", chunk, LogprobOptions(top=1, prompt_from=0))
    assert [entry.token_id for entry in entries] == list(b"bcdefgh")
    assert [entry.logprob for entry in entries] == pytest.approx([LOW] * 7, abs=1e-3)
    assert [entry.top[0][1] for entry in entries] == pytest.approx([HIGH] * 7, abs=1e-3)


def test_prompt_logprobs_find_the_likely_token() -> None:
    assert [entry.logprob for entry in prompt_entries("abs", 8, LogprobOptions(prompt_from=0))] == pytest.approx(
        [LOW, HIGH], abs=1e-3
    )


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_prompt_logprobs_from_the_middle(chunk: int) -> None:
    entries = prompt_entries("abcdefgh", chunk, LogprobOptions(prompt_from=5))
    assert [entry.token_id for entry in entries] == list(b"fgh")


def test_prompt_logprobs_are_scored_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prompt_entries("abcdefgh" * 4, 32, LogprobOptions(top=2, prompt_from=0))
    monkeypatch.setattr(prompt_logprobs, "BLOCK", 5)
    assert prompt_entries("abcdefgh" * 4, 32, LogprobOptions(top=2, prompt_from=0)) == whole
    assert len(whole) == 31


def test_prompts_of_several_rows_keep_their_own_logprobs() -> None:
    runner, hand = CpuRunner(make_execution(HashModel())), Hand()
    batch = [
        request(1, "abcd", logprobs=LogprobOptions(prompt_from=0), **GREEDY),
        request(2, "zzzz", **GREEDY),
        request(3, "qrstuv", logprobs=LogprobOptions(prompt_from=3), **GREEDY),
    ]
    sampled = runner.launch(hand.plan(batch)).wait()
    assert {index: [entry.token_id for entry in entries] for index, entries in sampled.prompt_logprobs.items()} == {
        0: list(b"bcd"),
        2: list(b"tuv"),
    }
    assert sorted(sampled.logprobs) == [0, 2]
    runner.close()


class HalfNan(HashModel):
    """Knows nothing about positions inside a prompt."""

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        return logits if len(hidden) == 1 else torch.full_like(logits, math.nan)


def test_a_prompt_with_unusable_logprobs_fails_its_row() -> None:
    runner, hand = CpuRunner(make_execution(HalfNan())), Hand()
    running: Running = request(1, "abcd", logprobs=LogprobOptions(prompt_from=0), **GREEDY)
    plan = hand.plan([running])
    sampled = runner.launch(plan).wait()
    collect(plan, sampled, [running])
    runner.close()
    assert list(sampled.errors) == [0]
