"""What answers of /v1/completions and /v1/chat/completions share: the frame of a chunk, the end, the whole."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from corymb.serve import sse
from corymb.serve.answer import OPEN, Choice, Head, joined
from corymb.serve.errors import ApiError
from corymb.serve.stream_usage import StreamUsage
from corymb.serve.usage import Usage


class OpenAIAnswer(ABC):
    """Frames what its subclass spells. Constant parts of chunks are made once a request."""

    media_type = sse.MEDIA_TYPE
    said: bytes  # the member of a chunk's choice that holds what was said

    def __init__(self, head: Head, chunk_head: Head, *, usage: Usage, stream_usage: StreamUsage) -> None:
        self._head = head.json
        self._chunk_head = chunk_head.json
        self._usage = usage
        self._stream_usage = stream_usage

    @abstractmethod
    def _choice(self, index: int, choice: Choice) -> bytes:
        """One choice of the whole completion."""

    def _chunk(self, index: int, said: bytes, logprobs: bytes = b"null", *, finish: bytes = OPEN) -> bytes:
        usage = self._stream_usage.on_chunk(self._usage)
        return b'data: %b,"choices":[{"index":%d,"%b":%b,"logprobs":%b,%b}]%b}\n\n' % (
            self._chunk_head,
            index,
            self.said,
            said,
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
        spelled = joined([self._choice(index, choice) for index, choice in enumerate(choices)])
        return b'%b,"choices":%b,"usage":%b}' % (self._head, spelled, self._usage.json())
