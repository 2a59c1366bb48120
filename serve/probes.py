"""Health probes and metrics: they never wait in the queue of requests."""

import asyncio
import secrets

from prometheus_client import CONTENT_TYPE_LATEST

from corymb.scheduler.messages import Generate, Sampling
from corymb.serve.call import Call
from corymb.serve.engine import EngineUnavailable
from corymb.serve.errors import ApiError
from corymb.serve.fan import unavailable
from corymb.serve.parts import Parts

_PROBE_PRIORITY = 1_000_000_000


class Probes:
    """Answers load balancers, operators and Prometheus."""

    def __init__(self, parts: Parts) -> None:
        self._engine = parts.engine
        self._metrics = parts.metrics
        self._timeout_s = parts.settings.health_timeout_s
        self._generating: asyncio.Task[None] | None = None

    async def health(self, call: Call) -> None:
        """200 while requests are taken and the engine shows life; 503 while starting, draining or dead."""
        self._require_healthy()
        await call.answer(200, b'{"status":"ok"}')

    async def health_generate(self, call: Call) -> None:
        """Generates one token. Calls that come while one is under way share it, so they cannot pile up."""
        self._require_healthy()
        if self._generating is None or self._generating.done():
            self._generating = asyncio.create_task(self._generate())
        try:
            await asyncio.wait_for(asyncio.shield(self._generating), self._timeout_s)
        except TimeoutError as error:
            raise ApiError("not_ready", f"No token came within {self._timeout_s:g} s.") from error
        except EngineUnavailable as error:
            raise unavailable(self._engine, str(error)) from error
        await call.answer(200, b'{"status":"ok"}')

    async def metrics(self, call: Call) -> None:
        """GET /metrics."""
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
        await call.answer(200, self._metrics.exposition(), headers=headers)

    def _require_healthy(self) -> None:
        if self._engine.state != "ready" or not self._engine.alive:
            raise unavailable(self._engine, self._engine.failure or f"The engine is {self._state()}.")

    def _state(self) -> str:
        return "not answering" if self._engine.state == "ready" else self._engine.state

    async def _generate(self) -> None:
        request = Generate(
            rid=f"health-{secrets.token_hex(8)}",
            prompt=b"\0\0\0\0",
            sampling=Sampling(max_new_tokens=1, temperature=0.0, ignore_eos=True),
            priority=_PROBE_PRIORITY,
        )
        stream = self._engine.submit(request, counts_prompt=False)
        try:
            async with asyncio.timeout(self._timeout_s):
                while (await stream.next())[-1].finish is None:
                    pass
        finally:
            stream.close()
