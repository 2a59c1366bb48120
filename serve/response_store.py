"""Keeps responses for later calls: in memory, bounded, the least recently used leaves first."""

from collections import OrderedDict
from dataclasses import dataclass

MAX_BYTES = 64 << 20
MAX_RESPONSES = 10_000


@dataclass(frozen=True, slots=True)
class Stored:
    """One response, and its conversation: JSON texts, so that their size is known."""

    response: bytes
    input_items: bytes  # of this request alone
    conversation: bytes  # every item up to and with the response's own
    has_logprobs: bool = False

    @property
    def size_bytes(self) -> int:
        """What it counts for."""
        return len(self.response) + len(self.input_items) + len(self.conversation)


class ResponseStore:
    """Owns the stored responses. What alone exceeds the limit is not kept."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_responses: int = MAX_RESPONSES) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._max_responses = max_responses
        self._stored: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, response_id: str, stored: Stored) -> None:
        """Keeps a response under a new id."""
        self.pop(response_id)
        self._stored[response_id] = stored
        self.num_bytes += stored.size_bytes
        while self.num_bytes > self._max_bytes or len(self._stored) > self._max_responses:
            self.pop(next(iter(self._stored)))

    def get(self, response_id: str) -> Stored | None:
        """A response, which counts as used; None if it is not there (any more)."""
        if response_id in self._stored:
            self._stored.move_to_end(response_id)
        return self._stored.get(response_id)

    def pop(self, response_id: str) -> Stored | None:
        """Forgets a response; returns it, or None if it is not there."""
        stored = self._stored.pop(response_id, None)
        self.num_bytes -= stored.size_bytes if stored is not None else 0
        return stored
