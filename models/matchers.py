"""The compiled grammars of a scheduler process, taken in behind its back."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from corymb.models.grammar_backends import Backend, BadGrammar, Matcher, Program
from corymb.scheduler.messages import Grammar

Key = tuple[str, str, bool]


class BackgroundMatchers:
    """Implements `scheduler.constraint.Matchers`. Owns the compiled grammars and the thread that reads them: reading a
    large one takes tens of milliseconds, in which steps go on."""

    def __init__(self, make: Callable[[], Backend]) -> None:
        """`make` is called with the first grammar, on the thread: it imports packages."""
        self._make = make
        self._backend: Backend | None = None  # the thread's
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
        self._programs: dict[Key, Future[Program]] = {}

    def learn(self, grammar: Grammar, compiled: bytes) -> None:
        """See Matchers."""
        self._programs[_key(grammar)] = self._thread.submit(self._load, grammar, compiled)

    def learnt(self, grammar: Grammar) -> str | None:
        """See Matchers."""
        program = self._programs[_key(grammar)]
        if not program.done():
            return None
        error = program.exception()
        if error is None:
            return ""
        if not isinstance(error, BadGrammar):
            raise error
        return str(error)

    def knows(self, grammar: Grammar) -> bool:
        """See Matchers."""
        program = self._programs.get(_key(grammar))
        return program is not None and program.exception() is None

    def open(self, grammar: Grammar) -> Matcher:
        """See Matchers."""
        return self._programs[_key(grammar)].result().matcher()

    def forget(self, grammar: Grammar) -> None:
        """See Matchers."""
        self._programs.pop(_key(grammar), None)

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _load(self, grammar: Grammar, compiled: bytes) -> Program:
        if self._backend is None:
            self._backend = self._make()
        return self._backend.load(grammar, compiled)


def _key(grammar: Grammar) -> Key:
    return grammar.kind, grammar.text, grammar.spells_end
