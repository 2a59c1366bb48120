"""The fields that say what an answer must follow, by the names that SGLang and vLLM give them."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from corymb.serve import grammars
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import Field
from corymb.serve.grammars import Wanted

MAX_CHOICES, MAX_CHOICE_CHARS = 1_000, 10_000

_SCHEMA = "JSON schema, as an object or as its text"
_TAG = "structural tag, as an object or as its text"
_KINDS: tuple[tuple[str, str, Callable[[str, object], Wanted | None]], ...] = (
    ("json_schema", _SCHEMA, grammars.from_schema),
    ("regex", "pattern that the whole answer matches", grammars.from_regex),
    ("ebnf", "rules in GBNF, beginning at `root`", grammars.from_ebnf),
    ("structural_tag", _TAG, grammars.from_structural_tag),
)
_RENAMED = {"guided_json": "json_schema", "guided_regex": "regex", "guided_grammar": "ebnf"}
_MEMBERS = {"json": "json_schema", "regex": "regex", "grammar": "ebnf", "structural_tag": "structural_tag"}


def grammar_fields() -> list[Field]:
    """At most one of them may be set, `response_format` included: see `one_grammar`."""
    readers = {name: (accepts, read) for name, accepts, read in _KINDS}
    renamed = [(new, *readers[name]) for new, name in _RENAMED.items()]
    return [
        *(Field(name, accepts, read) for name, accepts, read in (*_KINDS, *renamed)),
        Field("guided_choice", f"list of 1 to {MAX_CHOICES} strings", read_choices),
        Field("structured_outputs", f"object with one of {', '.join(_MEMBERS)}, choice, json_object", read_structured),
    ]


def response_format_field() -> Field:
    """The OpenAI field."""
    about = 'object: {"type": "text"}, {"type": "json_object"}, maybe with `schema`, or json_schema or structural_tag'
    return Field("response_format", about, grammars.from_response_format)


# Members that are looked at, by the type; others are named as ignored.
_READ = {
    "json_object": ("type", "schema"),
    "json_schema": ("type", "json_schema"),
    "structural_tag": ("type", "format", "structures", "triggers"),
}
_NAMED = ("name", "description", "schema", "strict")


def format_members(body: Mapping[str, Any]) -> Mapping[str, Collection[str]]:
    """The members that are looked at in a body's `response_format`, once it is checked, and in the object inside it."""
    wanted = body.get("response_format")
    if wanted is None:
        return {}
    kind = wanted["type"]
    members = {"response_format": _READ.get(kind, ("type",))}
    return members | ({"response_format.json_schema": _NAMED} if kind == "json_schema" else {})


def read_choices(param: str, value: object) -> Wanted:
    """One of these strings."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise invalid(param, f"must be a list of strings, not {shown(value)}.")
    if not 0 < len(value) <= MAX_CHOICES or sum(map(len, value)) > MAX_CHOICE_CHARS:
        raise invalid(param, f"must have 1 to {MAX_CHOICES} entries of {MAX_CHOICE_CHARS} characters in all.")
    return grammars.from_choices(param, value)


def read_structured(param: str, value: object) -> Wanted | None:
    """vLLM's object with one member; those that are null count as not there."""
    members = {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else {}
    if len(members) != 1:
        raise invalid(param, f"must be an object with one member, not {shown(value)}.")
    ((name, item),) = members.items()
    inner = f"{param}.{name}"
    if name == "choice":
        return read_choices(inner, item)
    if name == "json_object" and item is True:
        return grammars.any_json(inner)
    readers = {member: read for member, kind in _MEMBERS.items() for known, _, read in _KINDS if known == kind}
    if name not in readers:
        raise invalid(param, f"has the unknown member {shown(name)}.")
    return readers[name](inner, item)


def one_grammar(values: Mapping[str, Any]) -> Wanted | None:
    """The grammar that checked values ask for; None where they ask for none. Raises ApiError for several."""
    found = [value for value in values.values() if isinstance(value, Wanted)]
    if len(found) > 1:
        names = " and ".join(f"`{wanted.param}`" for wanted in found)
        raise ApiError("invalid_value", f"{names} exclude each other: set one.", param=found[1].param)
    return found[0] if found else None


def grammar_param(values: Mapping[str, Any]) -> str:
    """The field that asks for a grammar, by the client's name; nothing where none does."""
    wanted = one_grammar(values)
    return "" if wanted is None else wanted.param
