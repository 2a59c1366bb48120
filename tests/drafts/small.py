"""A small random target with the byte tokenizer, conversations for it, and a draft's shape."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from corymb.models.architectures import read_config
from corymb.models.toy_folders import VOCAB_SIZE, write_byte_tokenizer
from corymb.speculative.corpus import Conversation, Corpus
from corymb.speculative.draft_shape import DraftShape, Wishes, shape_for

# `corymb draft train` in a second.
SMALL = [
    *("--device", "cpu", "--num-drafts", "3", "--num-layers", "1", "--intermediate-size", "24", "--markov-rank", "8"),
    *("--batch-size", "8", "--num-anchors", "8", "--num-conversations", "24", "--conversations-per-file", "12"),
    *("--max-tokens", "200", "--max-answer-tokens", "40", "--max-running-requests", "16"),
]
STEPS = ["--num-steps", "60", "--save-steps", "15", "--warm-up-steps", "4", "--learning-rate", "0.01"]


def write_target(folder: Path, *, layers: int = 4, tied: bool = True) -> Path:
    """Llama of about 60,000 numbers; certain enough of its next token that a draft can learn something."""
    from transformers import LlamaConfig, LlamaForCausalLM  # brings Triton, which tests/gpu must be the first to import

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        bos_token_id=256,
        eos_token_id=[257, 259],
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def shape(folder: Path, *, tied: bool | None = None, **wishes: object) -> DraftShape:
    """Two layers of 24, γ = 3. `tied`: says so of the target in place of its config."""
    config = read_config(folder)
    assert config.decoder is not None
    decoder = config.decoder if tied is None else replace(config.decoder, tied=tied)
    chosen = {"num_drafts": 3, "num_layers": 2, "intermediate_size": 24, "markov_rank": 8, "mask_token_id": 256}
    return shape_for(decoder, config.architecture, Wishes(**(chosen | wishes)))  # type: ignore[arg-type]


def corpus(seed: int = 0, count: int = 12, longest: int = 40) -> Corpus:
    """Conversations of random tokens."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        length = int(random.integers(8, longest))
        ids = random.integers(0, 256, length).astype(np.int32)
        made.append(Conversation(ids, int(random.integers(1, length - 3)), "self", 1.0))
    return Corpus(made)
