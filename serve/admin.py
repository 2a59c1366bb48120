"""What operators order: flush the cache, end requests, pause, profile."""

import asyncio
import math
import time

from corymb.scheduler.messages import Action, Reply
from corymb.serve.answer import encode
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.engine import EngineUnavailable
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fan import unavailable
from corymb.serve.fields import Field, boolean, ignored, integer, read_numeral, refused
from corymb.serve.parts import Parts
from corymb.serve.requests import read_fields, read_nothing, read_rid, table

_MAX_FLUSH_WAIT_S = 600.0
_FLUSH_WAIT_S = 2.0  # a request that has just answered may hold its lease for a step more
_FLUSH_RETRY_S = 0.02
_PROFILED_STEPS, _MAX_PROFILED_STEPS = 100, 1000
_PAUSES = ("abort", "retract", "in_place")
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


def pause_fields() -> dict[str, Field]:
    """Fields of /pause_generation."""
    return table([Field("mode", f"one of {', '.join(_PAUSES)}", _read_mode)])


def _read_mode(param: str, value: object) -> str:
    if value not in _PAUSES:
        raise invalid(param, f"must be one of {', '.join(_PAUSES)}, not {shown(value)}.")
    return str(value)


def profile_fields() -> dict[str, Field]:
    """Fields of /start_profile."""
    own = [
        integer("num_steps", 1, _MAX_PROFILED_STEPS),
        refused("output_dir", "recordings go to the folder `profiles` of --cache-dir"),
        refused("start_step", "recording starts at once"),
    ]
    others = ("activities", "with_stack", "record_shapes", "profile_by_stage", "profile_id", "merge_profiles")
    return table(own, [ignored(name, "every recording is alike") for name in others])


class Admin:
    """Carries out orders."""

    def __init__(self, parts: Parts) -> None:
        self._engine = parts.engine
        self._settings = parts.settings
        self._abort_fields = abort_fields()
        self._pause_fields = pause_fields()
        self._profile_fields = profile_fields()

    async def flush_cache(self, call: Call) -> None:
        """Drops everything cached. `?timeout=` seconds: how long to wait until no request holds any of it."""
        await read_nothing(call, self._settings)
        deadline_s = time.monotonic() + _read_timeout(call.query("timeout"))
        while True:
            reply = await self._order("flush_cache", busy="cache_in_use")
            if reply.ok:
                await call.answer(200, encode({"success": True, "message": reply.message}))
                return
            if time.monotonic() > deadline_s:
                raise ApiError("cache_in_use", reply.message)
            await asyncio.sleep(_FLUSH_RETRY_S)

    async def _order(
        self, action: Action, *, num_steps: int = 0, max_nodes: int = 0, busy: str = "scheduler_busy"
    ) -> Reply:
        limit_s = self._settings.flush_timeout_s
        try:
            return await self._engine.order(action, limit_s, num_steps=num_steps, max_nodes=max_nodes)
        except EngineUnavailable as error:
            raise unavailable(self._engine, str(error)) from error
        except TimeoutError as error:
            # The scheduler listens between steps, and a step with a long prompt may take minutes on a CPU.
            message = "The scheduler is busy with one long step, and will obey after it."
            raise ApiError(busy, message) from error

    async def debug_tree(self, call: Call) -> None:
        """Pictures the cache's tree. `?max_nodes=`: how many nodes, those used last."""
        max_nodes = read_numeral("max_nodes", call.query("max_nodes"), _DEFAULT_NODES, _MAX_NODES)
        reply = await self._order("picture_tree", max_nodes=max_nodes, busy="overloaded")
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

    async def pause(self, call: Call) -> None:
        """Stops generating, for an update of weights or a look at memory."""
        values = read_fields(self._pause_fields, await read_json(call, self._settings, optional=True), call)
        mode = values.get("mode", "abort")
        reply = await self._order("retract" if mode == "retract" else "pause")
        # Only now: what is aborted must not make room for others first.
        count = self._engine.abort(None) if mode == "abort" else 0
        await call.answer(200, encode({"success": reply.ok, "message": reply.message, "num_aborted": count}))

    async def resume(self, call: Call) -> None:
        """Goes on after a pause."""
        await read_nothing(call, self._settings)
        await self._tell(call, await self._order("continue"))

    async def start_profile(self, call: Call) -> None:
        """Starts to record what the scheduler process does."""
        values = read_fields(self._profile_fields, await read_json(call, self._settings, optional=True), call)
        num_steps = values.get("num_steps", _PROFILED_STEPS)
        await self._tell(call, await self._order("start_profile", num_steps=num_steps))

    async def stop_profile(self, call: Call) -> None:
        """Ends the recording and writes it to a file, whose name is told."""
        await read_nothing(call, self._settings)
        await self._tell(call, await self._order("stop_profile"))

    async def _tell(self, call: Call, reply: Reply) -> None:
        if not reply.ok:
            raise ApiError("order_refused", reply.message)
        await call.answer(200, encode({"success": True, "message": reply.message}))


def _read_timeout(given: str | None) -> float:
    if given is None:
        return _FLUSH_WAIT_S
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MAX_FLUSH_WAIT_S:
        raise invalid("timeout", f"must be a number of seconds from 0 to {_MAX_FLUSH_WAIT_S:g}.")
    return seconds
