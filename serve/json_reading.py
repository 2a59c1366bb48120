"""Reads JSON that arrives in pieces: where a value ends, what a string says, and calls written as objects.

Readers take a text and a position and give the position up to which they have read. What they leave unread is the
beginning of something, at most a few characters, and must come again with more text behind it. Each is used once.
"""

import json
import re
from collections.abc import Callable

from corymb.serve.tokenizer import valid_text

_SPACE = re.compile(r"[ \t\r\n]*")
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r'\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|["\\/bfnrt])')
# All of an escape that can be there before the rest of it, or before the second half of a pair.
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?")
_BARE = re.compile(r"[-+.0-9A-Za-z]*")
MAX_NAME_CHARS = 256
_CALL_KEYS = frozenset({"name", "arguments", "parameters", "id", "type"})

Give = Callable[[str], None]


class NotACall(Exception):
    """What was read cannot be a call. `at` is the first character that shows it, whatever the pieces were."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at = at


def skip_space(text: str, at: int) -> int:
    """The position of the next character that is no white space."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


class JsonValue:
    """One value, given on as it is written. Only its end is looked for: its inside may be malformed."""

    def __init__(self, give: Give) -> None:
        self.done = False
        self._give = give
        self._depth = 0
        self._in_string = self._in_bare = self._begun = False

    def read(self, text: str, at: int) -> int:
        """Reads on; raises NotACall where no value begins."""
        if not self._begun:
            at = skip_space(text, at)
            if at == len(text):
                return at
            self._begin(text, at)
        end = self._find_end(text, at)
        self._give(text[at:end])
        return end

    def _begin(self, text: str, at: int) -> None:
        char = text[at]
        if char not in '{["-' and not char.isalnum():
            raise NotACall(at)
        self._begun = True
        self._in_bare = char not in '{["'

    def _find_end(self, text: str, at: int) -> int:
        if self._in_bare:
            match = _BARE.match(text, at)
            assert match is not None
            self.done = match.end() < len(text)
            return match.end()
        while not self.done:
            if self._in_string:
                at = self._leave_string(text, at)
                if self._in_string:
                    return at
            else:
                match = _OUTSIDE.search(text, at)
                if match is None:
                    return len(text)
                at = match.end()
                self._in_string = match.group() == '"'
                self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match.group(), 0)
            self.done = self._depth <= 0 and not self._in_string
        return at

    def _leave_string(self, text: str, at: int) -> int:
        """Behind the closing quote; else before a backslash at the very end, or at the end."""
        while True:
            match = _INSIDE.search(text, at)
            if match is None:
                return len(text)
            if match.group() == '"':
                self._in_string = False
                return match.end()
            if match.end() == len(text):
                return match.start()
            at = match.end() + 1

    def end(self) -> None:
        """Nothing more comes: a number or word is complete."""
        self.done = self.done or self._in_bare


class JsonString:
    """A string, given on as the text that it means. One of more than `limit` characters is refused."""

    def __init__(self, give: Give, limit: int | None = None) -> None:
        self.done = False
        self._give = give
        self._left = limit
        self._begun = False

    def read(self, text: str, at: int) -> int:
        """Reads on, from the opening quote."""
        if not self._begun:
            at = skip_space(text, at)
            if at == len(text):
                return at
            if text[at] != '"':
                raise NotACall(at)
            self._begun = True
            at += 1
        while at < len(text):
            if text[at] == '"':
                self.done = True
                return at + 1
            end = self._piece(text, at)
            if end == at:
                break
            at = end
        return at

    def _piece(self, text: str, at: int) -> int:
        plain = _PLAIN.match(text, at)
        if plain is not None:
            self._count(plain.end() - at, at)
            self._give(plain.group())
            return plain.end()
        if _CUT_ESCAPE.fullmatch(text, at):
            return at
        escape = _ESCAPE.match(text, at)
        self._count(1, at)
        if escape is None:
            self._give(text[at])  # malformed: as it is
            return at + 1
        # Half of a surrogate pair is no character: nothing could encode it.
        self._give(valid_text(json.loads(f'"{escape.group()}"')))
        return escape.end()

    def _count(self, num_chars: int, at: int) -> None:
        if self._left is not None:
            if num_chars > self._left:
                raise NotACall(at + self._left)
            self._left -= num_chars


class JsonCall:
    """An object with a function's name and arguments (or `parameters`), in any order.

    `bare`: no mark said that this is a call, so any other key says that it is none.
    """

    def __init__(self, open_call: Give, give: Give, *, bare: bool) -> None:
        self.done = False
        self._open_call = open_call
        self._give = give
        self._bare = bare
        self._name: str | None = None
        self._opened = False
        self._early: list[str] = []  # arguments that came before the name
        self._has_arguments = False
        self._taken: list[str] = []
        self._key: str | None = None
        self._reader: JsonValue | JsonString | None = None
        self._next = "{"  # characters that may come next

    def read(self, text: str, at: int) -> int:
        """Reads on; raises NotACall as soon as it is none."""
        try:
            while not self.done:
                if self._reader is not None:
                    at = self._reader.read(text, at)
                    if not self._reader.done:
                        return at
                    self._value_read()
                    continue
                at = skip_space(text, at)
                if at == len(text):
                    return at
                at = self._token(text[at], at)
        except NotACall as refusal:
            raise NotACall(at if refusal.at is None else refusal.at) from None
        return at

    def _token(self, char: str, at: int) -> int:
        """One character of the object's frame."""
        if self._next == "value":
            self._reader = self._value_reader(char)
            return at
        if char not in self._next:
            raise NotACall
        if char == '"':
            self._reader = self._short_string()
            self._next = ":"
            return at
        if char == "}":
            self._close()
        self._next = {"{": '"}', ":": "value", ",": '"', "}": ""}[char]
        return at + 1

    def _value_reader(self, char: str) -> "JsonValue | JsonString":
        if self._key == "name" and self._name is None:
            return self._short_string()
        if self._key in ("arguments", "parameters") and not self._has_arguments:
            self._has_arguments = True
            self._open(sure=True)
            if char in 'n"':
                # A string holds the object once more encoded; null stands for no arguments.
                return JsonString(self._argument) if char == '"' else JsonValue(_drop)
            return JsonValue(self._argument)
        return JsonValue(_drop)

    def _value_read(self) -> None:
        self._reader = None
        taken = "".join(self._taken)
        self._taken.clear()
        if self._next == ":":
            self._key = taken
            if self._bare and taken not in _CALL_KEYS:
                raise NotACall
            return
        self._next = ",}"
        if self._key == "name" and self._name is None:
            self._name = taken
            self._open(sure=not self._bare or self._has_arguments)

    def _open(self, *, sure: bool) -> None:
        """Opens the call once the name is known; a bare one only when arguments show that it is one."""
        if self._name is None or self._opened or not sure:
            return
        self._open_call(self._name)
        self._opened = True
        for piece in self._early:
            self._give(piece)
        self._early.clear()

    def _close(self) -> None:
        if self._name is None or (self._bare and not self._has_arguments):
            raise NotACall
        self.done = True

    def _argument(self, piece: str) -> None:
        if self._opened:
            self._give(piece)
        else:
            self._early.append(piece)

    def _short_string(self) -> JsonString:
        return JsonString(self._taken.append, MAX_NAME_CHARS)


def _drop(piece: str) -> None:
    """Leaves out a value that means nothing here."""
