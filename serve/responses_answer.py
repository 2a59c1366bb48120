"""Answers of /v1/responses."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from corymb.scheduler.messages import Finish
from corymb.serve import logprobs as spell
from corymb.serve import sse
from corymb.serve.answer import Choice, Part, encode
from corymb.serve.blocks import Blocks, Change, Closed, Delta, Opened, blocks_of
from corymb.serve.errors import ApiError
from corymb.serve.events import Event, Finished
from corymb.serve.json_arguments import is_cut
from corymb.serve.usage import Usage

Json = dict[str, Any]
Keep = Callable[[Json], None]
_DELTAS = {"content": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}
_PREFIXES = {"content": "msg", "reasoning": "rs", "call": "fc"}
_STATUSES = {"stop": "completed", "length": "incomplete"}


class ResponsesAnswer:
    """Spells responses. A response has one choice; `keep` gets it once it has ended."""

    media_type = sse.MEDIA_TYPE

    def __init__(self, response: Json, usage: Usage, keep: Keep) -> None:
        """`response`: the members that do not depend on what is generated."""
        self._response = response
        self._usage = usage
        self._keep = keep
        self._blocks = Blocks()
        self._num_events = 0

    def spell(self, index: int, events: Sequence[Event]) -> bytes:
        """The response's beginning once, then its items, then the whole of it."""
        assert index == 0
        spelled = []
        if not self._num_events:
            begun = self._response | {"status": "in_progress"}
            spelled += [
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
            ]
        finish = next((event.finish for event in events if isinstance(event, Finished)), None)
        changes = list(self._blocks.read(events))
        for change in changes:
            status = _last_status(change.part, finish) if finish is not None and change is changes[-1] else "completed"
            spelled += self._change(change, status)
        if finish is not None:
            whole = self._ended(finish, self._blocks.closed)
            spelled.append(self._event(f"response.{whole['status']}", response=whole))
        return b"".join(spelled)

    def close(self) -> bytes:
        """The last event held the whole response."""
        return b""

    def fail(self, error: ApiError) -> bytes:
        """The error, and the response as one that failed."""
        told = self._event("error", code=error.code, message=error.message, param=error.param)
        failed = {"status": "failed", "error": {"code": "server_error", "message": error.message}}
        return told + self._event("response.failed", response=self._response | failed)

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The whole response."""
        (choice,) = choices
        assert choice.finish is not None
        return encode(self._ended(choice.finish, blocks_of(choice)))

    def _ended(self, finish: Finish, blocks: Sequence[Part]) -> Json:
        status = _status(finish)
        *before, last = blocks
        output = [self._item(number, part, "completed") for number, part in enumerate(before)]
        output.append(self._item(len(before), last, _last_status(last, finish)))
        whole = self._response | {"status": status, "output": output, "usage": self._counts()}
        if status == "completed":
            whole["completed_at"] = int(time.time())
        elif status == "incomplete":
            whole["incomplete_details"] = {"reason": "max_output_tokens"}
        elif status == "failed":
            whole["error"] = {"code": "server_error", "message": finish.message or "The request was ended."}
        self._keep(whole)
        return whole

    def _counts(self) -> Json:
        usage = self._usage
        return {
            "input_tokens": usage.num_prompt,
            "input_tokens_details": {"cached_tokens": usage.num_cached, "cache_write_tokens": 0},
            "output_tokens": usage.num_output,
            "output_tokens_details": {"reasoning_tokens": usage.num_reasoning},
            "total_tokens": usage.num_prompt + usage.num_output,
        }

    # Items.

    def _change(self, change: Change, status: str) -> list[bytes]:
        place = {"output_index": change.number}
        match change:
            case Opened(number, part):
                item = self._item(number, Part(part.kind, part.id, part.name), "in_progress")
                empty = item if part.kind == "call" else item | {"content": []}
                opened = [self._event("response.output_item.added", **place, item=empty)]
                if part.kind != "call":
                    opened.append(self._part_event("added", number, Part(part.kind)))
                return opened
            case Delta(_, part, text, entries):
                more = {"logprobs": spell.entries_of(entries)} if part.kind == "content" else {}
                return [
                    self._event(
                        f"response.{_DELTAS[part.kind]}.delta", **self._at(change.number, part), delta=text, **more
                    )
                ]
            case Closed(number, part):
                return self._closed(number, part, status)

    def _closed(self, number: int, part: Part, status: str) -> list[bytes]:
        name, at = f"response.{_DELTAS[part.kind]}.done", self._at(number, part)
        match part.kind:
            case "call":
                done = [self._event(name, **at, name=part.name, arguments=part.text)]
            case "reasoning":
                done = [self._event(name, **at, text=part.text), self._part_event("done", number, part)]
            case "content":
                entries = spell.entries_of(part.logprobs)
                done = [
                    self._event(name, **at, text=part.text, logprobs=entries),
                    self._part_event("done", number, part),
                ]
        item = self._item(number, part, status)
        return [*done, self._event("response.output_item.done", output_index=number, item=item)]

    def _part_event(self, what: str, number: int, part: Part) -> bytes:
        return self._event(f"response.content_part.{what}", **self._at(number, part), part=_content(part))

    def _at(self, number: int, part: Part) -> Json:
        at = {"item_id": self._item_id(number, part), "output_index": number}
        return at if part.kind == "call" else at | {"content_index": 0}

    def _item_id(self, number: int, part: Part) -> str:
        return f"{_PREFIXES[part.kind]}_{self._response['id']}_{number}"

    def _item(self, number: int, part: Part, status: str) -> Json:
        item: Json = {"id": self._item_id(number, part), "status": "incomplete" if status == "failed" else status}
        match part.kind:
            case "call":
                return item | {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.text}
            case "reasoning":
                return item | {"type": "reasoning", "summary": [], "content": [_content(part)]}
            case "content":
                return item | {"type": "message", "role": "assistant", "content": [_content(part)]}

    def _event(self, kind: str, **members: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._num_events, **members}
        self._num_events += 1
        return sse.named(kind, encode(event))


def _content(part: Part) -> Json:
    if part.kind == "reasoning":
        return {"type": "reasoning_text", "text": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": spell.entries_of(part.logprobs)}


def _last_status(part: Part, finish: Finish) -> str:
    """Of an answer's last item."""
    return "incomplete" if part.kind == "call" and is_cut(part, finish) else _status(finish)


def _status(finish: Finish) -> str:
    return _STATUSES.get(finish.reason, "failed")
