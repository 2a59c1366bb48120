"""Other people's clients against a whole server. `make clients` installs them; without, nothing here is collected."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGES = (
    "anthropic",
    "instructor",
    "langchain_openai",
    "langchain_tests",
    "litellm",
    "ollama",
    "playwright",
    "schemathesis",
)
MISSING = [name for name in PACKAGES if find_spec(name) is None]
if MISSING:
    collect_ignore_glob = ["test_*.py"]

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")


@pytest.fixture(scope="session")
def plain(serving):
    """A server of the model `tape`, which says what the prompt tells it to."""
    with serving("corymb/tape") as server:
        yield server


@pytest.fixture(scope="session")
def agent(serving):
    """The same, with what agents need: tool calls and reasoning are read out of its text, and responses kept."""
    with serving(
        "corymb/tape", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--enable-response-store"
    ) as server:
        yield server


@pytest.fixture(scope="session")
def scripted(serving):
    """The same, answering prose: see `scripted.jinja`."""
    parsers = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    template = Path(__file__).with_name("scripted.jinja")
    with serving("corymb/tape", *parsers, "--chat-template", str(template)) as server:
        yield server


@pytest.fixture
def client(agent) -> Iterator[object]:
    """OpenAI's own."""
    import openai

    with openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")  # its event loop would be in the way of others
def browser() -> Iterator[object]:
    """Headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *QUIET])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """Where CI keeps what people may look at."""
    folder = Path(__file__).parents[2] / "artefacts"
    folder.mkdir(exist_ok=True)
    return folder
