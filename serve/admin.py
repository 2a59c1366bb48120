"""What operators order: flush the cache, end requests."""

import asyncio
import math
import time
import urllib.parse

from corymb.scheduler.messages import Reply
from corymb.serve.answer import encode
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.engine import EngineUnavailable
from corymb.serve.errors import ApiError, invalid
from corymb.serve.fan import unavailable
from corymb.serve.fields import Field, boolean, ignored
from corymb.serve.parts import Parts
from corymb.serve.requests import read_fields, read_rid, table

_MAX_FLUSH_WAIT_S = 600.0
_FLUSH_WAIT_S = 2.0  # a request that has just answered may hold its lease for a step more
_FLUSH_RETRY_S = 0.02
_DEFAULT_NODES = 400
_MAX_NODES = 10_000


def abort_fields() -> dict[str, Field]:
    """Fields of /abort_request."""
    own = [
        Field("rid", "string of at most 128 of A-Z a-z 0-9 . _ : -", read_rid),
        boolean("abort_all"),
        ignored("abort_message", "not used"),
    ]
    return table(own)


class Admin:
    """Carries out orders."""

    def __init__(self, parts: Parts) -> None:
        self._engine = parts.engine
        self._settings = parts.settings
        self._abort_fields = abort_fields()

    async def flush_cache(self, call: Call) -> None:
        """Drops everything cached. `?timeout=` seconds: how long to wait until no request holds any of it."""
        deadline_s = time.monotonic() + _read_timeout(call.scope["query_string"])
        while True:
            reply = await self._flush()
            if reply.ok:
                await call.answer(200, encode({"success": True, "message": reply.message}))
                return
            if time.monotonic() > deadline_s:
                raise ApiError("cache_in_use", reply.message)
            await asyncio.sleep(_FLUSH_RETRY_S)

    async def _flush(self) -> Reply:
        try:
            return await self._engine.flush_cache(self._settings.flush_timeout_s)
        except EngineUnavailable as error:
            raise unavailable(self._engine, str(error)) from error
        except TimeoutError as error:
            # The scheduler listens between steps, and a step with a long prompt may take minutes on a CPU.
            message = "The scheduler is busy with one long step; it will flush after it if no request runs then."
            raise ApiError("cache_in_use", message) from error

    async def debug_tree(self, call: Call) -> None:
        """Pictures the cache's tree. `?max_nodes=`: how many nodes, those used last."""
        max_nodes = _read_max_nodes(call.scope["query_string"])
        try:
            reply = await self._engine.picture_tree(max_nodes, self._settings.flush_timeout_s)
        except EngineUnavailable as error:
            raise unavailable(self._engine, str(error)) from error
        except TimeoutError as error:
            raise ApiError("overloaded", "The scheduler is busy with one long step; ask again.") from error
        await call.answer(200, encode(reply.tree))

    async def abort_request(self, call: Call) -> None:
        """Ends one request with all its choices, or every one."""
        values = read_fields(self._abort_fields, await read_json(call, self._settings), call)
        everything = values.get("abort_all", False)
        if not everything and "rid" not in values:
            raise invalid("rid", "is required, or `abort_all`.")
        count = self._engine.abort(None if everything else values["rid"])
        if not count and not everything:
            raise ApiError("rid_not_found", "No request with this `rid` is open.", param="rid")
        await call.answer(200, encode({"success": True, "num_aborted": count}))


def _read_max_nodes(query: bytes) -> int:
    given = urllib.parse.parse_qs(query.decode("latin-1")).get("max_nodes", [str(_DEFAULT_NODES)])[0]
    if not (given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= _MAX_NODES):
        raise invalid("max_nodes", f"must be a whole number from 1 to {_MAX_NODES:,}.")
    return int(given)


def _read_timeout(query: bytes) -> float:
    given = urllib.parse.parse_qs(query.decode("latin-1")).get("timeout")
    if given is None:
        return _FLUSH_WAIT_S
    try:
        seconds = float(given[0])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MAX_FLUSH_WAIT_S:
        raise invalid("timeout", f"must be a number of seconds from 0 to {_MAX_FLUSH_WAIT_S:g}.")
    return seconds
