"""langchain-openai on a whole server, by LangChain's own standard suite for chat models.

The suite asks in prose. The template `scripted.jinja` tells the model `tape` what a sensible model would answer; the
client, the wire, grammars and parsing are the real thing.
"""

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestStandardSuite(ChatModelIntegrationTests):
    """What a chat model of LangChain must be able to do."""

    @pytest.fixture(autouse=True)
    def _served(self, scripted) -> None:
        type(self).url = f"{scripted.url}/v1"

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict:
        return {"model": "tape", "base_url": self.url, "api_key": "none", "temperature": 0, "stream_usage": True}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "corymb/tape"
