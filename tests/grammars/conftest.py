"""The real back end over the byte tokenizer of the test models, and random walks along a grammar."""

import random

import numpy as np
import pytest

from corymb.models.grammar_backends import Vocabulary, make_backend
from corymb.scheduler.messages import Grammar
from corymb.serve.tokenizer import BYTE_SPECIALS, byte_tokenizer

EOS_IDS = (257, 259)
VOCAB_SIZE = 256 + len(BYTE_SPECIALS)


class Bytes:
    """Compiles grammars and speaks them."""

    def __init__(self, name: str) -> None:
        spelling = byte_tokenizer().spelling
        tokens = [spelling[index] for index in range(VOCAB_SIZE)]
        self.backend = make_backend(name, Vocabulary(tokens, spelling.specials, EOS_IDS))

    def program(self, rules: str, kind: str = "ebnf", *, spells_end: bool = False):
        """A compiled grammar that has travelled."""
        grammar = Grammar(kind, rules, spells_end=spells_end)
        return self.backend.load(grammar, self.backend.compile(grammar).dump())

    def accepts(self, program, text: str | bytes) -> bool:
        """Whether the grammar allows this whole text."""
        matcher = program.matcher()
        data = text if isinstance(text, bytes) else text.encode()
        return all(matcher.accept(byte) for byte in data) and matcher.accept(EOS_IDS[0])

    def walk(self, program, seed: int, *, longest: int = 400) -> str | None:
        """A text that the grammar allows, chosen at random; None where it did not end in time."""
        chooser, matcher, said = random.Random(seed), program.matcher(), bytearray()
        bits = np.zeros(-(-VOCAB_SIZE // 32), np.int32)
        while len(said) < longest:
            matcher.fill(bits)
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:VOCAB_SIZE]).tolist()
            assert allowed, f"nothing may follow {bytes(said)!r}"
            ends = [token_id for token_id in allowed if token_id in EOS_IDS]
            token_id = ends[0] if ends and chooser.random() < 0.4 else chooser.choice(allowed)
            assert matcher.accept(token_id)
            if matcher.is_over:
                return said.decode()
            assert token_id < 256, "a special token stands in a text"
            said.append(token_id)
        return None


@pytest.fixture(scope="session")
def tagwise() -> Bytes:
    """The one that knows structural tags."""
    return Bytes("xgrammar")


@pytest.fixture(scope="session", params=["xgrammar", "llguidance"])
def bytewise(request: pytest.FixtureRequest) -> Bytes:
    return Bytes(request.param)
