"""What the generating endpoints share: reading a body against a table of fields, and answering it."""

import asyncio
import time
import uuid
from collections.abc import Collection, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from corymb.scheduler.messages import Grammar
from corymb.serve.answer import Answer, Choice
from corymb.serve.asks import Ask, Routing
from corymb.serve.body import read_json
from corymb.serve.call import Call, ClientGone
from corymb.serve.engine import ServedModel
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fan import Fan, Pieces
from corymb.serve.fields import Field, inert, integer, read_string, string
from corymb.serve.generation import Generation
from corymb.serve.parts import Parts
from corymb.serve.settings import HttpSettings

_RID_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-")


def request_fields(settings: HttpSettings) -> list[Field]:
    """Fields that say where and when a request runs."""
    priority = integer("priority", -1_000_000_000, 1_000_000_000)
    routing_key = string("routing_key", 256, min_chars=1)
    return [
        priority if settings.uses_priority else inert(priority, "needs --enable-priority-scheduling"),
        routing_key if settings.uses_routing_key else inert(routing_key, "needs --schedule-policy routing-key"),
        string("cache_salt", 256, min_chars=1),
        string("extra_key", 256, min_chars=1),
        Field("rid", "string of at most 128 of A-Z a-z 0-9 . _ : -", read_rid),
    ]


def read_rid(param: str, value: object) -> str:
    """A client's name for its request. No slash: the choices of a request are RID/0, RID/1, …"""
    rid = read_string(param, value, 128, min_chars=1)
    if not _RID_CHARS.issuperset(rid):
        raise invalid(param, f"may hold only A-Z a-z 0-9 . _ : -, not {shown(rid)}.")
    return rid


def table(*groups: Sequence[Field]) -> dict[str, Field]:
    """Fields by name; every name once."""
    fields = {field.name: field for group in groups for field in group}
    assert len(fields) == sum(map(len, groups)), "a field is listed twice"
    return fields


def read_fields(
    fields: Mapping[str, Field],
    body: Mapping[str, Any],
    call: Call,
    *,
    prefix: str = "",
    names: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Checked values of what the client set; null counts as not set. Names what is ignored in a response header.

    `names`: how the client called fields of a body that was translated.
    """
    values: dict[str, Any] = {}
    for name, value in body.items():
        field = fields.get(name)
        if field is None or field.treatment == "ignored":
            call.ignored[prefix + names.get(name, name)] = None
        if field is None or field.read is None or value is None:
            continue
        read = field.read(prefix + name, value)
        if field.treatment != "refused":  # what passes there is as good as nothing
            values[name] = read
    return values


async def read_nothing(call: Call, settings: HttpSettings) -> None:
    """For orders that take no fields: whatever a body holds is named as ignored."""
    read_fields({}, await read_json(call, settings, optional=True), call)


def name_ignored_members(call: Call, values: Mapping[str, Any], known: Mapping[str, Collection[str]]) -> None:
    """Names, in the response header, what is set inside object fields beside the members that are `known`.

    `known`: by the field's name, or by the path to an object inside one.
    """
    for path, members in known.items():
        value: Any = values
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        for member, item in value.items() if isinstance(value, dict) else ():
            if member not in members and item is not None:
                call.ignored[f"{path}.{member}"] = None


LATEST = ":latest"  # the tag that Ollama's clients add to a name without one


def read_model(info: ServedModel, values: Mapping[str, Any], *, latest: bool = False) -> str:
    """The name that the answer carries. `latest`: it may end in that tag. Raises model_not_found."""
    name: str = values.get("model", info.names[0])
    if name not in info.names and not (latest and name.removesuffix(LATEST) in info.names):
        known = ", ".join(info.names)
        raise ApiError(
            "model_not_found",
            f"The model {shown(name, limit=140)} is not served here; there is: {known}.",
            param="model",
        )
    return name


def routing(values: Mapping[str, Any]) -> Routing:
    """From checked values."""
    names = ("priority", "cache_salt", "extra_key", "routing_key")
    return Routing(**{name: values[name] for name in names if name in values})


def new_rid(kind: str) -> str:
    """A name for a request whose client gave none."""
    return f"{kind}-{uuid.uuid4().hex}"


def now_s() -> int:
    """For `created`."""
    return int(time.time())


async def generate(call: Call, parts: Parts, generation: Generation, answer: Answer, *, stream: bool) -> None:
    """Runs what is asked and answers the call; ends it within a moment of the client's leaving."""
    await unless_gone(call, _respond(call, parts, generation, answer, stream))


async def unless_gone(call: Call, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` until it is done or the client has closed the connection."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(call.wait_gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))


async def _respond(call: Call, parts: Parts, generation: Generation, answer: Answer, stream: bool) -> None:
    with Fan(parts.engine) as fan:
        async with parts.grammars.held(_grammars(generation.asks)):
            await fan.open(generation.asks)
        parts.metrics.request_started()
        if stream:
            # The status waits for the first piece: a full queue is a 503, not a broken stream.
            await _stream(call, fan, await fan.next(), generation, answer)
        else:
            await call.answer(200, answer.whole(await _gather(fan, generation)))


def _grammars(asks: Sequence[Ask]) -> dict[Grammar, str]:
    """What is asked for, with the field that asks for it."""
    return {ask.sampling.grammar: ask.grammar_param for ask in asks if ask.sampling.grammar is not None}


async def gather(parts: Parts, generation: Generation) -> list[Choice]:
    """Runs what is asked to its end."""
    with Fan(parts.engine) as fan:
        await fan.open(generation.asks)
        parts.metrics.request_started()
        return await _gather(fan, generation)


async def _gather(fan: Fan, generation: Generation) -> list[Choice]:
    choices = [Choice() for _ in range(generation.num_choices)]
    while pieces := await fan.next():
        for index, text in pieces:
            choices[index].take(generation.read(index, text))
    return choices


async def _stream(call: Call, fan: Fan, pieces: Pieces, generation: Generation, answer: Answer) -> None:
    await call.start_stream(answer.media_type, fail=answer.fail)
    try:
        while pieces:
            spelled = b"".join([answer.spell(index, generation.read(index, text)) for index, text in pieces])
            if spelled:
                await call.write(spelled)
            pieces = await fan.next()
    except ApiError as error:
        await call.end_stream(answer.fail(error))
    else:
        await call.end_stream(answer.close())
