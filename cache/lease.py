"""An open request's claim on the cache."""

from types import TracebackType
from typing import TYPE_CHECKING

from corymb.cache.key import Namespace
from corymb.cache.tree import Receipt

if TYPE_CHECKING:
    from corymb.cache.cache import Cache


class Lease:
    """Pins one path of the tree and owns a row and the slots reserved since. Ends once, by `Cache.close`; leaving it as
    a context manager closes it, if still open, and keeps nothing."""

    __slots__ = ("_cache", "branch", "closed", "namespace", "num_cached", "priority", "reaches", "receipt", "row")

    def __init__(self, cache: "Cache", row: int, receipt: Receipt, *, namespace: Namespace, priority: int) -> None:
        self._cache = cache
        self.row = row
        self.namespace = namespace
        self.receipt = receipt
        self.priority = priority
        self.closed = False
        self.num_cached = self.num_reserved  # tokens found in the tree at open
        self.reaches: dict[str, int] = {}  # tokens that each component alone would have given
        self.branch = 0  # a prompt that is cut there leaves the state that the next such prompt misses; 0 for nowhere

    @property
    def num_reserved(self) -> int:
        """Tokens that have slots: those found and those grown since."""
        return 0 if self.closed else int(self._cache.rows.reserved[self.row])

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._cache.close(self, None)
