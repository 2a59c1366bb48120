"""Text to token ids and back, without transformers: over tokenizer.json, or over plain bytes."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from corymb.models.errors import BrokenModel
from corymb.models.toy_folders import BYTE_TOKENIZER
from corymb.serve.spelling import Spelling, SpellingError, byte_spelling, read_spelling

# Ids from 256 on.
BYTE_SPECIALS = (
    "<bos>",
    "<eos>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
_SPACES = " " * 10_000
_NORMAL_FORM_SHRINKS = 4  # composing a text (NFC) makes it shorter by no more than this


class Encoder(Protocol):
    """Turns text into token ids."""

    longest_piece: int  # characters of the longest token

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids; names of special tokens in the text become those tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Ends:
    """The tokens that begin and end a text, by name ("" for none)."""

    bos: str = ""
    eos: str = ""


BYTE_ENDS = Ends("<bos>", "<eos>")


class Tokenizer:
    """Encodes prompts and spells tokens. Ids without a meaning are spelled as nothing."""

    def __init__(self, encoder: Encoder, spelling: Spelling, ends: Ends) -> None:
        self.spelling = spelling
        self.vocab_size = spelling.num_tokens
        self.bos_token, self.eos_token = ends.bos, ends.eos
        self.bos_id, self.eos_id = self._id(encoder, ends.bos), self._id(encoder, ends.eos)
        self._encoder = encoder

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; names of special tokens inside it become those tokens."""
        return self._encoder.encode(valid_text(text), add_special_tokens=add_special_tokens)

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least, without the work of encoding it."""
        return -(-len(text) // (self._encoder.longest_piece * _NORMAL_FORM_SHRINKS))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence; bytes that are no text become U+FFFD."""
        return self.spelling.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, maybe a part of a character; of a special token its name."""
        return self.spelling[token_id]

    def token_text(self, token_id: int) -> str:
        """One token as readable text; parts of characters become U+FFFD."""
        return self.spelling[token_id].decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token marks structure and is left out of texts."""
        return token_id in self.spelling.specials

    @staticmethod
    def _id(encoder: Encoder, name: str) -> int | None:
        ids = encoder.encode(name, add_special_tokens=False) if name else []
        return ids[0] if len(ids) == 1 else None


def load_tokenizer(folder: Path) -> Tokenizer:
    """Reads the tokenizer of a model folder; raises BrokenModel."""
    config = read_json(folder / "tokenizer_config.json")
    if config.get("tokenizer_class") == BYTE_TOKENIZER:
        return byte_tokenizer()
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise BrokenModel(f"{folder} has no tokenizer.json.")
    try:
        # The library raises nothing more special than Exception for a file that it cannot read.
        json_tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise BrokenModel(f"{path} cannot be read: {error}.") from error
    # Texts are cut by the server's own limits, never silently by the file's.
    json_tokenizer.no_truncation()
    json_tokenizer.no_padding()
    try:
        spelling = read_spelling(json_tokenizer)
    except SpellingError as error:
        raise BrokenModel(f"{path} cannot be used: {error}.") from error
    return Tokenizer(_JsonEncoder(json_tokenizer), spelling, read_ends(config))


def byte_tokenizer() -> Tokenizer:
    """The tokenizer of the toys: a token a byte, and eight special tokens."""
    return Tokenizer(_ByteEncoder(), byte_spelling(BYTE_SPECIALS), BYTE_ENDS)


def read_ends(config: dict[str, Any]) -> Ends:
    """The first and last token's names in a tokenizer_config.json."""
    return Ends(_name(config.get("bos_token")), _name(config.get("eos_token")))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, empty if there is none; raises BrokenModel."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BrokenModel(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise BrokenModel(f"{path} should hold a JSON object.")
    return value


def valid_text(text: str) -> str:
    """Replaces halves of surrogate pairs, which JSON can carry but no encoding can, as web browsers do."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _name(token: Any) -> str:
    """A token's name in tokenizer_config.json: a string, or an object that holds one."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


class _JsonEncoder:
    """Encodes with a tokenizer.json."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.longest_piece = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
        if self.longest_piece * _NORMAL_FORM_SHRINKS * len(self.encode(_SPACES, add_special_tokens=False)) < len(
            _SPACES
        ):
            self.longest_piece = sys.maxsize  # a tokenizer that drops spaces: length says nothing

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # As a batch of one: encoding a single text would hold Python's lock, and with it every other request.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


class _ByteEncoder:
    """Encodes as UTF-8. Nothing is ever put around a text."""

    longest_piece = max(map(len, BYTE_SPECIALS))

    def __init__(self) -> None:
        self._specials = {name: 256 + index for index, name in enumerate(BYTE_SPECIALS)}
        self._split = re.compile("(" + "|".join(map(re.escape, BYTE_SPECIALS)) + ")")

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:  # noqa: ARG002
        token_ids: list[int] = []
        for index, part in enumerate(self._split.split(text)):
            if index % 2:
                token_ids.append(self._specials[part])
            else:
                token_ids.extend(part.encode())
        return token_ids
