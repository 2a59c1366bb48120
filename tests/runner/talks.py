"""Conversations on the models that read back what is in the pools, and what plain Python says to them."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from by_loop import FakePort

from corymb.models.toy_folders import TOYS, write_toy
from corymb.scheduler.messages import Generate, Sampling

WINDOW = TOYS["corymb/hash-sliding"]["sliding_window"]
NUM_TOKENS = 24
EVERYTHING = 1 << 30


def says(prompt: bytes, num_tokens: int, model: str) -> bytes:
    """What the model says, in plain Python."""
    token_ids = list(prompt)
    state = total = 0
    kept: list[int] = []
    for position in range(len(prompt) + num_tokens):
        if position == len(token_ids):
            window = sum(kept[-WINDOW:]) if model != "hash-recurrent" else 0
            added = state if model != "hash-sliding" else 0
            token_ids.append(97 + ((total + window + added) % 65521 >> 5) % 26)
        stored = token_ids[position] * 40503 % 65521
        kept.append((position + 1) * stored)
        total, state = total + kept[-1], (31 * state + stored) % 65521
    return bytes(token_ids[len(prompt) :])


def conversations(model: str, *, num_turns: int = 3) -> Iterator[list[bytes]]:
    """Prompts of one turn after another: each goes on from what was said before, some from only a part of it."""
    chooser = random.Random(7)
    system = b"be brief and kind, " * 3
    prompts = [system[: chooser.randint(5, 57)] + f"question {i}: ".encode() for i in range(8)] + [b"x"] * 2
    for _ in range(num_turns):
        yield prompts
        prompts = [prompt + says(prompt, NUM_TOKENS, model) for prompt in prompts]
        prompts = [prompt[: len(prompt) - i * 5 % 20] + f" and {i}? ".encode() for i, prompt in enumerate(prompts)]


def ask(rid: str, prompt: bytes, num_tokens: int = NUM_TOKENS) -> Generate:
    token_ids = np.frombuffer(prompt, np.uint8).astype(np.int32)
    return Generate(rid, token_ids.tobytes(), Sampling(max_new_tokens=num_tokens, temperature=0.0))


def cached(port: FakePort) -> list[int]:
    return [port.outputs[rid][0].num_cached_tokens for rid in sorted(port.outputs, key=int)]


def toy_folder(path: Path, model: str) -> Path:
    """A short context, so that tests are quick."""
    write_toy(f"corymb/{model}", path)
    config = json.loads((path / "config.json").read_text()) | {"max_position_embeddings": 512}
    (path / "config.json").write_text(json.dumps(config))
    return path
