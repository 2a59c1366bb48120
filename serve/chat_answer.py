"""Answers of /v1/chat/completions."""

from collections.abc import Sequence

from corymb.serve import logprobs as spell
from corymb.serve import sse
from corymb.serve.answer import OPEN, Choice, Head, Part, encode, finish_json, joined
from corymb.serve.errors import ApiError
from corymb.serve.events import Content, Event, Finished, Reasoning, ToolArguments, ToolOpened
from corymb.serve.stream_usage import StreamUsage
from corymb.serve.usage import Usage


class ChatAnswer:
    """Spells chat completions. Constant parts of chunks are made once a request."""

    media_type = sse.MEDIA_TYPE

    def __init__(self, head: Head, chunk_head: Head, *, usage: Usage, stream_usage: StreamUsage) -> None:
        self._head = head.json
        self._chunk_head = chunk_head.json
        self._usage = usage
        self._stream_usage = stream_usage
        self._opened: set[int] = set()
        self._called: set[int] = set()

    def spell(self, index: int, events: Sequence[Event]) -> bytes:
        """The role once, then what the choice says, then the reason of the finish once."""
        chunks = [self._spell_one(index, event) for event in events]
        if index not in self._opened:
            self._opened.add(index)
            chunks.insert(0, self._chunk(index, b'{"role":"assistant","content":""}'))
        if self._stream_usage.always and not any(chunks):
            chunks.append(self._chunk(index, b'{"content":""}'))
        return b"".join(chunks)

    def _spell_one(self, index: int, event: Event) -> bytes:
        match event:
            case Content(text, logprobs):
                if not text and not logprobs:
                    return b""
                spelled = encode(spell.chat(logprobs)) if logprobs else b"null"
                return self._chunk(index, b'{"content":%b}' % encode(text), spelled)
            case Reasoning(text):
                return self._chunk(index, b'{"reasoning_content":%b}' % encode(text))
            case ToolOpened(call, id, name):
                self._called.add(index)
                function = b'{"name":%b,"arguments":""}' % encode(name)
                opening = b'{"index":%d,"id":%b,"type":"function","function":%b}' % (call, encode(id), function)
                return self._chunk(index, b'{"tool_calls":[%b]}' % opening)
            case ToolArguments(call, fragment):
                more = b'{"index":%d,"function":{"arguments":%b}}' % (call, encode(fragment))
                return self._chunk(index, b'{"tool_calls":[%b]}' % more)
            case Finished(finish):
                return self._chunk(index, b"{}", finish=finish_json(finish, called=index in self._called))

    def _chunk(self, index: int, delta: bytes, logprobs: bytes = b"null", *, finish: bytes = OPEN) -> bytes:
        usage = self._stream_usage.on_chunk(self._usage)
        return b'data: %b,"choices":[{"index":%d,"delta":%b,"logprobs":%b,%b}]%b}\n\n' % (
            self._chunk_head,
            index,
            delta,
            logprobs,
            finish,
            usage,
        )

    def close(self) -> bytes:
        """The usage chunk, where it was asked for."""
        return self._stream_usage.closing(self._chunk_head, self._usage) + sse.DONE

    def fail(self, error: ApiError) -> bytes:
        """The error as an event."""
        return sse.failure(error)

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The whole completion."""
        spelled = joined([_choice(index, choice) for index, choice in enumerate(choices)])
        return b'%b,"choices":%b,"usage":%b}' % (self._head, spelled, self._usage.json())


def _choice(index: int, choice: Choice) -> bytes:
    assert choice.finish is not None
    calls = choice.calls
    # OpenAI's null: nothing but calls was said.
    content = b"null" if calls and not choice.text else encode(choice.text)
    message = b'{"role":"assistant","content":%b,"refusal":null' % content
    if choice.reasoning:
        message += b',"reasoning_content":%b' % encode(choice.reasoning)
    if calls:
        message += b',"tool_calls":%b' % joined([_call(call) for call in calls])
    logprobs = encode(spell.chat(choice.logprobs)) if choice.logprobs else b"null"
    parts = (index, message, logprobs, finish_json(choice.finish, called=bool(calls)))
    return b'{"index":%d,"message":%b},"logprobs":%b,%b}' % parts


def _call(call: Part) -> bytes:
    function = b'{"name":%b,"arguments":%b}' % (encode(call.name), encode(call.text))
    return b'{"id":%b,"type":"function","function":%b}' % (encode(call.id), function)
