"""What every handler works with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from corymb.serve.engine import Engine
from corymb.serve.metrics import Metrics
from corymb.serve.settings import HttpSettings


class TokenizerPort(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def fewest_tokens(self, text: str) -> int: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def is_special(self, token_id: int) -> bool: ...


class TemplatePort(Protocol):
    """Chat messages to the model's prompt text."""

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        kwargs: dict[str, Any] | None = None,
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a handler works with."""

    engine: Engine
    tokenizer: TokenizerPort
    chat_template: TemplatePort | None  # None: the model has no chat template
    settings: HttpSettings
    metrics: Metrics
