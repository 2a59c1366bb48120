"""The waiting line."""

from collections.abc import Iterator

from corymb.scheduler.request import Request


class Queue:
    """Waiting requests in order of entry. The ledger alone lets them in and out."""

    def __init__(self) -> None:
        """Starts empty."""
        self._waiting: dict[str, Request] = {}
        self._entries = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """In order of entry."""
        return iter(self._waiting.values())

    def enter(self, request: Request) -> None:
        """Joins at the tail."""
        request.entered = self._entries
        self._entries += 1
        self._waiting[request.rid] = request

    def leave(self, request: Request) -> None:
        """Gives up its place."""
        del self._waiting[request.rid]
