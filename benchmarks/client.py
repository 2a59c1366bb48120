"""A lean HTTP client for load: one keep-alive connection a worker, SSE events counted as they arrive."""

import asyncio
import json
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timeline:
    """One streamed request, in seconds of `time.perf_counter()`."""

    started: float
    events: list[float] = field(default_factory=list)  # arrival of each event that carries a choice
    ended: float = 0.0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    error: str = ""


class Connection:
    """One keep-alive connection. Owns its socket: `open` before, `close` after."""

    def __init__(self, host: str, port: int, api_key: str | None = None) -> None:
        self._address = (host, port)
        auth = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._head = f"Host: {host}:{port}\r\nContent-Type: application/json\r\n{auth}"

    async def open(self) -> None:
        """Connects."""
        self._reader, self._writer = await asyncio.open_connection(*self._address, limit=1 << 20)

    async def close(self) -> None:
        """Disconnects."""
        self._writer.close()
        await self._writer.wait_closed()

    async def stream(self, path: str, body: dict[str, object]) -> Timeline:
        """Posts a streaming request that asks for usage and follows its events to [DONE]."""
        payload = json.dumps(body).encode()
        timeline = Timeline(time.perf_counter())
        self._writer.write(
            f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload
        )
        answer = await self._reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            timeline.error = await self._rest(answer)
            return timeline
        rest = b""
        async for chunk in self._chunks():
            now = time.perf_counter()
            *lines, rest = (rest + chunk).split(b"\n\n")
            for line in lines:
                self._event(timeline, line, now)
        timeline.ended = time.perf_counter()
        return timeline

    async def _chunks(self):  # type: ignore[no-untyped-def]
        while size := int(await self._reader.readline(), 16):
            data = await self._reader.readexactly(size + 2)
            yield data[:-2]
        await self._reader.readline()

    async def _rest(self, head: bytes) -> str:
        lines = head.decode("latin-1").split("\r\n")
        sizes = [int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")]
        text = (await self._reader.readexactly(sizes[0])).decode(errors="replace") if sizes else ""
        return f"{lines[0]} {text[:200]}"

    @staticmethod
    def _event(timeline: Timeline, line: bytes, now: float) -> None:
        if line.startswith(b"data: [DONE]"):
            return
        if b'"usage":{' in line or b'"usage": {' in line:
            usage = json.loads(line[6:])["usage"]
            timeline.num_output_tokens = usage["completion_tokens"]
            timeline.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        elif b'"error"' in line[:20]:
            timeline.error = line.decode(errors="replace")[:200]
        else:
            timeline.events.append(now)
