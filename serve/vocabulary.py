"""What a model's tokens spell, for those who match grammars against them."""

from pathlib import Path

from corymb.models.grammar_backends import Vocabulary
from corymb.serve.tokenizer import load_tokenizer


def read_vocabulary(tokenizer_folder: Path, *, vocab_size: int, eos_ids: frozenset[int]) -> Vocabulary:
    """Reads a tokenizer; the model's vocabulary may be larger than the tokenizer's. Raises BrokenModel."""
    spelling = load_tokenizer(tokenizer_folder).spelling
    tokens = [spelling[index] for index in range(vocab_size)]
    return Vocabulary(tokens, spelling.specials, sorted(eos_ids))
