"""Builds tokenizer.json and tokenizer_config.json from the vocabulary inside a GGUF file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from corymb.models.errors import SourceError
from corymb.models.gguf_config import Json

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPACE = "▁"


class _Kind(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """GGUF's token tables."""

    path: Path
    metadata: Mapping[str, Any]
    pieces: Sequence[str]
    kinds: Sequence[int]

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def piece(self, key: str) -> str | None:
        """The piece whose id the metadata gives under `key`."""
        index = self.get(key)
        return self.pieces[int(index)] if index is not None and int(index) < len(self.pieces) else None

    def added(self, *, normalized: bool) -> list[AddedToken]:
        """Pieces that are found in a text before anything else; only control tokens are special."""
        special = (_Kind.CONTROL, _Kind.UNKNOWN)
        return [
            AddedToken(piece, special=kind in special, normalized=normalized and kind == _Kind.USER_DEFINED)
            for piece, kind in zip(self.pieces, self.kinds, strict=True)
            if kind in (*special, _Kind.USER_DEFINED) and piece
        ]


def build_tokenizer(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that gives the ids which the model was trained with; raises SourceError for unknown kinds."""
    pieces = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(pieces, list) or not pieces:
        raise SourceError(f"{path} has no vocabulary inside; take a GGUF file with one.")
    kinds = metadata.get("tokenizer.ggml.token_type")
    kinds = [int(_Kind.NORMAL)] * len(pieces) if kinds is None else kinds.tolist()
    vocabulary = _Vocabulary(path, metadata, pieces, kinds)
    model = vocabulary.get("model")
    if model == "gpt2":
        tokenizer = _byte_level(vocabulary)
    elif model == "llama":
        tokenizer = _sentencepiece(vocabulary)
    else:
        raise SourceError(f"{path} has a tokenizer of kind {model!r}; gpt2 and llama can be read.")
    _add_ends(tokenizer, vocabulary)
    return tokenizer


def tokenizer_config(path: Path, metadata: Mapping[str, Any]) -> Json:
    """The names of the tokens with a role, and the chat template where the file has one."""
    vocabulary = _Vocabulary(path, metadata, metadata["tokenizer.ggml.tokens"], ())
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    named = {f"{role}_token": vocabulary.piece(f"{key}_token_id") for role, key in roles.items()}
    found: Json = {role: piece for role, piece in named.items() if piece is not None}
    found |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if template := metadata.get("tokenizer.chat_template"):
        found["chat_template"] = template
    return found


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    kind = vocabulary.get("pre", "default")
    vocab = {piece: index for index, piece in enumerate(vocabulary.pieces)}
    merges = _listed_merges(vocabulary, vocab)
    whole_words = kind in _LLAMA3 | _TEKKEN  # a word that is a piece is never built from merges
    tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=whole_words))
    if kind in _QWEN:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(vocabulary.path, kind)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(vocabulary.added(normalized=False))
    return tokenizer


def _listed_merges(vocabulary: _Vocabulary, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for merge in vocabulary.get("merges", ()):
        left, _, right = merge.partition(" ")
        if not (left in vocab and right in vocab and left + right in vocab):
            raise SourceError(f"{vocabulary.path} merges {merge!r}, which are no tokens of its vocabulary.")
        merges.append((left, right))
    return merges


# Values of tokenizer.ggml.pre.
_GPT2 = frozenset({"default", "gpt-2"})
_SMOLLM = frozenset({"smollm"})
_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3"})
_QWEN = frozenset({"qwen2", "deepseek-r1-qwen"})
_TEKKEN = frozenset({"tekken"})


def _pre_tokenizer(path: Path, kind: str) -> pre_tokenizers.PreTokenizer:
    if kind in _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind in _SMOLLM:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if kind in _LLAMA3:
        return _split(_CONTRACTIONS + _WORDS.replace("NUMBERS", r"\p{N}{1,3}"))
    if kind in _QWEN:
        return _split(_CONTRACTIONS + _WORDS.replace("NUMBERS", r"\p{N}"))
    if kind in _TEKKEN:
        return _split(_TEKKEN_WORDS)
    known = ", ".join(sorted(_GPT2 | _SMOLLM | _LLAMA3 | _QWEN | _TEKKEN))
    raise SourceError(f"{path} splits text by the rule {kind!r} (tokenizer.ggml.pre), which is not one of: {known}.")


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    scores = vocabulary.get("scores")
    if scores is None:
        raise SourceError(f"{vocabulary.path} has no scores for its tokens, and its tokenizer needs them.")
    vocab = {piece: index for index, piece in enumerate(vocabulary.pieces)}
    model = BPE(
        vocab,
        _merges(vocabulary, vocab, scores.tolist()),
        unk_token=vocabulary.piece("unknown_token_id"),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    adds_space = bool(vocabulary.get("add_space_prefix", True))
    to_marks = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), to_marks]) if adds_space else to_marks
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    # Runs of spaces are stored as marks: they are found in the text after its spaces became marks. With a space
    # put in front of everything that would also change the pieces themselves.
    tokenizer.add_tokens(vocabulary.added(normalized=not adds_space))
    return tokenizer


def _merges(vocabulary: _Vocabulary, vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, the best-scored piece first: the order that sentencepiece merges in."""
    normal = (_Kind.NORMAL, _Kind.UNUSED)
    usable = {piece for piece, kind in zip(vocabulary.pieces, vocabulary.kinds, strict=True) if kind in normal}
    found: list[tuple[float, int, int, str, str]] = []
    for index, piece in enumerate(vocabulary.pieces):
        if piece not in usable:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in usable and right in usable:
                found.append((-scores[index], vocab[left], vocab[right], left, right))
    found.sort()
    return [(left, right) for _, _, _, left, right in found]


def _add_ends(tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    """Lets the tokenizer put the first and last token around a text, where the model wants them."""
    by_default = vocabulary.get("model") == "llama" or vocabulary.get("pre") in _LLAMA3
    first = vocabulary.piece("bos_token_id") if vocabulary.get("add_bos_token", by_default) else None
    last = vocabulary.piece("eos_token_id") if vocabulary.get("add_eos_token", False) else None
    if first is None and last is None:
        return
    single = " ".join(part for part in (first, "$A", last) if part)
    named = [(piece, tokenizer.token_to_id(piece)) for piece in (first, last) if piece]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)
