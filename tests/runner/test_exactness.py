"""Scheduler, cache and runner together say what plain Python says, whatever the scheduler does to the requests."""

import json
import random
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from by_loop import serve

from corymb.scheduler.messages import Generate, LogprobOptions, Sampling

NUM_TOKENS = 16
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "pages of 16": {"page_size": 16},
    "small pool": {"max_total_tokens": 200},
    "small pool of pages": {"max_total_tokens": 240, "page_size": 16},
    "no prefix cache": {"enable_prefix_cache": False},
    "chunks": {"chunked_prefill_size": 7},
    "chunks of 32": {"chunked_prefill_size": 32},
    "whole prompts": {"chunked_prefill_size": 4096},
    "mixed chunks": {"chunked_prefill_size": 7, "enable_mixed_chunk": True},
    "no overlap": {"overlap_depth": 0},
    "retraction every 3 steps": {"test_retract_interval": 3},
    "one at a time": {"max_running_requests": 1},
    "three at a time": {"max_running_requests": 3},
    "32 at a time": {"max_running_requests": 32},
}
# What models with recurrent state get besides.
STATES: dict[str, dict[str, object]] = {
    "chunks": {"max_states": 17, "state_interval": 4},
    "small pool": {"max_states": 2, "state_interval": 16},
    "no overlap": {"state_interval": 5},
}
PENALTIES = [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 1.2}, {}]
PENALIZED = ["abaa", "abab", "baaa", "aaaa"]


def write_folder(tmp_path: Path, architecture: str, window: int | None = None, *, recurrent: bool = False) -> Path:
    config = {"architectures": [architecture], "vocab_size": 264, "eos_token_id": [257, 259]}
    config |= {"max_position_embeddings": 512} | ({"sliding_window": window} if window else {})
    config["recurrent"] = recurrent
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def generate(rid: str, prompt: bytes, max_new_tokens: int, *, logprobs: bool = False, **sampling: float) -> Generate:
    return Generate(
        rid=rid,
        prompt=np.frombuffer(prompt, np.uint8).astype(np.int32).tobytes(),
        sampling=Sampling(max_new_tokens=max_new_tokens, temperature=0.0, **sampling),  # type: ignore[arg-type]
        logprobs=LogprobOptions(top=1, prompt_from=0) if logprobs else None,
    )


def random_prompts() -> list[bytes]:
    """Prompts that share prefixes of many lengths."""
    chooser = random.Random(11)
    tails = ["".join(chooser.choices("abc", k=chooser.randint(1, 20))) for _ in range(20)]
    return [("ab" * 20)[: chooser.randint(1, 40)].encode() + tail.encode() for tail in tails]


def hashed(prompt: bytes, num_tokens: int, window: int | None = None, *, recurrent: bool = False) -> list[int]:
    """What the hash model says, in plain Python."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        terms = [(i + 1) * (token * 40503 % 65521) for i, token in enumerate(token_ids)]
        total = sum(terms) + (sum(terms[-window:]) if window else 0)
        if recurrent:
            total += reduce(lambda state, token: (31 * state + token * 40503) % 65521, token_ids, 0)
        token_ids.append(97 + (total % 65521 >> 5) % 26)
    return token_ids[len(prompt) :]


@pytest.mark.parametrize("recurrent", [False, True], ids=["", "recurrent"])
@pytest.mark.parametrize("window", [None, 5], ids=["full", "window of 5"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_hash_says_what_plain_python_says(tmp_path: Path, variant: str, window: int | None, *, recurrent: bool) -> None:
    prompts = random_prompts()
    requests = [generate(str(i), prompt, NUM_TOKENS) for i, prompt in enumerate(prompts)]
    options = VARIANTS[variant] | (STATES.get(variant, {}) if recurrent else {})
    port = serve(write_folder(tmp_path, "CorymbHash", window, recurrent=recurrent), requests, options)
    said = [port.token_ids(str(i)) for i in range(len(prompts))]
    assert said == [hashed(prompt, NUM_TOKENS, window, recurrent=recurrent) for prompt in prompts]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logprobs_stay_at_their_tokens(tmp_path: Path, variant: str) -> None:
    prompts = random_prompts()[:10]
    requests = [generate(str(i), prompt, 6, logprobs=True) for i, prompt in enumerate(prompts)]
    port = serve(write_folder(tmp_path, "CorymbHash"), requests, VARIANTS[variant])
    for i, prompt in enumerate(prompts):
        entries = [entry for output in port.outputs[str(i)] for entry in output.logprobs or []]
        assert [entry.token_id for entry in entries] == port.token_ids(str(i))
        assert [entry.top[0][0] for entry in entries] == port.token_ids(str(i))
        (first, *others) = port.outputs[str(i)][0].prompt_logprobs or []
        assert (first.token_id, first.logprob) == (prompt[0], None)
        assert bytes(entry.token_id for entry in others) == prompt[1:]
        assert [entry.top[0][0] for entry in others] == [hashed(prompt[:k], 1)[0] for k in range(1, len(prompt))]


@pytest.mark.parametrize("variant", VARIANTS)
def test_penalties_survive_whatever_the_scheduler_does(tmp_path: Path, variant: str) -> None:
    requests = [generate(str(i), b'TAPE "aaaa"', 4, **PENALTIES[i % 4]) for i in range(24)]
    port = serve(write_folder(tmp_path, "CorymbTape"), requests, VARIANTS[variant])
    assert [bytes(port.token_ids(str(i))).decode() for i in range(24)] == [PENALIZED[i % 4] for i in range(24)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_seeds_survive_whatever_the_scheduler_does(tmp_path: Path, variant: str) -> None:
    def seeded() -> list[Generate]:
        return [
            Generate(
                rid=str(i),
                prompt=np.frombuffer(b"x" * (1 + i % 5), np.uint8).astype(np.int32).tobytes(),
                sampling=Sampling(max_new_tokens=8, seed=i, top_p=0.5 if i % 2 else 1.0, ignore_eos=True),
            )
            for i in range(16)
        ]

    folder = write_folder(tmp_path, "CorymbUniform")
    alone = serve(folder, seeded(), {"max_running_requests": 1})
    together = serve(folder, seeded(), VARIANTS[variant])
    assert {rid: together.token_ids(rid) for rid in together.outputs} == {
        rid: alone.token_ids(rid) for rid in alone.outputs
    }
    assert len({tuple(alone.token_ids(rid)) for rid in alone.outputs}) == 16


def test_variants_do_what_they_are_named_after(tmp_path: Path) -> None:
    requests = [generate(str(i), prompt, NUM_TOKENS) for i, prompt in enumerate(random_prompts())]
    folder = write_folder(tmp_path, "CorymbHash")
    stats = {name: serve(folder, requests, variant).stats for name, variant in VARIANTS.items()}
    plain = stats["plain"]
    assert plain.num_cached_tokens > 100
    assert plain.num_retractions == stats["no prefix cache"].num_cached_tokens == 0
    assert stats["retraction every 3 steps"].num_retractions > 10
    assert stats["chunks"].num_steps > plain.num_steps
    assert stats["small pool"].num_steps > plain.num_steps  # requests wait for slots
    assert stats["small pool"].pool_total["full"] == 200
    assert all(one.pool_used["full"] == 0 for one in stats.values())
