"""What compiles grammars and follows them: the contract, and which packages can meet it here."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import msgspec

from corymb.models.errors import UnsupportedModel
from corymb.scheduler.messages import Grammar
from corymb.scheduler.plan import Int32

# Ends the texts of a grammar that spells its end, and is nowhere else in them. Back ends know far sooner what may come
# behind a counted set where a character of ASCII must follow that is not in it; at a text's end nothing else does.
END_POINT = 4
END = f'"\\u{END_POINT:04x}"'

Name = Literal["xgrammar", "llguidance", "none"]

_PACKAGES: dict[Name, tuple[str, ...]] = {
    "xgrammar": ("xgrammar", "tvm_ffi"),
    "llguidance": ("llguidance",),
    "none": (),
}


def with_end_apart(grammar: Grammar) -> Grammar:
    """The same, ending where its rules do: its end is no character."""
    if not grammar.spells_end:
        return grammar
    return msgspec.structs.replace(grammar, text=grammar.text.replace(END, '""'), spells_end=False)


class BadGrammar(ValueError):
    """A grammar that cannot be followed; one sentence for the client."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that grammars are matched against."""

    tokens: Sequence[bytes]  # each one's text; empty for ids without a meaning
    special_ids: frozenset[int]  # those that are left out of texts: only structural tags may name them
    eos_ids: Sequence[int]  # those that end a text


class Matcher(Protocol):
    """See scheduler.constraint."""

    def accept(self, token_id: int) -> bool:
        """Moves on by one token; False, and nothing moves, where it cannot come here."""
        ...

    def fill(self, bits: Int32) -> None:
        """Sets the bits [W] of the tokens that may come next, and clears the others."""
        ...

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens that it accepted."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it has accepted a token that ends the text."""
        ...


class Program(Protocol):
    """A compiled grammar."""

    def matcher(self) -> Matcher:
        """A new matcher at the beginning."""
        ...

    def dump(self) -> bytes:
        """For `Backend.load` in another process of the same vocabulary."""
        ...


class Backend(Protocol):
    """Compiles for one vocabulary."""

    def compile(self, grammar: Grammar) -> Program:
        """Raises BadGrammar, MemoryError. May take any time and memory, or end the process: not for where requests are
        served."""
        ...

    def load(self, grammar: Grammar, dumped: bytes) -> Program:
        """The grammar as another process compiled it. Raises BadGrammar."""
        ...


def is_installed(name: Name) -> bool:
    """Whether the packages are there; none of them is imported."""
    return all(importlib.util.find_spec(package) is not None for package in _PACKAGES[name])


def make_backend(name: Name, vocabulary: Vocabulary) -> Backend:
    """Imports what it takes, which takes seconds. Raises UnsupportedModel where that is missing."""
    if name == "none" or not is_installed(name):
        raise UnsupportedModel(f"The grammar back end {name} is not installed; install corymb[grammar].")
    # By name: the package that the module needs may be missing.
    module = importlib.import_module(f"corymb.models.{name}_backend")
    return cast("Backend", module.make(vocabulary))
