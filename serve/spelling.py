"""The bytes of every token: what decoding is made of, whole or piece by piece."""

import re
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import tokenizers

T = TypeVar("T")

_SPACE_MARK = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class SpellingError(Exception):
    """A tokenizer turns tokens into text in a way that is not known here; one sentence for the operator."""


class Spelling:
    """Knows the bytes of each token and which tokens are special. A text is the bytes of its tokens, as UTF-8."""

    def __init__(
        self, spell: Callable[[int], bytes], num_tokens: int, specials: frozenset[int], *, strips_space: bool = False
    ) -> None:
        self.num_tokens = num_tokens
        self.specials = specials
        self._strips_space = strips_space  # a text that begins with a space loses it: it was put there by encoding
        self._bytes = Table(spell, num_tokens)
        self._all = Table(self._bytes.__getitem__, num_tokens)
        self._without: dict[frozenset[int], Table[bytes]] = {}  # by the special tokens that are shown all the same

    def __getitem__(self, token_id: int) -> bytes:
        """The bytes of one token, special or not; nothing for an id without a meaning."""
        return self._bytes[token_id]

    def shown(self, *, skip_special_tokens: bool, but: frozenset[int] = frozenset()) -> "Table[bytes]":
        """The bytes that each token adds to a text. `but`: special tokens that are not skipped; few different sets."""
        if not skip_special_tokens:
            return self._all
        if but not in self._without:
            skipped = self.specials - but
            self._without[but] = Table(lambda token: b"" if token in skipped else self._bytes[token], self.num_tokens)
        return self._without[but]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of a whole sequence; bytes that are no text become U+FFFD."""
        pieces = self.shown(skip_special_tokens=skip_special_tokens)
        text = b"".join([pieces[token_id] for token_id in token_ids]).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strips_space else text


class Table(dict[int, T], Generic[T]):
    """Values by token id, made when first asked for."""

    def __init__(self, make: Callable[[int], T], num_tokens: int) -> None:
        super().__init__()
        self._make = make
        self._num_tokens = num_tokens

    def __missing__(self, token_id: int) -> T:
        value = self._make(token_id)
        if 0 <= token_id < self._num_tokens:  # no caller can make the table grow without end
            self[token_id] = value
        return value


def byte_spelling(specials: Sequence[str]) -> Spelling:
    """Ids 0 to 255 are bytes; the special tokens follow."""
    table = [bytes([value]) for value in range(256)] + [name.encode() for name in specials]
    special_ids = frozenset(range(256, len(table)))
    return Spelling(lambda index: table[index] if 0 <= index < len(table) else b"", len(table), special_ids)


def read_spelling(tokenizer: tokenizers.Tokenizer) -> Spelling:
    """Finds out how a tokenizer.json spells its tokens; raises SpellingError."""
    decoder = tokenizer.decoder
    added = tokenizer.get_added_tokens_decoder()
    specials = frozenset(index for index, token in added.items() if token.special)
    num_tokens = max(tokenizer.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
    # Ask the decoder instead of reading its description: several descriptions mean the same.
    if decoder is not None and decoder.decode(["Ġa"]) == " a":
        names = {index: token.content.encode() for index, token in added.items()}

        def spell(index: int) -> bytes:
            return names[index] if index in names else _byte_level(tokenizer.id_to_token(index) or "")

        return Spelling(spell, num_tokens, specials)
    if decoder is not None and decoder.decode(["a", "▁b"]) == "a b":
        has_bytes = decoder.decode(["a", "<0x41>"]) == "aA"

        def spell_marked(index: int) -> bytes:
            return _marked(tokenizer.id_to_token(index) or "", has_bytes=has_bytes)

        return Spelling(spell_marked, num_tokens, specials, strips_space=decoder.decode(["▁b"]) == "b")
    raise SpellingError(f"its decoder ({decoder}) is neither byte-level BPE nor sentencepiece")


def _marked(piece: str, *, has_bytes: bool) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece) if has_bytes else None
    return bytes([int(byte[1], 16)]) if byte else piece.replace(_SPACE_MARK, " ").encode()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in piece])
    except KeyError:  # not made of the alphabet, so it stands for itself
        return piece.encode()


def _alphabet() -> dict[str, int]:
    """Byte-level BPE writes bytes as printable characters: as themselves if they are, else from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _alphabet()
