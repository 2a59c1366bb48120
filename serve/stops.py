"""Finds stop strings in a text that arrives in pieces."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from corymb.serve.marks import Marks

_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Found:
    """A stop string, and how many characters of the piece at hand were read up to its end."""

    stop: str
    num_read: int


@dataclass(slots=True)
class _Node:
    """Some beginning of a stop string: its first `size` characters. Not a copy of them, as a long string has many."""

    whole: str
    size: int
    next: dict[str, int]
    fail: int = 0  # the longest shorter node that this text ends with
    stop: str | None = None  # the longest stop string that this text ends with


class StopFinder:
    """All stop strings of a request as one automaton (Aho and Corasick): a character costs the same for any number.

    A state is a node: the longest end of the text that some stop string begins with. So it is exactly the text that
    must be held back. The stop string that ends first wins; of several that end together, the longest.
    """

    START = 0

    def __init__(self, stops: Sequence[str]) -> None:
        self._nodes = [_Node("", 0, {})]
        for stop in stops:
            self._add(stop)
        self._link()

    def held(self, state: int) -> str:
        """The end of the text so far that may be the beginning of a stop string."""
        node = self._nodes[state]
        return node.whole[: node.size]

    def read(self, state: int, piece: str) -> tuple[int, Found | None]:
        """Reads a piece up to the end of the first stop string in it, and gives the new state."""
        nodes = self._nodes
        for index, char in enumerate(piece):
            state = self._step(state, char)
            stop = nodes[state].stop
            if stop is not None:
                return state, Found(stop, index + 1)
        return state, None

    def read_past(self, state: int, piece: str) -> int:
        """Reads a piece in which stop strings do not count, and gives the new state."""
        for char in piece:
            state = self._step(state, char)
        while state and not self._nodes[state].next:  # a whole stop string that no other goes on from
            state = self._nodes[state].fail
        return state

    def _step(self, state: int, char: str) -> int:
        nodes = self._nodes
        while True:
            following = nodes[state].next.get(char)
            if following is not None:
                return following
            if state == self.START:
                return state
            state = nodes[state].fail

    def _add(self, stop: str) -> None:
        at = self.START
        for index, char in enumerate(stop):
            if char not in self._nodes[at].next:
                self._nodes[at].next[char] = len(self._nodes)
                self._nodes.append(_Node(stop, index + 1, {}))
            at = self._nodes[at].next[char]
        self._nodes[at].stop = stop

    def _link(self) -> None:
        """Sets each node's `fail`, the short ones first, since the long ones need them."""
        nodes = self._nodes
        waiting = deque(nodes[self.START].next.values())
        while waiting:
            node = nodes[waiting.popleft()]
            for char, index in node.next.items():
                waiting.append(index)
                child = nodes[index]
                child.fail = self._step(node.fail, char)
                child.stop = child.stop or nodes[child.fail].stop


class Thought:
    """The beginning of a text in which the model thinks, and in which stop strings do not count."""

    def __init__(self, beginning: str, end: str) -> None:
        self.over = not end
        self._left = beginning  # what is still to come of the mark that it begins with
        self._begun = False
        self._ends = Marks((end,))
        self._held = ""  # may be the beginning of the mark at its end

    def read(self, piece: str) -> int:
        """How many characters of a piece belong to it."""
        if self.over or not self._goes_on(piece):
            return 0
        text = self._held + piece
        mark = self._ends.find(text, 0)
        if mark is None:
            self._held = text[len(text) - self._ends.num_held(text, 0) :]
            return len(piece)
        self.over = True
        return mark.end - len(self._held)

    def _goes_on(self, piece: str) -> bool:
        """False where the text does not begin as one in which the model thinks."""
        seen = piece if self._begun else piece.lstrip(_SPACE)
        self._begun = self._begun or bool(seen)
        size = min(len(seen), len(self._left))
        self.over = not self._left.startswith(seen[:size])
        self._left = self._left[size:]
        return not self.over
