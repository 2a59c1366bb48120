"""How fields of a request go together, which a JSON Schema cannot say. Schemathesis loads it (SCHEMATHESIS_HOOKS)."""

import schemathesis
from schemathesis.generation import GenerationMode

MOST_TOKENS, MOST_CHOICES = 16, 3  # bodies stay as they were drawn, only cheaper
MANY = 30  # prompts, of which each may have one choice
LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens", "num_predict")
UNLIMITED = {"messages": "max_tokens", "input": "max_output_tokens"}  # else the end of the context is the limit
EACH = ("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob", "sampling_params", "rid")
USER = {"role": "user", "content": "q"}


@schemathesis.hook
def before_call(context, case, kwargs):
    """Makes fields agree where each alone is right. Bodies that are meant to be refused stay as they are."""
    meant_well = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if meant_well and isinstance(case.body, dict):
        body = case.body = agree(case.body) | dict.fromkeys(open_fields(case) & set(case.body))
        for name in ("sampling_params", "options"):
            if isinstance(body.get(name), dict):
                body[name] = agree(body[name])
        close_schemas(body)
        if case.path.startswith("/v1/messages"):
            agree_as_anthropic(body)
        for number, question in enumerate(body.get("questions") or []):
            agree_with_others(question, number)
        for name in ("input", "items"):
            if isinstance(body.get(name), list):
                body[name] = answerable(body[name])


def open_fields(case) -> set[str]:
    """Fields whose values the document leaves open, such as a schema of the client's: few drawn values are right."""
    schema = case.operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
    return {name for name, field in schema.get("properties", {}).items() if set(field) <= {"description"}}


def close_schemas(body: dict) -> None:
    """The same for schemas that lie inside other fields."""
    for name in ("text", "output_config"):
        given = body.get(name)
        if isinstance(given, dict) and (given.get("format") or {}).get("type") == "json_schema":
            body[name] = given | {"format": None}


def agree(body: dict) -> dict:
    """A copy in which fields fit together."""
    body = dict(body)
    for what, limit in UNLIMITED.items():
        if what in body and body.get(limit) is None:
            body[limit] = MOST_TOKENS
    limits = {name: body[name] for name in LIMITS if isinstance(body.get(name), int | float)}
    body |= {name: int(limit) % MOST_TOKENS + 1 for name, limit in limits.items()}
    body |= {name: None for name in ("min_tokens", "min_new_tokens", "best_of") if name in body}
    if isinstance(body.get("n"), int | float):
        body["n"] = 1 if num_prompts(body) > MANY else min(int(body["n"]), MOST_CHOICES)
    if body.get("top_logprobs"):
        body["logprobs"] = True
    if body.get("logprob_start_len") is not None:
        body["logprob_start_len"] = -1
    # Lists with an entry for each prompt, where their lengths would have to agree.
    return body | {name: None for name in EACH if isinstance(body.get(name), list)}


def agree_as_anthropic(body: dict) -> None:
    """The last word is not the assistant's, and a budget is less than the limit, which is small here."""
    if body["messages"][-1]["role"] == "assistant":
        body["messages"] = [*body["messages"], USER]
    if isinstance(body.get("thinking"), dict):
        body["thinking"] = body["thinking"] | {"budget_tokens": None}


def agree_with_others(question: dict, number: int) -> None:
    """No two questions have one id, and no two options one name."""
    question["id"] = str(number)
    if question["type"] == "choice":
        question["options"] = [f"{number}. {option}"[:1000] for number, option in enumerate(question["options"])]


def answerable(items: list) -> list:
    """Few enough, and more than thoughts."""
    thoughts = [item for item in items if isinstance(item, dict) and item.get("type") == "reasoning"]
    return [*items[:MANY], USER] if len(thoughts) == len(items) else items[:MANY]


def num_prompts(body: dict) -> int:
    """At least so many prompts does a list hold; token ids count, too."""
    return len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
