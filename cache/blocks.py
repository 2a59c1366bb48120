"""What storage calls the pieces of a sequence: a name stands for everything up to its piece's end."""

import json
from dataclasses import dataclass
from hashlib import blake2b

from corymb.cache.key import TOKEN_BYTES, Namespace

DIGEST_BYTES = 20


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens [start, stop) of a sequence. `parent` and `digest` stand for all tokens before its start and its stop."""

    parent: str
    digest: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Of its files. With the parent and the length in it, short blocks are found by who goes on from there."""
        return f"{self.parent}-{self.stop - self.start}-{self.digest}"


def root(fingerprint: bytes, namespace: Namespace) -> str:
    """The parent of the first block. `fingerprint`: all that the contents depend on besides tokens and namespace."""
    return _digest(fingerprint + json.dumps(namespace).encode())


def block(parent: str, tokens: bytes, start: int, stop: int) -> Block:
    """The block of these tokens of a sequence."""
    own = tokens[start * TOKEN_BYTES : stop * TOKEN_BYTES]
    return Block(parent, _digest(parent.encode() + own), start, stop)


def chain(first: str, tokens: bytes, size: int) -> list[Block]:
    """All blocks of a sequence, `size` tokens each; the last may be shorter."""
    blocks: list[Block] = []
    num_tokens = len(tokens) // TOKEN_BYTES
    for start in range(0, num_tokens, size):
        parent = blocks[-1].digest if blocks else first
        blocks.append(block(parent, tokens, start, min(start + size, num_tokens)))
    return blocks


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=DIGEST_BYTES).hexdigest()
