"""The same greedy tokens from one rank, from two and from four, whatever else is on."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

NAMES = ["hash-hybrid", "tape", "llama", "qwen3.5", "qwen3-moe", "gemma3"]
NUM_TOKENS = 20
PLAIN = ["--disable-radix-cache", "--disable-overlap-schedule"]
# What can change a plan: caching, chunks, mixed steps, pages, retraction, overlap. All ranks' plans are compared.
FLAGS = {
    2: ["--chunked-prefill-size", "7", "--enable-mixed-chunk", "--test-retract-interval", "5"],
    4: ["--chunked-prefill-size", "16", "--page-size", "4", "--test-retract-interval", "9"],
}
# Four ranks draft, too: as much as they think best, where that costs nothing to find out, else whole blocks.
NGRAM, STATIC = ("--speculative-algorithm", "NGRAM"), ("--speculative-dspark-verify-mode", "static")
DRAFT_MODELS = ("llama", "gemma3")  # each drafts for itself
NO_PAGES = {2: FLAGS[2], 4: ["--chunked-prefill-size", "16", "--test-retract-interval", "9"]}  # few ends would be found
LEAST_GAP = 1e-3  # between the best and the second log-probability; sums of float32 differ by about 1e-6


def prompts(name: str) -> list[list[int]]:
    """Token ids: prompts that share beginnings, and ends of their own."""
    numbers = random.Random(5)
    if name == "tape":
        return [list(f'TAPE "{text}"'.encode()) for text in ("abc", "abcdefghijklmnopqrstuvwxyz", "a" * 40, "abd")]
    shared = [numbers.randrange(32, 127) for _ in range(40)]
    return [shared[: numbers.randrange(41)] + [numbers.randrange(32, 127) for _ in range(n)] for n in (1, 3, 9, 30, 2)]


def ask(server, prompt: list[int], **fields: object) -> dict:
    sampling = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    response = server.client.post("/generate", json={"input_ids": prompt, "sampling_params": sampling, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def leave(server, prompt: list[int]) -> None:
    """A client that goes away in the middle of its stream."""
    sampling = {"temperature": 0, "max_new_tokens": 900, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
    with server.client.stream("POST", "/generate", json=body) as response:
        lines = response.iter_lines()
        for _ in range(4):
            next(lines)


def said(server, name: str) -> list[list[int]]:
    """Output ids of all prompts: one after another, all at once beside clients that leave, and once more, cached."""
    wanted = prompts(name)
    alone = [ask(server, prompt)["output_ids"] for prompt in wanted]
    with ThreadPoolExecutor(8) as pool:
        leaving = [threading.Thread(target=leave, args=(server, prompt)) for prompt in wanted[:2]]
        for thread in leaving:
            thread.start()
        together = list(pool.map(lambda prompt: ask(server, prompt)["output_ids"], wanted * 2))
        for thread in leaving:
            thread.join()
    assert together == alone * 2
    return alone


def drafts(name: str, path: str) -> tuple[str, ...]:
    """How a server of this model drafts."""
    if name in DRAFT_MODELS:
        return ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", path, *STATIC)
    return NGRAM if name in ("hash-hybrid", "tape") else (*NGRAM, *STATIC)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_change_no_token(name: str, tiny, serving) -> None:
    exact = () if name in ("hash-hybrid", "tape") else ("--dtype", "float32")
    with serving(tiny(name), *exact, *PLAIN) as server:
        one = said(server, name)
        assert len({tuple(ids) for ids in one}) == len(one)
        assert len({token for ids in one for token in ids}) > 15
        for prompt in prompts(name) if exact else []:
            meta = ask(server, prompt, return_logprob=True, top_logprobs_num=2)["meta_info"]
            gaps = [best[0] - second[0] for best, second in meta["output_top_logprobs"]]
            assert len(gaps) == NUM_TOKENS
            assert min(gaps) > LEAST_GAP, "choose other weights: float32 cannot tell these two apart for certain"
    for size, flags in (NO_PAGES if name == "qwen3.5" else FLAGS).items():
        drafting = drafts(name, tiny(name)) if size == 4 else ()
        with serving(tiny(name), *exact, "--tp-size", str(size), "--check-plans", *flags, *drafting) as server:
            assert said(server, name) == one, size
            if name in DRAFT_MODELS and drafting:
                assert ask(server, prompts(name)[0])["meta_info"]["spec_accept_length"] > 2
            usage = ask(server, [*prompts(name)[-1], *one[-1], 65])["meta_info"]
            assert usage["cached_tokens"] > 0
