"""Questions of /v1/decisions: what may be answered, and how the model is asked."""

import string as ascii_sets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from corymb.serve.errors import ApiError, invalid, shown

FORMAT_VERSION = 1  # of `asked`: a change of its words is a new version
MAX_QUESTIONS = 256
MAX_CHARS = 1 << 16
MAX_OPTIONS = len(ascii_sets.ascii_uppercase)
MIN_LEVELS, MAX_LEVELS = 2, 10
_KINDS = ("choice", "score", "yes_no")


@dataclass(frozen=True, slots=True)
class Question:
    """One question, and the answers that it may have."""

    id: str
    kind: Literal["choice", "score", "yes_no"]
    text: str
    names: Sequence[str]  # what the answer tells
    about: Sequence[str]  # what the model is told of each

    @property
    def labels(self) -> Sequence[str]:
        """What the model says for each: one character, which is one token in any vocabulary worth the name."""
        return (ascii_sets.digits if self.kind == "score" else ascii_sets.ascii_uppercase)[: len(self.names)]


def read_questions(param: str, value: object) -> list[Question]:
    """A list of questions with different ids."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_QUESTIONS:
        raise invalid(param, f"must be a list of 1 to {MAX_QUESTIONS} questions, not {shown(value)}.")
    questions = [_read(param, number, item) for number, item in enumerate(value)]
    if len({question.id for question in questions}) < len(questions):
        raise invalid(param, "must not have one id twice.")
    return questions


def _read(param: str, number: int, item: object) -> Question:
    where = f"question {number}"
    kind = item.get("type") if isinstance(item, dict) else None
    if not isinstance(item, dict) or kind not in _KINDS:
        raise _refusal(param, where, f"must be an object of type {', '.join(_KINDS)}, not {shown(kind)}")
    name = _text(param, where, str(number) if item.get("id") is None else item["id"], "id")
    text = _text(param, where, item.get("question"), "question")
    match kind:
        case "choice":
            names, about = _options(param, where, item.get("options"))
        case "score":
            about = _levels(param, where, item.get("levels"))
            names = [str(level) for level in range(len(about))]
        case _:
            names = ["yes", "no"]
            about = [_about(param, where, item, answer) for answer in names]
    return Question(name, kind, text, names, about)


def _options(param: str, where: str, options: object) -> tuple[list[str], list[str]]:
    if not isinstance(options, list) or not 2 <= len(options) <= MAX_OPTIONS:
        raise _refusal(param, where, f"must have 2 to {MAX_OPTIONS} `options`, not {shown(options)}")
    objects = [{"name": option} if isinstance(option, str) else option for option in options]
    if not all(isinstance(option, dict) for option in objects):
        raise _refusal(param, where, "must have options that are names, or objects with a `name`")
    names = [_text(param, where, option.get("name"), "name") for option in objects]
    if len(set(names)) < len(names):
        raise _refusal(param, where, "must not have one option twice")
    return names, [_about(param, where, option, "description") for option in objects]


def _levels(param: str, where: str, levels: object) -> list[str]:
    if isinstance(levels, float) and levels.is_integer():
        levels = int(levels)
    if isinstance(levels, int) and not isinstance(levels, bool) and MIN_LEVELS <= levels <= MAX_LEVELS:
        return [""] * levels
    if not isinstance(levels, list) or not MIN_LEVELS <= len(levels) <= MAX_LEVELS:
        known = f"must have {MIN_LEVELS} to {MAX_LEVELS} `levels`: their number, or what each means"
        raise _refusal(param, where, f"{known}, not {shown(levels)}")
    return [_text(param, where, level, "levels", empty=True) for level in levels]


def _about(param: str, where: str, item: dict[str, Any], name: str) -> str:
    return _text(param, where, "" if item.get(name) is None else item[name], name, empty=True)


def _text(param: str, where: str, value: object, name: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > MAX_CHARS or not (value or empty):
        raise _refusal(
            param, where, f"must have text of at most {MAX_CHARS} characters as `{name}`, not {shown(value)}"
        )
    return value


def _refusal(param: str, where: str, problem: str) -> ApiError:
    return ApiError("invalid_value", f"`{param}`: {where} {problem}.", param=param)


def asked(given: Any, question: Question) -> str:
    """What the model reads, of version `FORMAT_VERSION`."""
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    options = [_option(*option) for option in zip(question.labels, question.names, question.about, strict=True)]
    listed = "\n".join(options)
    return f"{text}\n\n{question.text}\n\n{listed}\n\nAnswer with one of {', '.join(question.labels)} and nothing else."


def _option(label: str, name: str, about: str) -> str:
    shown_name = "" if name == label else f" {name}"
    return f"{label}:{shown_name}" + (f" ({about})" if about and shown_name else f" {about}" if about else "")
