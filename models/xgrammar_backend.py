"""Grammars by xgrammar. Imports torch and transformers on its way: not for the main process."""

import xgrammar

from corymb.models.grammar_backends import BadGrammar, Vocabulary
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

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._compiled = compiled

    def matcher(self) -> XGrammarMatcher:
        """See Program."""
        return XGrammarMatcher(xgrammar.GrammarMatcher(self._compiled))

    def dump(self) -> bytes:
        """See Program."""
        return str(self._compiled.serialize_json()).encode()


class XGrammarBackend:
    """Implements `Backend`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        xgrammar.set_max_recursion_depth(MAX_RECURSION)
        self._vocabulary = vocabulary
        self._infos: dict[bool, xgrammar.TokenizerInfo] = {}  # by whether special tokens are spelled

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
        return XGrammarProgram(compiled)

    def load(self, grammar: Grammar, dumped: bytes) -> XGrammarProgram:
        """See Backend."""
        info = self._info(grammar)
        try:
            return XGrammarProgram(xgrammar.CompiledGrammar.deserialize_json(dumped.decode(), info))
        except (RuntimeError, ValueError) as error:
            raise BadGrammar(_reason(error)) from error

    def _info(self, grammar: Grammar) -> xgrammar.TokenizerInfo:
        # The tags of a structural tag may be tokens of their own, which elsewhere would be invisible text.
        spelled = grammar.kind == "structural_tag"
        if spelled not in self._infos:
            vocabulary = self._vocabulary
            hidden = frozenset[int]() if spelled else vocabulary.special_ids
            tokens = [b"" if index in hidden else token for index, token in enumerate(vocabulary.tokens)]
            self._infos[spelled] = xgrammar.TokenizerInfo(
                tokens,
                vocab_type=xgrammar.VocabType.RAW,
                vocab_size=len(tokens),
                stop_token_ids=list(vocabulary.eos_ids),
            )
        return self._infos[spelled]


def make(vocabulary: Vocabulary) -> XGrammarBackend:
    """See grammar_backends.make_backend."""
    return XGrammarBackend(vocabulary)


def _reason(error: Exception) -> str:
    """The library's words without where in its sources they come from."""
    words = " ".join(str(error).split())
    location, mark, rest = words.partition(_LOCATION)
    if mark and location.startswith("["):
        words = rest.partition(": ")[2] or rest
    return words[:300]
