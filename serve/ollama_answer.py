"""Answers of Ollama's /api/chat and /api/generate: a line of JSON for each piece."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from corymb.scheduler.messages import Finish
from corymb.serve import logprobs as spell
from corymb.serve.answer import Choice, Part, encode
from corymb.serve.blocks import Blocks, Change, Closed, Delta, blocks_of
from corymb.serve.error_shapes import ollama_error
from corymb.serve.errors import ApiError
from corymb.serve.events import Event, Finished
from corymb.serve.generation import Generation
from corymb.serve.json_arguments import arguments_of, is_cut

Json = dict[str, Any]


class OllamaAnswer:
    """Spells one answer. Calls come whole, since their arguments are objects here; one that broke off does not come."""

    media_type = b"application/x-ndjson"

    def __init__(self, kind: Literal["chat", "generate"], model: str, generation: Generation) -> None:
        self._kind = kind
        self._model = model
        self._usage = generation.usage
        self._arrived_s = generation.asks[0].arrived_s
        self._first_s: float | None = None
        self._blocks = Blocks()
        self._num_calls = 0

    def spell(self, index: int, events: Sequence[Event]) -> bytes:
        """A line for each change, and one for the finish."""
        assert index == 0
        self._clock()
        changes = list(self._blocks.read(events))
        finish = next((event.finish for event in events if isinstance(event, Finished)), None)
        if finish is not None and _is_cut(changes[-1].part, finish):
            del changes[-1]
        lines = [line for change in changes for line in self._change(change)]
        if finish is not None:
            lines.append(self._line(self._said() | self._ended(finish.reason)))
        return b"".join(lines)

    def close(self) -> bytes:
        """The last line said that it is done."""
        return b""

    def fail(self, error: ApiError) -> bytes:
        """The error as a line."""
        return ollama_error(error) + b"\n"

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The answer as one object."""
        (choice,) = choices
        finish = choice.finish
        assert finish is not None
        self._clock()
        parts = blocks_of(choice)
        text, thinking = ("".join(p.text for p in parts if p.kind == kind) for kind in ("content", "reasoning"))
        calls = [part for part in parts if part.kind == "call" and not (part is parts[-1] and _is_cut(part, finish))]
        said = self._said(text, thinking=thinking, calls=calls)
        more = {"logprobs": spell.entries_of(choice.logprobs)} if choice.logprobs else {}
        return self._line(said | self._ended(finish.reason) | more).rstrip()

    def _change(self, change: Change) -> list[bytes]:
        match change:
            case Delta(_, part, text, entries) if part.kind == "content":
                more = {"logprobs": spell.entries_of(entries)} if entries else {}
                return [self._line(self._said(text) | {"done": False} | more)]
            case Delta(_, part, text) if part.kind == "reasoning":
                return [self._line(self._said(thinking=text) | {"done": False})]
            case Closed(_, part) if part.kind == "call":
                return [self._line(self._said(calls=[part]) | {"done": False})]
        return []

    def _said(self, text: str = "", *, thinking: str = "", calls: Sequence[Part] = ()) -> Json:
        said: Json = {"thinking": thinking} if thinking else {}
        if self._kind == "generate":
            return {"response": text, **said}
        if calls:
            said["tool_calls"] = [self._call(call) for call in calls]
        return {"message": {"role": "assistant", "content": text, **said}}

    def _call(self, call: Part) -> Json:
        self._num_calls += 1
        function = {"index": self._num_calls - 1, "name": call.name, "arguments": arguments_of(call)}
        return {"id": call.id, "function": function}

    def _line(self, members: Json) -> bytes:
        created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return encode({"model": self._model, "created_at": created_at, **members}) + b"\n"

    def _clock(self) -> None:
        if self._first_s is None:
            self._first_s = time.monotonic()

    def _ended(self, reason: str) -> Json:
        assert self._first_s is not None
        now_s = time.monotonic()
        return {
            "done": True,
            "done_reason": reason,
            "total_duration": _nanoseconds(now_s - self._arrived_s),
            "load_duration": 0,
            "prompt_eval_count": self._usage.num_prompt,
            "prompt_eval_duration": _nanoseconds(self._first_s - self._arrived_s),
            "eval_count": self._usage.num_output,
            "eval_duration": _nanoseconds(now_s - self._first_s),
        }


def _is_cut(last: Part, finish: Finish) -> bool:
    return last.kind == "call" and is_cut(last, finish)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
