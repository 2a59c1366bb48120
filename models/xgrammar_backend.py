"""Grammars by xgrammar. Imports torch and transformers on its way: not for the main process."""

from collections.abc import Sequence

import xgrammar

from corymb.models.grammar_backends import END_POINT, BadGrammar, Vocabulary
from corymb.models.grammar_endings import endless_rule
from corymb.scheduler.messages import Grammar
from corymb.scheduler.plan import Int32

MAX_RECURSION = 2_000  # of its parsers and converters, in calls

_LOCATION = "] "
_NO_MEMORY = "bad_alloc"


class XGrammarMatcher:
    """Implements `Matcher`."""

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> bool:
        """See Matcher."""
        return bool(self._matcher.accept_token(token_id))

    def fill(self, bits: Int32) -> None:
        """See Matcher."""
        if self.is_over:  # it refuses to be asked
            bits[:] = 0
        elif not self._matcher.fill_next_token_bitmask(bits[None]):
            bits[:] = -1

    def rollback(self, count: int) -> None:
        """See Matcher."""
        self._matcher.rollback(count)

    @property
    def is_over(self) -> bool:
        """See Matcher."""
        return bool(self._matcher.is_terminated())


class XGrammarProgram:
    """Implements `Program`."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, *, spells_end: bool) -> None:
        self._compiled = compiled
        self._spells_end = spells_end  # its texts end with a character, and not with a token that is apart

    def matcher(self) -> XGrammarMatcher:
        """See Program."""
        matcher = xgrammar.GrammarMatcher(self._compiled, terminate_without_stop_token=self._spells_end)
        return XGrammarMatcher(matcher)

    def dump(self) -> bytes:
        """See Program."""
        return str(self._compiled.serialize_json()).encode()


class XGrammarBackend:
    """Implements `Backend`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        xgrammar.set_max_recursion_depth(MAX_RECURSION)
        self._vocabulary = vocabulary
        # By whether special tokens are spelled, and whether the end is.
        self._infos: dict[tuple[bool, bool], xgrammar.TokenizerInfo] = {}

    def compile(self, grammar: Grammar) -> XGrammarProgram:
        """See Backend."""
        # One thread and no cache of its own: both are bounded outside.
        compiler = xgrammar.GrammarCompiler(self._info(grammar), max_threads=1, cache_enabled=False)
        try:
            if grammar.kind == "structural_tag":
                compiled = compiler.compile_structural_tag(grammar.text)
            else:
                compiled = compiler.compile_grammar(grammar.text)
        except (RuntimeError, ValueError, TypeError) as error:
            if _NO_MEMORY in str(error):
                raise MemoryError from error
            raise BadGrammar(_reason(error)) from error
        endless = endless_rule(str(compiled.grammar))
        if endless is not None:
            raise BadGrammar(f"the rule {endless!r} never ends, so that no text is right for it")
        return XGrammarProgram(compiled, spells_end=grammar.spells_end)

    def load(self, grammar: Grammar, dumped: bytes) -> XGrammarProgram:
        """See Backend."""
        info = self._info(grammar)
        try:
            compiled = xgrammar.CompiledGrammar.deserialize_json(dumped.decode(), info)
        except (RuntimeError, ValueError) as error:
            raise BadGrammar(_reason(error)) from error
        return XGrammarProgram(compiled, spells_end=grammar.spells_end)

    def _info(self, grammar: Grammar) -> xgrammar.TokenizerInfo:
        # The tags of a structural tag may be tokens of their own, which elsewhere would be invisible text.
        key = spelled, spells_end = grammar.kind == "structural_tag", grammar.spells_end
        if key not in self._infos:
            vocabulary = self._vocabulary
            hidden = frozenset[int]() if spelled else vocabulary.special_ids
            tokens = [b"" if index in hidden else token for index, token in enumerate(vocabulary.tokens)]
            if spells_end:
                tokens = _with_spelled_end(tokens, vocabulary.eos_ids)
            self._infos[key] = xgrammar.TokenizerInfo(
                tokens,
                vocab_type=xgrammar.VocabType.RAW,
                vocab_size=len(tokens),
                stop_token_ids=[] if spells_end else list(vocabulary.eos_ids),
            )
        return self._infos[key]


def make(vocabulary: Vocabulary) -> XGrammarBackend:
    """See grammar_backends.make_backend."""
    return XGrammarBackend(vocabulary)


def _with_spelled_end(tokens: list[bytes], eos_ids: Sequence[int]) -> list[bytes]:
    """Tokens of which those that end a text spell its end, and no others do."""
    end = bytes((END_POINT,))
    spelled = [b"" if end in token else token for token in tokens]
    for token_id in eos_ids:
        spelled[token_id] = end
    return spelled


def _reason(error: Exception) -> str:
    """The library's words without where in its sources they come from."""
    words = " ".join(str(error).split())
    location, mark, rest = words.partition(_LOCATION)
    if mark and location.startswith("["):
        words = rest.partition(": ")[2] or rest
    return words[:300]
