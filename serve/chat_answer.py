"""Answers of /v1/chat/completions."""

from corymb.scheduler.messages import Text
from corymb.serve import logprobs as spell
from corymb.serve.answer import Choice, Head, encode, finish_json, joined
from corymb.serve.stream_usage import StreamUsage
from corymb.serve.usage import Usage


class ChatAnswer:
    """Spells chat completions. Constant parts of chunks are made once a request."""

    def __init__(self, head: Head, chunk_head: Head, *, usage: Usage, stream_usage: StreamUsage) -> None:
        self._head = head.json
        self._chunk_head = chunk_head.json
        self._usage = usage
        self._stream_usage = stream_usage
        self._choices: dict[int, Choice] = {}
        self._opened: set[int] = set()

    def events(self, index: int, text: Text) -> bytes:
        """The role once, then content, then the reason of the finish once."""
        opening = b""
        if index not in self._opened:
            self._opened.add(index)
            opening = self._chunk(index, b'{"role":"assistant","content":""}', b"null", _OPEN)
        self._usage.add(index, text)
        events = opening
        if text.text or text.logprobs or (self._stream_usage.always and text.finish is None):
            logprobs = encode(spell.chat(text.logprobs)) if text.logprobs else b"null"
            events += self._chunk(index, b'{"content":%b}' % encode(text.text), logprobs, _OPEN)
        if text.finish is not None:
            events += self._chunk(index, b"{}", b"null", finish_json(text.finish))
        return events

    def _chunk(self, index: int, delta: bytes, logprobs: bytes, finish: bytes) -> bytes:
        usage = self._stream_usage.on_chunk(self._usage)
        return b'data: %b,"choices":[{"index":%d,"delta":%b,"logprobs":%b,%b}]%b}\n\n' % (
            self._chunk_head,
            index,
            delta,
            logprobs,
            finish,
            usage,
        )

    def closing(self) -> bytes:
        """The usage chunk, where it was asked for."""
        return self._stream_usage.closing(self._chunk_head, self._usage)

    def add(self, index: int, text: Text) -> None:
        """Keeps a piece for the body."""
        self._choices.setdefault(index, Choice()).add(text)
        self._usage.add(index, text)

    def body(self) -> bytes:
        """The whole completion."""
        choices = joined([self._choice(index) for index in sorted(self._choices)])
        return b'%b,"choices":%b,"usage":%b}' % (self._head, choices, self._usage.json())

    def _choice(self, index: int) -> bytes:
        choice = self._choices[index]
        assert choice.finish is not None
        logprobs = encode(spell.chat(choice.logprobs)) if choice.logprobs else b"null"
        return b'{"index":%d,"message":{"role":"assistant","content":%b,"refusal":null},"logprobs":%b,%b}' % (
            index,
            encode(choice.text),
            logprobs,
            finish_json(choice.finish),
        )


_OPEN = b'"finish_reason":null'
