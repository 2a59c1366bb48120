"""Structural tags: formats inside formats, with every schema in them held to the same rules as elsewhere."""

import json
from collections.abc import Mapping
from typing import Any

from corymb.serve.schema_words import ANNOTATIONS, Unsupported, refuse
from corymb.serve.schemas import check_size, schema_rules
from corymb.serve.strings import part_of_answer

MAX_TAG_CHARS = 1 << 20

_XML_STYLES = ("qwen_xml", "glm_xml", "deepseek_xml", "minimax_xml")
# What the back end enforces by itself, where arguments are not JSON and its rules take the place of ours.
_IN_TAGS = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "enum", "const"),
        *("minimum", "maximum", "minLength", "maxLength", "anyOf", "$ref"),
    )
)
_ALONE = ("anyOf", "$ref")  # beside them the back end drops other keywords


def tag_text(tag: object) -> str:
    """The JSON of a structural tag whose schemas and patterns have become rules.

    Raises Unsupported, BadPattern, TooComplex.
    """
    if not isinstance(tag, dict) or not isinstance(tag.get("format"), dict):
        raise Unsupported('a structural tag is an object {"type": "structural_tag", "format": {…}}')
    check_size(tag, MAX_TAG_CHARS)
    return json.dumps({"type": "structural_tag", "format": _followed(tag["format"])}, ensure_ascii=False)


def _followed(node: Any) -> Any:
    if isinstance(node, list):
        return [_followed(item) for item in node]
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if kind == "json_schema" and node.get("style", "json") == "json":
        return {"type": "grammar", "grammar": schema_rules(node.get("json_schema"))}
    if kind in ("json_schema", "qwen_xml_parameter"):
        return _written_in_tags(node)
    if kind == "regex":
        return {"type": "grammar", "grammar": part_of_answer(_pattern(node))}
    return {name: _followed(item) for name, item in node.items()}


def _written_in_tags(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments that are not written as JSON: the back end writes the rules, for schemas that pass here."""
    style = node.get("style", "qwen_xml")
    if style not in _XML_STYLES:
        raise Unsupported(f"the style {str(style)[:40]!r} of a schema is not known")
    schema = node.get("json_schema")
    schema_rules(schema)
    _check_in_tags(schema, "")
    return node


def _check_in_tags(schema: Any, path: str) -> None:
    """Raises Unsupported for what only our own rules enforce."""
    if not isinstance(schema, dict):
        return
    words = schema.keys() - ANNOTATIONS
    alone = next((word for word in _ALONE if word in words and len(words) > 1), None)
    wrong = alone or min(words - _IN_TAGS, default=None)
    if wrong is not None:
        refuse(wrong, path, "cannot be enforced in the format of this model's calls")
    inner = [*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")]
    for name in ("properties", "$defs", "definitions"):
        inner += schema.get(name, {}).values()
    for each in inner:
        _check_in_tags(each, path)


def _pattern(node: Mapping[str, Any]) -> str:
    pattern = node.get("pattern")
    if not isinstance(pattern, str):
        raise Unsupported("a format of type regex holds a `pattern`")
    return pattern
