"""A real model's greedy output is the same bytes whatever caching, chunking, batching, overlap and retraction do."""

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from by_loop import FakePort, serve, serve_rounds

from corymb.scheduler.messages import Generate, Sampling
from corymb.scheduler.windows import FullWindows
from corymb.serve.tokenizer import load_tokenizer
from corymb.speculative.ngram import NgramSpeculation

pytestmark = [pytest.mark.weights, pytest.mark.timeout(900)]

NUM_REQUESTS = 32
NUM_TOKENS = 16
NEED = 2_000  # tokens that all requests together hold, roughly; the small pool has a tenth
BASE: dict[str, object] = {"dtype": "float32", "max_running_requests": 8, "max_total_tokens": 8_192}
VARIANTS: dict[str, dict[str, object]] = {
    "one at a time": {"max_running_requests": 1},
    "32 at a time": {"max_running_requests": 32},
    "pages of 16": {"page_size": 16},
    "chunks of 32": {"chunked_prefill_size": 32},
    "chunks of 4096": {"chunked_prefill_size": 4096},
    "mixed chunks": {"chunked_prefill_size": 32, "enable_mixed_chunk": True},
    "no overlap": {"overlap_depth": 0},
    "no prefix cache": {"enable_prefix_cache": False},
    "retraction every 3 steps": {"test_retract_interval": 3},
    "a tenth of the need": {"max_total_tokens": NEED // 10},
    "drafts": {"speculation": NgramSpeculation(5), "windows": FullWindows(5)},
    "drafts in pages": {
        "speculation": NgramSpeculation(3),
        "windows": FullWindows(3),
        "page_size": 16,
        "chunked_prefill_size": 32,
        "test_retract_interval": 5,
        "max_total_tokens": 480,
    },
    "everything at once": {
        "page_size": 16,
        "chunked_prefill_size": 32,
        "enable_mixed_chunk": True,
        "test_retract_interval": 5,
        "max_total_tokens": 480,
    },
}
OPENINGS = [
    "You are a helpful assistant who answers in one sentence. What is ",
    "Write a Python function that returns ",
    "Once upon a time in a small village by the sea there lived ",
    "",
]
ENDS = [
    "the capital of France?",
    "a list of the first ten primes.",
    "an old fisherman with three daughters,",
    "2 + 2?",
    "the largest planet, and how many moons does it have?",
    "a string reversed, without slicing.",
    "Water boils at",
    "the difference between a stack and a queue? Explain it to a child who likes trains.",
]


@cache
def requests(folder: Path) -> tuple[Generate, ...]:
    """32 prompts that share beginnings."""
    tokenizer = load_tokenizer(folder)
    texts = [opening + end for opening in OPENINGS for end in ENDS]
    assert len(texts) == NUM_REQUESTS
    return tuple(
        Generate(
            rid=str(index),
            prompt=np.asarray(tokenizer.encode(text), np.int32).tobytes(),
            sampling=Sampling(max_new_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True),
        )
        for index, text in enumerate(texts)
    )


@cache
def plain(folder: Path) -> dict[str, list[int]]:
    """What the model says with nothing special going on."""
    return said(serve(folder, list(requests(folder)), BASE))


def said(port: FakePort) -> dict[str, list[int]]:
    """Output ids by request."""
    return {rid: port.token_ids(rid) for rid in port.outputs}


@pytest.mark.parametrize("variant", VARIANTS)
def test_smollm2_says_the_same(smollm2: Path, variant: str) -> None:
    shuffled = list(requests(smollm2))
    random.Random(variant).shuffle(shuffled)
    port = serve(smollm2, shuffled, BASE | VARIANTS[variant])
    assert said(port) == plain(smollm2)
    assert port.stats is not None
    assert port.stats.pool_used["full"] == 0
    if "test_retract_interval" in VARIANTS[variant]:
        assert port.stats.num_retractions > 3
    if "speculation" in VARIANTS[variant]:
        assert sum(port.stats.drafts_accepted) > 0


@pytest.mark.parametrize("flush", [False, True], ids=["warm", "flushed"])
def test_smollm2_says_the_same_again(smollm2: Path, flush: bool) -> None:
    half = list(requests(smollm2))[::2]
    cold, again = serve_rounds(smollm2, [half, half], BASE, flush=flush)
    assert said(cold) == said(again) == {request.rid: plain(smollm2)[request.rid] for request in half}
    cached = [again.outputs[rid][0].num_cached_tokens for rid in again.outputs]
    prompts = [again.outputs[rid][0].num_prompt_tokens for rid in again.outputs]
    if not flush:
        assert cached == [prompt - 1 for prompt in prompts]  # the last one is computed for its logits
    else:
        assert min(cached) == 0


def test_gemma_3_says_the_same_with_drafts(gemma3: Path) -> None:
    """Its sliding windows follow rows that move on by several tokens."""
    some = list(requests(gemma3))[:8]
    drafting = {"speculation": NgramSpeculation(4), "windows": FullWindows(4), "chunked_prefill_size": 16}
    port = serve(gemma3, some, BASE | drafting)
    assert said(port) == said(serve(gemma3, some, BASE))
    assert port.stats is not None
    assert sum(port.stats.drafts_accepted) > 0
