"""Grammars by llguidance: nothing is compiled ahead, each mask is computed from the grammar itself."""

import llguidance
import llguidance.numpy

from corymb.models.grammar_backends import BadGrammar, Vocabulary, with_end_apart
from corymb.models.grammar_endings import endless_rule
from corymb.models.lark import from_rules
from corymb.scheduler.messages import Grammar
from corymb.scheduler.plan import Int32


class LLGuidanceMatcher:
    """Implements `Matcher`."""

    def __init__(self, matcher: llguidance.LLMatcher, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._ended = 0  # tokens accepted since the text ended, that one included

    def accept(self, token_id: int) -> bool:
        """See Matcher."""
        if self.is_over:
            return False
        if token_id in self._eos_ids:  # told by its mask, and not to the matcher: from its end none comes back
            self._ended = self._matcher.compute_bitmask()[token_id >> 3] >> (token_id & 7) & 1
            return self.is_over
        return bool(self._matcher.try_consume_tokens([token_id]))

    def fill(self, bits: Int32) -> None:
        """See Matcher."""
        bits[:] = 0
        if not self.is_over:
            llguidance.numpy.fill_next_token_bitmask(self._matcher, bits[None])

    def rollback(self, count: int) -> None:
        """See Matcher."""
        inside = count - self._ended
        self._ended = 0
        if inside:
            self._matcher.rollback(inside)

    @property
    def is_over(self) -> bool:
        """See Matcher."""
        return self._ended > 0


class LLGuidanceProgram:
    """Implements `Program`."""

    def __init__(self, lark: str, tokenizer: llguidance.LLTokenizer, eos_ids: frozenset[int]) -> None:
        self._lark = lark
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids

    def matcher(self) -> LLGuidanceMatcher:
        """See Program."""
        matcher = llguidance.LLMatcher(self._tokenizer, llguidance.LLMatcher.grammar_from_lark(self._lark), log_level=0)
        if matcher.is_error():
            raise BadGrammar(_reason(matcher.get_error()))
        return LLGuidanceMatcher(matcher, self._eos_ids)

    def dump(self) -> bytes:
        """See Program."""
        return self._lark.encode()


class LLGuidanceBackend:
    """Implements `Backend`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=len(vocabulary.tokens),
            eos_token=list(vocabulary.eos_ids),
        )

    def compile(self, grammar: Grammar) -> LLGuidanceProgram:
        """See Backend."""
        if grammar.kind == "structural_tag":
            raise BadGrammar("structural tags need --grammar-backend xgrammar")
        endless = endless_rule(grammar.text)
        if endless is not None:
            raise BadGrammar(f"the rule {endless!r} never ends, so that no text is right for it")
        program = LLGuidanceProgram(from_rules(with_end_apart(grammar).text), self._tokenizer, self._eos_ids)
        program.matcher()
        return program

    def load(self, _: Grammar, dumped: bytes) -> LLGuidanceProgram:
        """See Backend."""
        return LLGuidanceProgram(dumped.decode(), self._tokenizer, self._eos_ids)


class _Tokens:
    """A vocabulary as llguidance asks for it. Where a grammar leaves no choice, it asks for the tokens too."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        hidden = vocabulary.special_ids | set(vocabulary.eos_ids)
        # What begins with 0xFF is no text: a special token by that name.
        self.tokens = [
            b"\xff<%d>" % index if index in hidden else token for index, token in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = sorted(hidden)
        self._ids = {token: index for index, token in enumerate(self.tokens) if token and index not in hidden}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """The longest token at each place; what no token says is left out."""
        data = text if isinstance(text, bytes) else text.encode()
        token_ids, at = [], 0
        while at < len(data):
            sizes = range(min(self._longest, len(data) - at), 0, -1)
            size = next((size for size in sizes if data[at : at + size] in self._ids), None)
            if size is not None:
                token_ids.append(self._ids[data[at : at + size]])
            at += size or 1
        return token_ids


def make(vocabulary: Vocabulary) -> LLGuidanceBackend:
    """See grammar_backends.make_backend."""
    return LLGuidanceBackend(vocabulary)


def _reason(error: str) -> str:
    return " ".join(error.split())[:300]
