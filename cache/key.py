"""What a sequence is called in the tree: its tokens and its namespace."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Namespace = tuple[str | None, str | None]
Edge = bytes | tuple[Namespace, bytes]

TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """Tokens of a sequence plus its namespace. Keys of different namespaces never meet: they are separate subtrees.

    `cache_salt` comes from clients and `extra_key` from the server, so a salt cannot imitate an internal namespace.
    """

    token_ids: Int32
    extra_key: str | None = None
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        # Edges are compared as bytes, so another integer width would never match and never say why.
        if self.token_ids.dtype != np.int32 or self.token_ids.ndim != 1:
            raise TypeError(f"token_ids: need a flat int32 array, got {self.token_ids.dtype} {self.token_ids.shape}")

    @property
    def namespace(self) -> Namespace:
        """What separates this key from equal tokens of others."""
        return (self.extra_key, self.cache_salt)

    def tokens(self, limit: int, page_size: int) -> bytes:
        """Returns the first `limit` tokens, in whole pages, as bytes."""
        stop = min(limit, len(self.token_ids))
        return self.token_ids[: stop - stop % page_size].tobytes()


def common_tokens(edge: bytes, tokens: bytes, at: int, page_size: int) -> int:
    """Returns how many tokens of `edge` are repeated in `tokens` from byte `at` on, in whole pages."""
    if tokens.startswith(edge, at):
        return len(edge) // TOKEN_BYTES
    count = min(len(edge), len(tokens) - at) // TOKEN_BYTES
    differs = np.frombuffer(edge, np.int32, count) != np.frombuffer(tokens, np.int32, count, at)
    first = int(differs.argmax())
    if not differs[first]:
        first = count
    return first - first % page_size
