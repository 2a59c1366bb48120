"""The grammars that the scheduler knows: compiled when first asked for, forgotten when they take too much memory."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
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
        self._failures: OrderedDict[Grammar, Compiled] = OrderedDict()
        self._learning: dict[Grammar, asyncio.Task[None]] = {}
        self._num_waiting: dict[Grammar, int] = {}

    @asynccontextmanager
    async def held(self, grammars: Mapping[Grammar, str]) -> AsyncIterator[None]:
        """Inside, requests may name these grammars. Raises ApiError for one that cannot be followed: it names the field
        that asks for it."""
        held: list[Known] = []
        try:
            for grammar, param in grammars.items():
                held.append(await self._hold(msgspec.structs.replace(grammar, after=()), param))
            yield
        finally:
            for known in held:
                known.num_holders -= 1
            self._shrink()

    async def _hold(self, grammar: Grammar, param: str) -> Known:
        if self._compiler is None:
            message = f"`{param}`: this server follows no grammars; install corymb[grammar] and see --grammar-backend."
            raise ApiError("unsupported_parameter", message, param=param)
        while (known := self._known.get(grammar)) is None:
            if grammar in self._failures:
                self._failures.move_to_end(grammar)
                raise _refusal(self._failures[grammar], param)
            await self._wait(grammar, self._compiler)
        self._known.move_to_end(grammar)
        known.num_holders += 1
        return known

    async def _wait(self, grammar: Grammar, compiler: Compiler) -> None:
        """Until it is known or has failed, with whoever else waits for it; the last to leave stops the work."""
        task = self._learning.get(grammar)
        if task is None:
            task = self._learning[grammar] = asyncio.create_task(self._learn(grammar, compiler))
        self._num_waiting[grammar] = self._num_waiting.get(grammar, 0) + 1
        try:
            await asyncio.shield(task)
        finally:
            self._num_waiting[grammar] -= 1
            if not self._num_waiting[grammar]:
                del self._num_waiting[grammar]
                self._learning.pop(grammar, None)
                task.cancel()

    async def _learn(self, grammar: Grammar, compiler: Compiler) -> None:
        begun_s = time.monotonic()
        compiled = await compiler.compile(grammar)
        if compiled.failure:
            self._fail(grammar, compiled)
            return
        try:
            reply = await self._engine.learn(grammar, compiled.compiled)
        except (EngineUnavailable, EngineDied) as error:
            raise unavailable(self._engine, str(error)) from error
        if not reply.ok:
            raise ApiError("internal_error", f"The scheduler cannot use the grammar: {reply.message}")
        self._known[grammar] = Known(len(compiled.compiled))
        self._metrics.grammar_compiled(time.monotonic() - begun_s)

    def _fail(self, grammar: Grammar, compiled: Compiled) -> None:
        self._metrics.grammar_failed("too_complex" if compiled.too_complex else "invalid")
        self._failures[grammar] = compiled
        if len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)

    def _shrink(self) -> None:
        """Forgets what was not used for longest, until the rest fits."""
        total = sum(known.size_bytes for known in self._known.values())
        for grammar in [each for each, known in self._known.items() if not known.num_holders]:
            if total <= self._cache_bytes:
                break
            total -= self._known.pop(grammar).size_bytes
            self._engine.forget_grammar(grammar)
        self._metrics.grammars_kept(len(self._known), total)


def _refusal(compiled: Compiled, param: str) -> ApiError:
    code, start = (
        ("grammar_too_complex", "is too complex") if compiled.too_complex else ("invalid_value", "cannot be used")
    )
    return ApiError(code, f"The grammar of `{param}` {start}: {compiled.failure}.", param=param)
