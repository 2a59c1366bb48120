"""The fields of /generate, most of which may be given once or as a list with an entry a prompt."""

from collections.abc import Callable
from typing import Any

from corymb.serve.engine import ServedModel
from corymb.serve.errors import invalid, shown
from corymb.serve.fields import Field, boolean, ignored, integer, refused, string, token_ids
from corymb.serve.grammar_fields import response_format_field
from corymb.serve.prompts import read_prompts
from corymb.serve.requests import read_rid, request_fields, table
from corymb.serve.sampling_fields import MAX_NEW_TOKENS, sampling_fields, structure_fields
from corymb.serve.settings import HttpSettings

MAX_TOP_LOGPROBS = 128
MAX_LOGPROB_IDS = 1024


class Each(list[Any]):
    """Values that were given as a list with an entry a prompt."""


def each(field: Field, max_items: int) -> Field:
    """The same field, or a list of it."""
    read_one = field.read
    assert read_one is not None

    def read(param: str, value: object) -> object:
        if not isinstance(value, list):
            return read_one(param, value)
        if len(value) > max_items:
            raise invalid(param, f"must have at most {max_items} entries, not {len(value)}.")
        return Each(read_one(param, item) for item in value)

    return Field(field.name, f"{field.accepts}; or a list of these", read)


def chosen_ids(vocab_size: int, max_items: int) -> Field:
    """Token ids whose logprobs are wanted, for all prompts or for each."""
    one = token_ids("token_ids_logprob", vocab_size, MAX_LOGPROB_IDS)
    read_one = one.read
    assert read_one is not None

    def read(param: str, value: object) -> object:
        if not (isinstance(value, list) and value and isinstance(value[0], list | None)):
            return read_one(param, value)
        if len(value) > max_items:
            raise invalid(param, f"must have at most {max_items} entries, not {len(value)}.")
        return Each(() if item is None else read_one(param, item) for item in value)

    return Field(one.name, f"{one.accepts}; or a list of these", read)


def native_sampling_fields(vocab_size: int) -> dict[str, Field]:
    """Fields of `sampling_params`."""
    own = [
        integer("max_new_tokens", 0, MAX_NEW_TOKENS),
        integer("min_new_tokens", 0, MAX_NEW_TOKENS),
        integer("sampling_seed", -(2**63), 2**63 - 1),
        refused("max_tokens", "use `max_new_tokens`"),
        refused("min_tokens", "use `min_new_tokens`"),
    ]
    return table(own, [response_format_field()], sampling_fields(vocab_size), structure_fields())


def native_fields(
    info: ServedModel, settings: HttpSettings, read_sampling: Callable[[str, object], object]
) -> dict[str, Field]:
    """Fields of the body. `read_sampling` reads one `sampling_params` object."""
    vocab_size, max_prompts = info.vocab_size, settings.max_choices
    own = [
        Field("text", "text, or list of texts", _texts(info, settings)),
        Field("input_ids", "list of token ids, or list of these", _ids(info, settings)),
        each(Field("sampling_params", "object of sampling fields", read_sampling), max_prompts),
        each(boolean("return_logprob"), max_prompts),
        each(integer("logprob_start_len", -1, 2**31 - 1), max_prompts),
        each(integer("top_logprobs_num", 0, MAX_TOP_LOGPROBS), max_prompts),
        chosen_ids(vocab_size, max_prompts),
        boolean("return_text_in_logprobs"),
        boolean("stream"),
        string("model", 256),
        each(Field("rid", "string of at most 128 of A-Z a-z 0-9 . _ : -", read_rid), max_prompts),
    ]
    media = ("image_data", "audio_data", "video_data", "modalities")
    others = [
        *(refused(name, "this server takes text only", []) for name in media),
        refused("input_embeds", "prompts are text or token ids"),
        refused("return_hidden_states", "hidden states are not available", False),
        refused("session_params", "sessions are not available"),
        refused("session_id", "sessions are not available"),
        refused("custom_logit_processor", "requests may not carry code"),
        refused("lora_path", "adapters are not available"),
        refused("require_reasoning", "reasoning is not parsed", False),
        *(refused(f"bootstrap_{name}", "prefill and decode are not apart") for name in ("host", "port", "room")),
        ignored("log_metrics", "every request is measured"),
        ignored("background", "not used"),
    ]
    routing = [field for field in request_fields(settings) if field.name != "rid"]
    return table(own, others, routing)


def _texts(info: ServedModel, settings: HttpSettings) -> Callable[[str, object], object]:
    def read(param: str, value: object) -> object:
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise invalid(param, "must be text or a list of texts; token ids go into `input_ids`.")
        return value if isinstance(value, str) else Each(read_prompts(param, value, info, settings))

    return read


def _ids(info: ServedModel, settings: HttpSettings) -> Callable[[str, object], object]:
    def read(param: str, value: object) -> object:
        if not isinstance(value, list) or any(isinstance(item, str) for item in value[:1]):
            raise invalid(param, f"must be a list of token ids or a list of these, not {shown(value)}.")
        prompts = read_prompts(param, value, info, settings)
        if not all(isinstance(prompt, list) for prompt in prompts):
            raise invalid(param, "must hold token ids only; texts go into `text`.")
        return Each(prompts) if isinstance(value[0], list) else prompts[0]

    return read
