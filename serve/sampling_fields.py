"""The sampling fields that every generating endpoint shares, and what becomes of them."""

from collections.abc import Mapping
from typing import Any

from corymb.scheduler.messages import LogprobOptions, Sampling, TextOptions
from corymb.serve.errors import invalid
from corymb.serve.fields import Field, boolean, ignored, integer, logit_bias, number, refused, strings, token_ids
from corymb.serve.grammar_fields import grammar_fields, one_grammar
from corymb.serve.settings import HttpSettings

MAX_NEW_TOKENS = 2**31 - 1
MAX_N = 128
MAX_STOPS, MAX_STOP_CHARS = 32, 1024
MAX_STOP_CHARS_IN_ALL = 4096  # the finder of a request takes time and memory for each
MAX_TOP_LOGPROBS = 20
_GREEDY_BELOW = 1e-5  # logits divided by less overflow; the result would be greedy anyway
_SEED_MASK = 2**63 - 1

Values = Mapping[str, Any]


def sampling_fields(vocab_size: int) -> list[Field]:
    """Fields with the same name and bounds everywhere."""
    return [
        number("temperature", 0, 100),
        number("top_p", 0, 1, above=True),
        integer("top_k", -1, 2**31 - 1),
        number("min_p", 0, 1),
        number("presence_penalty", -2, 2),
        number("frequency_penalty", -2, 2),
        number("repetition_penalty", 0.01, 10),
        logit_bias("logit_bias", vocab_size, 1024),
        integer("n", 1, MAX_N),
        strings("stop", MAX_STOPS, MAX_STOP_CHARS, max_total=MAX_STOP_CHARS_IN_ALL),
        token_ids("stop_token_ids", vocab_size, 128),
        boolean("ignore_eos"),
        boolean("skip_special_tokens"),
        ignored("spaces_between_special_tokens", "special tokens that are shown are shown as they are"),
        boolean("no_stop_trim"),
        integer("seed", -(2**63), 2**63 - 1),
    ]


def structure_fields() -> list[Field]:
    """Fields of what an answer must follow, and of client code, by the names other servers use."""
    code = "requests may not carry code"
    return [
        *grammar_fields(),
        refused("custom_logit_processor", code),
        refused("custom_params", code),
        refused("logits_processors", code, []),
        refused("stop_regex", "use `stop`", []),
        refused("beam_width", "beam search is not available", 1),
        refused("use_beam_search", "beam search is not available", False),
        refused("length_penalty", "beam search is not available", 1, 1.0),
        refused("bad_words", "use `logit_bias`", []),
        refused("allowed_token_ids", "use `logit_bias`"),
        refused("truncate_prompt_tokens", "prompts are never cut"),
        refused("lora_path", "adapters are not available"),
    ]


def sampling(values: Values, settings: HttpSettings, *, max_new: int, min_new: int, vocab_size: int) -> Sampling:
    """What the scheduler and the runner need; the model's own defaults fill what the client left out."""
    given = {**settings.sampling_defaults, **values}
    temperature = float(given.get("temperature", 1.0))
    top_k = int(given.get("top_k", 0))
    seed = values.get("seed")
    wanted = one_grammar(values)
    return Sampling(
        max_new_tokens=max_new,
        min_new_tokens=min_new,
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_p=float(given.get("top_p", 1.0)),
        top_k=top_k if 0 < top_k < vocab_size else 0,
        min_p=float(given.get("min_p", 0.0)),
        presence_penalty=values.get("presence_penalty", 0.0),
        frequency_penalty=values.get("frequency_penalty", 0.0),
        repetition_penalty=float(given.get("repetition_penalty", 1.0)),
        logit_bias=values.get("logit_bias", {}),
        seed=settings.draw_seed() if seed is None else seed,
        seeded=seed is not None,
        stop_token_ids=values.get("stop_token_ids", ()),
        ignore_eos=values.get("ignore_eos", False),
        grammar=wanted.grammar if wanted is not None else None,
    )


def text_options(values: Values, *, min_new: int) -> TextOptions:
    """What the detokenizer needs, apart from the prompt's tail."""
    return TextOptions(
        stop=values.get("stop", ()),
        min_new_tokens=min_new,
        include_stop=values.get("include_stop_str_in_output", False) or values.get("no_stop_trim", False),
        skip_special_tokens=values.get("skip_special_tokens", True),
    )


def seed_of_choice(seed: int, index: int) -> int:
    """The seed of a request's n-th choice. Mixed, so that neighbouring seeds share no choice (splitmix64)."""
    if index == 0:
        return seed
    mixed = (seed + index * 0x9E3779B97F4A7C15) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed ^ (mixed >> 31)) & _SEED_MASK


def check_min(param: str, min_new: int, max_new: int, *, limit: str) -> None:
    """A floor above the ceiling can never be met."""
    if min_new > max_new:
        raise invalid(
            param, f"must be at most the {max_new} tokens that `{limit}` and the context allow, not {min_new}."
        )


def openai_logprobs(top: int | None, *, prompt_from: int = -1) -> LogprobOptions | None:
    """Logprobs as the OpenAI endpoints ask for them: None for none, else so many alternatives."""
    return None if top is None else LogprobOptions(top=top, prompt_from=prompt_from)
