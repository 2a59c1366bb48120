"""JSON Schemas of what requests hold inside their fields."""

from corymb.serve.anthropic_content import MAX_BLOCKS
from corymb.serve.conversation import RESERVED_VARIABLES
from corymb.serve.messages import MAX_CALLS
from corymb.serve.questions import MAX_CHARS, MAX_LEVELS, MAX_OPTIONS, MAX_QUESTIONS, MIN_LEVELS
from corymb.serve.reasoning import EFFORTS
from corymb.serve.responses_items import MAX_ITEMS, MAX_PARTS, ROLES
from corymb.serve.shapes import FLAG, NUMBER, OBJECT, TEXT, Schema, array, either, enum, or_null, record


def prompts(token_id: Schema, *, max_prompts: int, max_tokens: int) -> Schema:
    """A text, token ids, or several of either."""
    text, ids = {"type": "string", "minLength": 1}, array(token_id, minItems=1, maxItems=max_tokens)
    return either(text, ids, array(either(text, ids), minItems=1, maxItems=max_prompts))


def one_or_each(schema: Schema, max_items: int) -> Schema:
    """A value for all prompts, or a list with one for each."""
    return either(schema, array(schema, maxItems=max_items))


_CONTENT = either(
    TEXT,
    array(
        either(record({"type": enum("text"), "text": TEXT}), record({"type": enum("refusal"), "refusal": TEXT})),
        minItems=1,
        maxItems=1024,
    ),
)
_FUNCTION = record({"name": TEXT}, {"arguments": either(TEXT, OBJECT, {"type": "null"})})
_CALL = record({"function": _FUNCTION}, {"id": or_null(TEXT)})


def messages(max_messages: int) -> Schema:
    """A conversation of the OpenAI API."""
    name = {"name": or_null(TEXT)}
    said = record({"role": enum("system", "developer", "user"), "content": _CONTENT}, name)
    answered = record(
        {"role": enum("assistant")},
        {
            "content": or_null(_CONTENT),
            "reasoning_content": or_null(TEXT),
            "tool_calls": or_null(array(_CALL, maxItems=MAX_CALLS)),
            "function_call": {},  # read where there are no tool_calls
            **name,
        },
    )
    result = record(
        {"role": enum("tool", "function")}, {"content": or_null(_CONTENT), "tool_call_id": or_null(TEXT), **name}
    )
    return array(either(said, answered, result), minItems=1, maxItems=max_messages)


TEMPLATE_VARIABLES: Schema = {
    "type": "object",
    "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]{0,63}$", "not": enum(*sorted(RESERVED_VARIABLES))},
    "additionalProperties": either(FLAG, NUMBER, {"type": "null"}, {"type": "string", "maxLength": 1024}),
    "maxProperties": 32,
}
STREAM_OPTIONS = record({}, {"include_usage": or_null(FLAG), "continuous_usage_stats": or_null(FLAG)})


# Anthropic's messages.

_TEXTS = either(TEXT, array(record({"type": enum("text"), "text": TEXT}), minItems=1, maxItems=MAX_BLOCKS))
_RESULT = record(
    {"type": enum("tool_result"), "tool_use_id": TEXT},
    {"content": or_null(either(_TEXTS, array(TEXT, maxItems=0))), "is_error": or_null(FLAG)},
)
_SAID = either(
    record({"type": enum("text"), "text": TEXT}),
    record({"type": enum("thinking"), "thinking": TEXT}),
    record({"type": enum("redacted_thinking")}),
    record({"type": enum("tool_use"), "id": TEXT, "name": TEXT, "input": OBJECT}),
)
_SOURCE = either(
    record({"type": enum("text"), "data": TEXT}),
    record({"type": enum("content"), "content": _TEXTS}),
)
_DOCUMENT = record({"type": enum("document"), "source": _SOURCE}, {"title": or_null(TEXT), "context": or_null(TEXT)})
_ASKED = either(record({"type": enum("text"), "text": TEXT}), _DOCUMENT, _RESULT)
SYSTEM = _TEXTS


def _blocks(block: Schema) -> Schema:
    return either(TEXT, array(block, minItems=1, maxItems=MAX_BLOCKS))


def anthropic_messages(max_messages: int) -> Schema:
    """A conversation; its last message is not the assistant's."""
    user = record({"role": enum("user"), "content": _blocks(_ASKED)})
    assistant = record({"role": enum("assistant"), "content": _blocks(_SAID)})
    system = record({"role": enum("system"), "content": _TEXTS})
    return array(either(user, assistant, system), minItems=1, maxItems=max_messages)


def thinking(least_budget: int, most_budget: int) -> Schema:
    """Only thinking that is enabled has a budget, which is less than `max_tokens`."""
    budget = {"type": "integer", "minimum": least_budget, "maximum": most_budget}
    return either(
        record({"type": enum("enabled")}, {"budget_tokens": or_null(budget)}),
        record({"type": enum("adaptive", "disabled")}, {"budget_tokens": {"type": "null"}}),
    )


# A schema of the client's is open here: what can be enforced of it is told in words.
_JSON_FORMAT = record({"type": enum("json_schema"), "schema": {}})
OUTPUT_CONFIG = record({}, {"effort": or_null(enum(*EFFORTS)), "format": or_null(_JSON_FORMAT)})

# OpenAI's responses.

_PARTS = either(
    record({"type": enum("input_text", "output_text", "text", "reasoning_text", "summary_text"), "text": TEXT}),
    record({"type": enum("refusal"), "refusal": TEXT}),
)
_CONTENTS = either(TEXT, array(_PARTS, minItems=1, maxItems=MAX_PARTS))
_THOUGHTS = either({"type": "null"}, TEXT, array(_PARTS, maxItems=MAX_PARTS))
INPUT = either(
    TEXT,
    array(
        either(
            record({"role": enum(*ROLES), "content": _CONTENTS}, {"type": enum("message")}),
            record({"type": enum("function_call"), "call_id": TEXT, "name": TEXT, "arguments": TEXT}),
            record({"type": enum("function_call_output"), "call_id": TEXT, "output": _CONTENTS}),
            record({"type": enum("reasoning")}, {"summary": _THOUGHTS, "content": _THOUGHTS}),
        ),
        minItems=1,
        maxItems=MAX_ITEMS,
    ),
)
RESPONSE_TEXT = record({}, {"format": or_null(either(record({"type": enum("text", "json_object")}), _JSON_FORMAT))})
REASONING = record({}, {"effort": or_null(enum(*EFFORTS))})

# Ollama's.

THINK = either(FLAG, enum(*EFFORTS))
# Past the chat template there is no place for a system prompt.
RAW: Schema = {"not": record({"raw": enum(True), "system": {"type": "string", "minLength": 1}})}


def ollama_messages(max_messages: int) -> Schema:
    """A conversation; none at all only loads the model."""
    common = {"thinking": or_null(TEXT), "tool_name": or_null(TEXT), "images": or_null(array(TEXT, maxItems=0))}
    said = record({"role": enum("system", "user"), "content": _CONTENT}, common)
    answered = record(
        {"role": enum("assistant")},
        {"content": or_null(_CONTENT), "tool_calls": or_null(array(_CALL, maxItems=MAX_CALLS)), **common},
    )
    result = record({"role": enum("tool")}, {"content": or_null(_CONTENT), "tool_call_id": or_null(TEXT), **common})
    return array(either(said, answered, result), maxItems=max_messages)


# Questions, documents, scores.


def texts_to_score(token_id: Schema, *, max_items: int, max_tokens: int) -> Schema:
    """A query and items of its kind, text or token ids; of a query and an item that are joined, one is not empty."""
    words, ids = {"type": "string", "minLength": 1}, array(token_id, minItems=1, maxItems=max_tokens)
    return either(
        *_pairs(TEXT, words, max_items, alone=TEXT),
        *_pairs(array(token_id, maxItems=max_tokens), ids, max_items, alone=ids),
    )


def _pairs(one: Schema, not_empty: Schema, max_items: int, *, alone: Schema) -> list[Schema]:
    """`alone`: one that stands for a list of it."""

    def several(single: Schema, listed: Schema, most: int) -> Schema:
        return either(single, array(listed, minItems=1, maxItems=most))

    return [
        record({"query": several(not_empty, not_empty, 1), "items": several(alone, one, max_items)}),
        record({"query": several(alone, one, 1), "items": several(not_empty, not_empty, max_items)}),
    ]


_WORDS: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_CHARS}
_ABOUT: Schema = {"type": "string", "maxLength": MAX_CHARS}
_OPTION = either(_WORDS, record({"name": _WORDS}, {"description": or_null(_ABOUT)}))
_LEVELS = either(
    {"type": "integer", "minimum": MIN_LEVELS, "maximum": MAX_LEVELS},
    array(_ABOUT, minItems=MIN_LEVELS, maxItems=MAX_LEVELS),
)


def _question(kind: str, required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return record({"type": enum(kind), "question": _WORDS, **required}, {"id": or_null(_WORDS), **(optional or {})})


QUESTIONS = array(
    either(
        _question("choice", {"options": {**array(_OPTION, minItems=2, maxItems=MAX_OPTIONS), "uniqueItems": True}}),
        _question("score", {"levels": _LEVELS}),
        _question("yes_no", {}, {"yes": or_null(_ABOUT), "no": or_null(_ABOUT)}),
    ),
    minItems=1,
    maxItems=MAX_QUESTIONS,
)
