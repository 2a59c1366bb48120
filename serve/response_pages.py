"""What a query asks of a stored response: the whole of it, or its input items a page at a time."""

from typing import Any

from corymb.serve.call import Call
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import read_numeral
from corymb.serve.responses_fields import LOGPROBS, read_include
from corymb.serve.responses_items import Item

_ITEMS, _MOST_ITEMS = 20, 100  # of a page, as in OpenAI's API
_ORDERS = ("asc", "desc")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def read_whole(call: Call, *, has_logprobs: bool) -> None:
    """Refuses what a stored response, told at once and as it was made, cannot give."""
    stream, resumes = call.query("stream"), call.query("starting_after") is not None
    if stream is not None and stream not in _TRUTHS:
        raise invalid("stream", f"must be true or false, not {shown(stream)}.")
    if resumes or _TRUTHS.get(stream or "false"):
        name = "starting_after" if resumes else "stream"
        message = f"`{name}` is not supported: a stored response is told at once."
        raise ApiError("unsupported_parameter", message, param=name)
    read_includes(call, has_logprobs=has_logprobs)


def read_includes(call: Call, *, has_logprobs: bool = False) -> None:
    """`include` of a query: what was not kept is refused, what adds nothing here is named as ignored."""
    include = read_include("include", call.query_list("include"))
    if LOGPROBS in include and not has_logprobs:
        message = "`include`: no log-probabilities were kept; ask for them when the response is made."
        raise ApiError("unsupported_parameter", message, param="include")
    call.ignored |= {f"include.{name}": None for name in include if name != LOGPROBS}


def as_stored(response_id: str, items: list[Item]) -> list[Item]:
    """Items as they are told later: each with an id, and texts as parts."""
    return [_as_stored(f"in_{response_id}_{number}", item) for number, item in enumerate(items)]


def _as_stored(name: str, item: Item) -> Item:
    told = {**item, "id": item.get("id") or name}
    if item["type"] == "message" and isinstance(item["content"], str):
        said = item["role"] == "assistant"
        part: Item = {"type": "output_text", "annotations": []} if said else {"type": "input_text"}
        told["content"] = [part | {"text": item["content"]}]
    return told


def page(items: list[Item], call: Call) -> dict[str, Any]:
    """What the query asks for: `order`, `limit`, `after`. The newest comes first, as in OpenAI's API."""
    order, after = call.query("order"), call.query("after")
    read_includes(call)
    order = "desc" if order is None else order
    most = read_numeral("limit", call.query("limit"), _ITEMS, _MOST_ITEMS)
    if order not in _ORDERS:
        raise invalid("order", f"must be {' or '.join(_ORDERS)}, not {shown(order)}.")
    listed = items if order == "asc" else items[::-1]
    names = [item["id"] for item in listed]
    if after is not None and after not in names:
        raise invalid("after", f"must be the id of an item of this response, not {shown(after)}.")
    begin = 0 if after is None else names.index(after) + 1
    told, told_names = listed[begin : begin + most], names[begin : begin + most] or [None]
    ends = {"first_id": told_names[0], "last_id": told_names[-1]}
    return {"object": "list", "data": told, **ends, "has_more": begin + most < len(listed)}
