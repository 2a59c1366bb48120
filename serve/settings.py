"""What the HTTP surface is told at start-up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from corymb.serve.compiling import Begin
from corymb.serve.seeds import seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Resolved options of the HTTP surface; the command line builds it."""

    api_key: str | None = field(default=None, repr=False)
    admin_api_key: str | None = field(default=None, repr=False)
    loopback: bool = True  # the server listens on a loopback address only
    max_body_bytes: int = 16 << 20
    body_timeout_s: float = 60.0
    max_choices: int = 4096  # prompts × n of one request
    clamp_max_tokens: bool = False  # cut max_tokens to what the context has left, instead of refusing
    incremental_streaming_output: bool = False  # /generate streams deltas, not the text so far
    reasoning_parser: str | None = None  # None: reasoning is not told apart
    tool_call_parser: str | None = None  # None: tool calls are text
    enable_response_store: bool = False  # keep responses for `previous_response_id`
    health_timeout_s: float = 20.0  # for /health_generate
    flush_timeout_s: float = 30.0  # for the scheduler to hear of /flush_cache
    uses_priority: bool = True  # of scheduling or of eviction; else the field has no effect
    uses_routing_key: bool = True
    uses_effort: bool = True  # the chat template reads a variable that `reasoning_effort` sets
    compiler: Begin | None = None  # of grammars; None: no request may name one
    web: bool = True  # serve the page at /
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)  # from the model's generation_config.json
    draw_seed: Callable[[], int] = field(default_factory=seeds)  # for requests that bring none

    def __post_init__(self) -> None:
        for key in (self.api_key, self.admin_api_key):
            if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key and key):
                raise ValueError("An API key must be printable ASCII without surrounding spaces, and not empty.")
