"""Answers of /v1/messages."""

from collections.abc import Sequence
from typing import Any

from corymb.scheduler.messages import Finish
from corymb.serve import sse
from corymb.serve.answer import Choice, Part, encode
from corymb.serve.blocks import Blocks, Change, Closed, Delta, Opened, blocks_of
from corymb.serve.error_shapes import anthropic_error
from corymb.serve.errors import ApiError
from corymb.serve.events import Event, Finished
from corymb.serve.json_arguments import arguments_of
from corymb.serve.usage import Usage

_STOP_REASONS = {"length": "max_tokens", "abort": "pause_turn"}
_DELTAS = {"content": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking"),
           "call": ("input_json_delta", "partial_json")}  # fmt: skip


class AnthropicAnswer:
    """Spells messages. A message has one choice."""

    media_type = sse.MEDIA_TYPE

    def __init__(self, rid: str, model: str, usage: Usage) -> None:
        self._rid = rid
        self._model = model
        self._usage = usage
        self._blocks = Blocks()
        self._begun = False

    def spell(self, index: int, events: Sequence[Event]) -> bytes:
        """The message's beginning once, then its blocks, then how it ended."""
        assert index == 0
        spelled = []
        if not self._begun:
            self._begun = True
            spelled.append(_event("message_start", message=self._message([], None, None)))
        spelled += map(_change, self._blocks.read(events))
        spelled += [self._end(event.finish) for event in events if isinstance(event, Finished)]
        return b"".join(spelled)

    def _end(self, finish: Finish) -> bytes:
        reason, sequence = _stop(finish, self._blocks.closed)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return _event("message_delta", delta=delta, usage=self._counts())

    def close(self) -> bytes:
        """The last event."""
        return _event("message_stop")

    def fail(self, error: ApiError) -> bytes:
        """The error as an event."""
        return sse.named("error", anthropic_error(error))

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The whole message."""
        (choice,) = choices
        assert choice.finish is not None
        blocks = blocks_of(choice)
        reason, sequence = _stop(choice.finish, blocks)
        return encode(self._message([_whole(part) for part in blocks], reason, sequence))

    def _message(self, content: list[Any], reason: str | None, sequence: str | None) -> dict[str, Any]:
        return {
            "id": self._rid,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "stop_details": None,
            "container": None,
            "usage": self._counts(),
        }

    def _counts(self) -> dict[str, Any]:
        """Cached tokens are apart from the other input, as Anthropic counts."""
        cached = self._usage.num_cached
        return {
            "input_tokens": self._usage.num_prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_creation": None,
            "cache_read_input_tokens": cached,
            "output_tokens": self._usage.num_output,
            "output_tokens_details": {"thinking_tokens": self._usage.num_reasoning},
            "server_tool_use": None,
            "service_tier": "standard",
            "inference_geo": None,
        }


def _event(name: str, **members: Any) -> bytes:
    return sse.named(name, encode({"type": name, **members}))


def _change(change: Change) -> bytes:
    match change:
        case Opened(number, part):
            return _event("content_block_start", index=number, content_block=_empty(part))
        case Delta(number, part, text):
            kind, member = _DELTAS[part.kind]
            return _event("content_block_delta", index=number, delta={"type": kind, member: text}) if text else b""
        case Closed(number):
            return _event("content_block_stop", index=number)


def _empty(part: Part) -> dict[str, Any]:
    if part.kind == "call":
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}, "caller": {"type": "direct"}}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": "", "citations": None}


def _whole(part: Part) -> dict[str, Any]:
    if part.kind == "call":
        return _empty(part) | {"input": arguments_of(part)}
    return _empty(part) | {_DELTAS[part.kind][1]: part.text}


def _stop(finish: Finish, blocks: Sequence[Part]) -> tuple[str, str | None]:
    if finish.reason != "stop":
        return _STOP_REASONS.get(finish.reason, "end_turn"), None
    if isinstance(finish.matched, str):
        return "stop_sequence", finish.matched
    return ("tool_use" if any(part.kind == "call" for part in blocks) else "end_turn"), None
