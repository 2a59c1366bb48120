"""Finds fixed strings in a text that arrives in pieces, where each of them has a meaning of its own."""

import re
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A string that was found: `text[start:end]`."""

    string: str
    start: int
    end: int


class Marks:
    """Several strings, none of them inside another: so the first one that is complete is the same for every cut."""

    def __init__(self, strings: Collection[str]) -> None:
        assert not any(one in other for one in strings for other in strings if one != other), strings
        self._strings = tuple(strings)
        self._pattern = re.compile("|".join(map(re.escape, strings))) if strings else None
        self._beginnings = {string[:size] for string in strings for size in range(1, len(string))}
        self._longest = max(map(len, strings), default=1) - 1

    def find(self, text: str, at: int) -> Mark | None:
        """The first of them from `at` on."""
        match = self._pattern.search(text, at) if self._pattern is not None else None
        return None if match is None else Mark(match.group(), match.start(), match.end())

    def at(self, text: str, at: int) -> Mark | None:
        """The one that begins at `at`."""
        match = self._pattern.match(text, at) if self._pattern is not None else None
        return None if match is None else Mark(match.group(), match.start(), match.end())

    def begins(self, text: str, at: int) -> bool:
        """Whether all that follows `at` may be the beginning of one."""
        return len(text) - at <= self._longest and (at == len(text) or text[at:] in self._beginnings)

    def num_held(self, text: str, at: int) -> int:
        """How many characters at the end may be the beginning of one."""
        for size in range(min(self._longest, len(text) - at), 0, -1):
            if text[len(text) - size :] in self._beginnings:
                return size
        return 0
