"""The models made for tests say exactly what their definitions say."""

import numpy as np
import pytest
from by_hand import GREEDY, Hand, Part, collect, generate, ids, make_execution, request, text

from corymb.models.builtin import SPECIAL_TOKENS, HashModel, TapeModel, UniformModel
from corymb.models.runner import CpuRunner
from corymb.models.tape import Tapes

AB_TIMES_50 = "njpmkwbdfzjowwktjtbfhozhfgmivkiu"


def hashed(prompt: str, num_tokens: int) -> str:
    """What the hash model says, in plain Python."""
    token_ids = list(prompt.encode())
    for _ in range(num_tokens):
        total = sum((i + 1) * (token * 40503 % 65521) for i, token in enumerate(token_ids)) % 65521
        token_ids.append(97 + (total >> 5) % 26)
    return bytes(token_ids[len(prompt) :]).decode()


@pytest.mark.parametrize(
    ("prompt", "expected"), [("ab", "svdt"), ("ba", "uzrs"), ("ab" * 50, AB_TIMES_50)], ids=["ab", "ba", "ab*50"]
)
def test_hash_says_the_known_text(prompt: str, expected: str) -> None:
    running = request(3, prompt, **GREEDY)
    generate(HashModel(), [running], len(expected))
    assert text(running.output_ids) == expected


def test_hash_says_the_same_in_a_batch_of_different_lengths() -> None:
    prompts = ["ab", "ba", "ab" * 50, "x", "The quick brown fox"]
    batch = [request(row, prompt, **GREEDY) for row, prompt in enumerate(prompts, start=1)]
    generate(HashModel(), batch, 12)
    assert [text(running.output_ids) for running in batch] == [hashed(prompt, 12) for prompt in prompts]


@pytest.mark.parametrize("chunk", [1, 7, 99])
def test_hash_says_the_same_in_chunks_beside_decodes(chunk: int) -> None:
    runner, hand = CpuRunner(make_execution(HashModel())), Hand()
    chunked, decoding = request(1, "ab" * 50, **GREEDY), request(2, "ba", **GREEDY)
    while len(chunked.output_ids) < 5:
        plan = hand.plan([Part(chunked, chunk), decoding])
        collect(plan, runner.launch(plan).wait(), [chunked, decoding])
    runner.close()
    assert text(chunked.output_ids) == AB_TIMES_50[:5]
    assert text(decoding.output_ids)[:20] == hashed("ba", 20)[: len(decoding.output_ids)]


@pytest.mark.parametrize("spoil", ["swap two pages", "stale slot", "page of a neighbour"])
def test_hash_changes_its_text_when_a_page_is_wrong(spoil: str) -> None:
    runner, hand = CpuRunner(make_execution(HashModel())), Hand()
    pair = [request(1, "abcdefgh", **GREEDY), request(2, "zyxwvuts", **GREEDY)]
    for _ in range(2):
        plan = hand.plan(pair)
        runner.launch(plan).wait()
    table = runner._execution.rows.table
    if spoil == "swap two pages":
        table[1, [2, 5]] = table[1, [5, 2]]
    elif spoil == "stale slot":
        table[1, 3] = 8000
    else:
        table[1, 3] = table[2, 3]
    plan = hand.plan(pair)
    sampled = runner.launch(plan).wait()
    runner.close()
    assert text(sampled.token_ids[:1].tolist()) != hashed("abcdefgh", 3)[2]
    assert text(sampled.token_ids[1:].tolist()) == hashed("zyxwvuts", 3)[2]


def windowed(prompt: str, num_tokens: int, window: int) -> str:
    """What the hash model with a window says, in plain Python."""
    token_ids = list(prompt.encode())
    for _ in range(num_tokens):
        terms = [(i + 1) * (token * 40503 % 65521) for i, token in enumerate(token_ids)]
        token_ids.append(97 + (((sum(terms) + sum(terms[-window:])) % 65521) >> 5) % 26)
    return bytes(token_ids[len(prompt) :]).decode()


@pytest.mark.parametrize("window", [1, 4, 64])
def test_hash_with_a_window_reads_the_sliding_pool_too(window: int) -> None:
    prompts = ["ab", "abcdefghij" * 10, "q"]
    batch = [request(row, prompt, **GREEDY) for row, prompt in enumerate(prompts, start=1)]
    generate(HashModel(window), batch, 10, window=window)
    assert [text(running.output_ids) for running in batch] == [windowed(prompt, 10, window) for prompt in prompts]


@pytest.mark.parametrize(
    ("prompt", "tape"),
    [
        ('TAPE "hi"', "hi"),
        (
            '<|im_start|>system\nTAPE "no"<|im_end|>\n<|im_start|>user\nTAPE "hi"<|im_end|>\n<|im_start|>assistant\n',
            "hi",
        ),
        ('<|im_start|>user\nTAPE "a<|im_end|>b"<|im_end|>\n<|im_start|>assistant\n', "a<|im_end|>b"),
        ('TAPE "A😀é한"', "A😀é한"),
        ('TAPE "\\u0041\\n\\"q\\""', 'A\n"q"'),
        ('TAPE "a<think>b</think><eos>c"', "a<think>b</think><eos>c"),
        ("TAPE 12", ""),
        ('TAPE "open', ""),
        ('TAPE "a" and more', ""),
        ('say TAPE "a"', ""),
        ("", ""),
    ],
)
def test_tape_is_found_in_the_prompt(prompt: str, tape: str) -> None:
    assert Tapes(SPECIAL_TOKENS).parse(encode(prompt)) == encode(tape).tolist()


def test_tape_takes_half_a_surrogate_pair() -> None:
    assert Tapes(SPECIAL_TOKENS).parse(ids('TAPE "\\ud83d"')) == [0xED, 0xA0, 0xBD]


def test_tape_follows_a_row_to_its_next_prompt() -> None:
    runner, hand = CpuRunner(make_execution(TapeModel())), Hand()
    said = []
    for script in ("abc", "x" * 200, ""):
        running = request(4, f'TAPE "{script}"', **GREEDY)
        for _ in range(3):
            plan = hand.plan([running])
            collect(plan, runner.launch(plan).wait(), [running])
        said.append(running.output_ids)
    runner.close()
    assert said == [[97, 98, 99], [120, 120, 120], [257, 257, 257]]


def test_tape_ends_with_eos_for_ever() -> None:
    running = request(1, 'TAPE "ab"', **GREEDY)
    generate(TapeModel(), [running], 5)
    assert running.output_ids == [97, 98, 257, 257, 257]


def test_uniform_is_told_apart_by_seeds_alone() -> None:
    batch = [request(row, "x", seed=seed) for row, seed in enumerate((7, 7, 8), start=1)]
    generate(UniformModel(), batch, 16)
    first, again, other = (running.output_ids for running in batch)
    assert first == again
    assert first != other
    assert len(set(first)) > 8


def encode(prompt: str) -> np.ndarray:
    """Byte tokens, with special tokens where the text spells them."""
    token_ids: list[int] = []
    while prompt:
        found = next((i for i, token in enumerate(SPECIAL_TOKENS) if prompt.startswith(token)), None)
        token_ids += list(prompt[0].encode()) if found is None else [256 + found]
        prompt = prompt[1:] if found is None else prompt[len(SPECIAL_TOKENS[found]) :]
    return np.array(token_ids, np.int32)
