"""Keyword arguments as Python writes them, turned into JSON while they arrive."""

import ast
import json
import math
import re

from corymb.serve.json_reading import Give, NotACall, skip_space
from corymb.serve.tokenizer import valid_text
from corymb.serve.values import escaped

_WORD = re.compile(r"[-+.\w]*")
_NAME = re.compile(r"[^\W\d]\w{0,127}")
_PLAIN = {quote: re.compile(rf"[^{quote}\\]+") for quote in "\"'"}
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
# All of an escape that can be there before the rest of it.
_CUT_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|[0-7]{1,2})?")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_MAX_WORD_CHARS = 256
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


class PythonArguments:
    """Reads `key=value, …)` and gives `{"key": value, …}`. Opens the call when it is sure to be one."""

    def __init__(self, open_call: Give, give: Give, name: str) -> None:
        self.done = False
        self._open_call = open_call
        self._give = give
        self._name = name
        self._opened = False
        self._stack: list[str] = []  # the closing bracket of each container that is open
        self._expects = "key"  # key, value, or more: a comma or the end
        self._comma = False  # to be written before what comes next, if anything does
        self._colon = False  # in a dictionary, the key went before
        self._key = ""  # an argument's name, until its equals sign
        self._quote = ""  # of the string being read

    def read(self, text: str, at: int) -> int:
        """Reads on; raises NotACall where it is no list of keyword arguments."""
        while not self.done:
            end = self._string(text, at) if self._quote else self._token(text, skip_space(text, at))
            if end == at and (at == len(text) or self._waits(text, at)):
                return at
            at = end
        return at

    def _waits(self, text: str, at: int) -> bool:
        return bool(self._quote) or bool(_WORD.match(text, at).group())  # type: ignore[union-attr]

    def _token(self, text: str, at: int) -> int:
        if at == len(text):
            return at
        char = text[at]
        if char == (self._stack[-1] if self._stack else ")"):
            return self._close(at)
        if self._expects == "more":
            return self._more(char, at)
        if self._expects == "equals":
            return self._equals(char, at)
        if char in "\"'" and self._expects == "value":
            self._begin()
            self._give('"')
            self._quote = char
            return at + 1
        if char in _CLOSERS and self._expects == "value":
            return self._bracket(char, at)
        return self._word(text, at)

    def _begin(self) -> None:
        if self._comma:
            self._give(", ")
            self._comma = False

    def _bracket(self, char: str, at: int) -> int:
        self._begin()
        self._give("{" if char == "{" else "[")
        self._stack.append(_CLOSERS[char])
        self._colon = False
        return at + 1

    def _close(self, at: int) -> int:
        """A closing bracket: of a list or dictionary, or of the call."""
        self._comma = False
        if self._stack:
            self._give("}" if self._stack.pop() == "}" else "]")
            self._expects = "more"
            return at + 1
        if self._expects == "value" or self._key:
            raise NotACall(at)
        self._open()
        self._give("}")
        self.done = True
        return at + 1

    def _more(self, char: str, at: int) -> int:
        if char == ":" and self._stack and self._stack[-1] == "}":
            self._give(": ")
            self._colon = True
        elif char == ",":
            self._comma, self._colon = True, False
        else:
            raise NotACall(at)
        self._expects = "value" if self._stack else "key"
        return at + 1

    def _equals(self, char: str, at: int) -> int:
        if char != "=":
            raise NotACall(at)
        self._open()
        self._begin()
        self._give(f"{json.dumps(self._key, ensure_ascii=False)}: ")
        self._key = ""
        self._expects = "value"
        return at + 1

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._open_call(self._name)
            self._give("{")

    def _word(self, text: str, at: int) -> int:
        match = _WORD.match(text, at)
        assert match is not None
        word = match.group()
        if len(word) > _MAX_WORD_CHARS or not word:
            raise NotACall(at)
        if match.end() == len(text):
            return at  # it may go on
        if self._expects == "key":
            if not _NAME.fullmatch(word):
                raise NotACall(at)
            self._key, self._expects = word, "equals"
        else:
            self._begin()
            is_key = self._stack[-1:] == ["}"] and not self._colon
            self._give(json.dumps(word, ensure_ascii=False) if is_key else _word_json(word))
            self._expects = "more"
        return match.end()

    def _string(self, text: str, at: int) -> int:
        if at == len(text):
            return at
        if text[at] == self._quote:
            self._give('"')
            self._quote, self._expects = "", "more"
            return at + 1
        plain = _PLAIN[self._quote].match(text, at)
        if plain is not None:
            self._give(escaped(plain.group()))
            return plain.end()
        if _CUT_ESCAPE.fullmatch(text, at):
            return at
        escape = _ESCAPE.match(text, at)
        assert escape is not None
        self._give(escaped(_unescaped(escape.group())))
        return escape.end()


def _word_json(word: str) -> str:
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(word):
        number = float(word) if re.search(r"[.eE]", word) else int(word)
        if math.isfinite(number):
            return json.dumps(number)
    return json.dumps(word, ensure_ascii=False)  # a name where a value should be


def _unescaped(escape: str) -> str:
    if escape[1] == "\n":
        return ""
    if escape[1] in "NxuU01234567" or escape[1] in "abfnrtv\\'\"":
        try:
            value: str = ast.literal_eval(f"'{escape}'")
        except (SyntaxError, ValueError):
            return escape
        return valid_text(value)
    return escape
