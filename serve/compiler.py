"""The main process's end of the compiler process."""

import asyncio
import itertools
import sys

import msgspec

from corymb.scheduler.messages import Grammar
from corymb.serve.compiling import LENGTH_BYTES, Begin, Cancel, Compile, Compiled, frame
from corymb.serve.config import child_environment
from corymb.serve.errors import ApiError

COMMAND = (sys.executable, "-P", "-m", "corymb.serve.compiler_process")
PATIENCE = 4  # a grammar waits for others so many times its own limit
START_S = 120.0  # the process imports large packages, which a busy machine may take long for


class Compiler:
    """Owns the compiler process: started with the first grammar, and again should it end."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._serial = itertools.count(1)
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._up = asyncio.Event()  # its first word came, or it has ended
        self._waiting: dict[int, asyncio.Future[Compiled]] = {}
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    async def compile(self, grammar: Grammar) -> Compiled:
        """Compiles one grammar; cancelled, it ends the work. Raises ApiError where the process is too busy."""
        id_ = next(self._serial)
        future: asyncio.Future[Compiled] = asyncio.get_running_loop().create_future()
        self._waiting[id_] = future
        process: asyncio.subprocess.Process | None = None
        try:
            async with asyncio.timeout(START_S):
                process = await self._started()
            async with asyncio.timeout(self._begin.limits.seconds * PATIENCE):
                _write(process, Compile(id_, grammar))
                compiled = await future
                process = None  # it has nothing to cancel
                return compiled
        except TimeoutError:
            raise ApiError("overloaded", "Too many grammars are being compiled. Try again later.") from None
        finally:
            del self._waiting[id_]
            if process is not None:
                _write(process, Cancel(id_))

    async def _started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                self._process = await asyncio.create_subprocess_exec(
                    *COMMAND,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env=child_environment(),
                    start_new_session=True,  # a terminal's Ctrl-C is for the main process
                )
                _write(self._process, self._begin)
                self._reader = asyncio.create_task(self._read(self._process))
                self._up.clear()
            await self._up.wait()
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hands out answers until the process ends; then nobody waits for it any more."""
        assert process.stdout is not None
        decoder = msgspec.msgpack.Decoder(Compiled)
        try:
            while True:
                size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "little")
                answer = decoder.decode(await process.stdout.readexactly(size))
                self._up.set()
                future = self._waiting.get(answer.id)
                if future is not None and not future.done():
                    future.set_result(answer)
        except asyncio.IncompleteReadError:
            await process.wait()
            self._up.set()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ApiError("internal_error", "The process that compiles grammars has ended."))


def _write(process: asyncio.subprocess.Process, message: msgspec.Struct) -> None:
    assert process.stdin is not None
    process.stdin.write(frame(message))
