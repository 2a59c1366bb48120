"""How fields of a request go together, which a JSON Schema cannot say. Schemathesis loads it (SCHEMATHESIS_HOOKS)."""

import schemathesis
from schemathesis.generation import GenerationMode

MOST_TOKENS, MOST_CHOICES = 16, 3  # bodies stay as they were drawn, only cheaper
MANY = 30  # prompts, of which each may have one choice
LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens")
UNLIMITED = {"messages": "max_tokens", "input": "max_output_tokens"}  # else the end of the context is the limit
EACH = ("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob", "sampling_params", "rid")


@schemathesis.hook
def before_call(context, case, kwargs):
    """Makes fields agree where each alone is right. Bodies that are meant to be refused stay as they are."""
    meant_well = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if meant_well and isinstance(case.body, dict):
        body = case.body = agree(case.body) | dict.fromkeys(open_fields(case) & set(case.body))
        if isinstance(body.get("sampling_params"), dict):
            body["sampling_params"] = agree(body["sampling_params"])


def open_fields(case) -> set[str]:
    """Fields whose values the document leaves open, such as a schema of the client's: few drawn values are right."""
    schema = case.operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
    return {name for name, field in schema.get("properties", {}).items() if set(field) <= {"description"}}


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
        body["n"] = 1 if num_prompts(body) > MANY else int(body["n"]) % MOST_CHOICES + 1
    if body.get("top_logprobs"):
        body["logprobs"] = True
    if body.get("logprob_start_len") is not None:
        body["logprob_start_len"] = -1
    # Lists with an entry for each prompt, where their lengths would have to agree.
    return body | {name: None for name in EACH if isinstance(body.get(name), list)}


def num_prompts(body: dict) -> int:
    """At least so many prompts does a list hold; token ids count, too."""
    return len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
