"""The grammars that the scheduler knows: compiled when first asked for, forgotten when they take too much memory."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from corymb.scheduler.messages import Grammar
from corymb.serve.compiler import Compiler
from corymb.serve.compiling import Begin, Compiled
from corymb.serve.engine import Engine, EngineDied, EngineUnavailable
from corymb.serve.errors import ApiError
from corymb.serve.fan import unavailable
from corymb.serve.metrics import Metrics

CACHE_BYTES = 256 << 20
MAX_FAILURES = 1024  # remembered, so that a hostile grammar costs its limit once


@dataclass(slots=True)
class Known:
    """A grammar that the scheduler has taken in."""

    size_bytes: int
    num_holders: int = 0  # calls that are about to name it


class GrammarStore:
    """Owns the compiler process, and decides which grammars the scheduler keeps."""

    def __init__(
        self, engine: Engine, metrics: Metrics, begin: Begin | None, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        """`begin` None: this server has no back end for grammars."""
        self._engine = engine
        self._metrics = metrics
        self._begin = begin
        self._compiler = None if begin is None else Compiler(begin)
        self._cache_bytes = cache_bytes
        self._known: OrderedDict[Grammar, Known] = OrderedDict()
        self._failures: OrderedDict[Grammar, ApiError] = OrderedDict()
        self._learning: dict[Grammar, asyncio.Task[None]] = {}
        self._num_waiting: dict[Grammar, int] = {}

    @asynccontextmanager
    async def held(self, grammars: Iterable[Grammar | None]) -> AsyncIterator[None]:
        """Inside, requests may name these grammars. Raises ApiError for one that cannot be followed."""
        bare = {msgspec.structs.replace(each, after=()) for each in grammars if each is not None}
        held: list[Known] = []
        try:
            for grammar in bare:
                known = await self._hold(grammar)
                held.append(known)
            yield
        finally:
            for known in held:
                known.num_holders -= 1
            self._shrink()

    async def _hold(self, grammar: Grammar) -> Known:
        if grammar in self._failures:
            self._failures.move_to_end(grammar)
            raise self._failures[grammar]
        while (known := self._known.get(grammar)) is None:
            await self._wait(grammar)
        self._known.move_to_end(grammar)
        known.num_holders += 1
        return known

    async def _wait(self, grammar: Grammar) -> None:
        """Until it is learnt, together with whoever else waits for it; the last to leave stops the work."""
        task = self._learning.get(grammar)
        if task is None:
            task = self._learning[grammar] = asyncio.create_task(self._learn(grammar))
        self._num_waiting[grammar] = self._num_waiting.get(grammar, 0) + 1
        try:
            await asyncio.shield(task)
        finally:
            self._num_waiting[grammar] -= 1
            if not self._num_waiting[grammar]:
                del self._num_waiting[grammar]
                self._learning.pop(grammar, None)
                task.cancel()

    async def _learn(self, grammar: Grammar) -> None:
        begun_s = time.monotonic()
        compiled = await self._compile(grammar)
        if compiled.failure:
            self._metrics.grammar_failed("too_complex" if compiled.too_complex else "invalid")
            raise self._failed(grammar, compiled)
        try:
            reply = await self._engine.learn(grammar, compiled.compiled)
        except (EngineUnavailable, EngineDied) as error:
            raise unavailable(self._engine, str(error)) from error
        if not reply.ok:
            raise ApiError("internal_error", f"The scheduler cannot use the grammar: {reply.message}")
        self._known[grammar] = Known(len(compiled.compiled))
        self._metrics.grammar_compiled(time.monotonic() - begun_s)

    async def _compile(self, grammar: Grammar) -> Compiled:
        if self._compiler is None:
            message = (
                "Answers cannot be made to follow a grammar here: install corymb[grammar] and see --grammar-backend."
            )
            raise ApiError("unsupported_parameter", message, param=grammar.kind)
        return await self._compiler.compile(grammar)

    def _failed(self, grammar: Grammar, compiled: Compiled) -> ApiError:
        code = "grammar_too_complex" if compiled.too_complex else "invalid_value"
        start = "The grammar is too complex" if compiled.too_complex else "The grammar cannot be used"
        error = ApiError(code, f"{start}: {compiled.failure}.", param=grammar.kind)
        self._failures[grammar] = error
        if len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)
        return error

    def _shrink(self) -> None:
        """Forgets what was not used for longest, until the rest fits."""
        total = sum(known.size_bytes for known in self._known.values())
        for grammar in [each for each, known in self._known.items() if not known.num_holders]:
            if total <= self._cache_bytes:
                break
            total -= self._known.pop(grammar).size_bytes
            self._engine.forget_grammar(grammar)
        self._metrics.grammars_kept(len(self._known), total)
