"""Models that carry a state, through scheduler, cache and runner: they say what transformers says, whatever is cached,
cut, retracted or evicted."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from by_loop import serve_rounds
from test_families import CASES, greedy, make_reference

from corymb.cache.cache import Cache
from corymb.scheduler.messages import Generate, Sampling

FAMILIES = ("qwen3-next", "qwen3.5", "falcon-h1, multiplied", "lfm2", "lfm2 moe")
VARIANTS: dict[str, dict[str, object]] = {
    "snapshots every 64": {"state_interval": 64},
    "no prefix cache": {"enable_prefix_cache": False},
    "chunks": {"chunked_prefill_size": 96, "state_interval": 128},
    "few states": {"max_states": 5, "state_interval": 64, "max_running_requests": 3},
    "mixed chunks, no overlap": {"chunked_prefill_size": 64, "enable_mixed_chunk": True, "overlap_depth": 0},
    "retraction every 3 steps": {"test_retract_interval": 3, "state_interval": 64},
    "pages of 16, small pool": {"page_size": 16, "max_total_tokens": 640, "max_running_requests": 3},
}
NUM_OUTPUTS = 12  # as `greedy` makes
OPTIONS = {"dtype": "float32"}


def prompts() -> list[list[int]]:
    """Prompts that part ways before, at and behind multiples of 64, some of them a few tokens before their end."""
    chooser = random.Random(3)
    trunk = [chooser.randrange(3, 97) for _ in range(210)]
    ends = [(40, 3), (64, 1), (100, 50), (130, 0), (130, 7), (192, 40), (200, 1), (210, 9)]
    return [trunk[:shared] + [chooser.randrange(3, 97) for _ in range(own)] for shared, own in ends]


@cache
def reference(family: str) -> transformers.PreTrainedModel:
    """A random model."""
    return make_reference(*CASES[family])


@cache
def expected(family: str) -> list[list[int]]:
    """What transformers picks after each prompt."""
    return [greedy(reference(family), prompt).outputs for prompt in prompts()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint of each family."""

    @cache
    def saved(family: str) -> Path:
        path = tmp_path_factory.mktemp("family")
        reference(family).save_pretrained(path)
        return path

    return saved


def ask(rid: str, prompt: list[int]) -> Generate:
    sampling = Sampling(max_new_tokens=NUM_OUTPUTS, temperature=0.0, ignore_eos=True)
    return Generate(rid=rid, prompt=np.array(prompt, np.int32).tobytes(), sampling=sampling)


def said(port: Any) -> list[list[int]]:
    return [port.token_ids(str(index)) for index in range(len(port.outputs))]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_transformers(folder: Callable[[str], Path], family: str, variant: str) -> None:
    asked = [ask(str(index), prompt) for index, prompt in enumerate(prompts())]
    first, second = serve_rounds(folder(family), [asked, asked[::-1]], VARIANTS[variant] | OPTIONS)
    assert said(first) == said(second) == expected(family)
    assert second.stats is not None
    cached = second.stats.num_cached_tokens
    assert cached == 0 if variant == "no prefix cache" else cached > 300


@pytest.mark.parametrize("component", ["recurrent", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_eviction_of_one_component_changes_no_token(folder: Callable[[str], Path], family: str, component: str) -> None:
    evicted = 0

    def evict(cache: Cache) -> None:
        nonlocal evicted
        before = cache.usage()[component].evictable
        cache.execute(cache.tree.evict({component: 1}))
        evicted += before - cache.usage()[component].evictable

    asked = [ask(str(index), prompt) for index, prompt in enumerate(prompts())]
    variant = {"state_interval": 64, "max_running_requests": 2, **OPTIONS}
    rounds = serve_rounds(folder(family), [asked, asked], variant, after_step=evict)
    assert [said(port) for port in rounds] == [expected(family)] * 2
    assert evicted > 10


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_goes_on_from_where_it_ended(folder: Callable[[str], Path], family: str) -> None:
    """The state that a finished request leaves lies off the grid."""
    opening = prompts()[6]
    answer = expected(family)[6]
    following = [*opening, *answer, 17, 23, 42]
    rounds = serve_rounds(
        folder(family), [[ask("0", opening)], [ask("0", following)]], {"state_interval": 256, **OPTIONS}
    )
    assert [said(port) for port in rounds] == [[answer], [greedy(reference(family), following).outputs]]
    assert rounds[1].stats is not None
    assert rounds[1].stats.num_cached_tokens == len(opening) + NUM_OUTPUTS - 1
