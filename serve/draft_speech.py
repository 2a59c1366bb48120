"""Chats as a draft's trainer needs them: through the model's own template and tokenizer."""

from pathlib import Path

import numpy as np

from corymb.models.errors import UnsupportedModel
from corymb.scheduler.plan import Int32
from corymb.serve.chat import ChatTemplate, load_chat_template
from corymb.serve.tokenizer import Tokenizer, load_tokenizer

_MARK = "corymb-words-stand-here"


class ChatSpeech:
    """See speculative.conversations.Speech."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError where the model has no template, or none that shows where a user's words begin."""
        template = load_chat_template(folder)
        if template is None:
            raise UnsupportedModel(f"{folder} has no chat template, and a draft is trained on chats.")
        self._template: ChatTemplate = template
        self._tokenizer: Tokenizer = load_tokenizer(folder)
        before, found, _ = self._render(_MARK).partition(_MARK)
        self.opening = self._encode(before)
        if not found or not len(self.opening):
            raise UnsupportedModel(f"The chat template of {folder} shows no beginning of a user's words.")

    @property
    def unused_token_id(self) -> int:
        """The last special token: what stands in a block where a draft is to be guessed."""
        return max(self._tokenizer.spelling.specials, default=self._tokenizer.vocab_size - 1)

    def prompt(self, words: str) -> Int32:
        """See speculative.conversations.Speech."""
        return self._encode(self._render(words))

    def words(self, token_ids: Int32) -> str:
        """See speculative.conversations.Speech."""
        return self._tokenizer.decode(token_ids.tolist()).strip()

    def _render(self, words: str) -> str:
        return self._template.render([{"role": "user", "content": words}])

    def _encode(self, text: str) -> Int32:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), np.int32)
