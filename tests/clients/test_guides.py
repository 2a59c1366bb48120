"""Every command and program of the documents works, against a server that answers as they expect."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = ("serve", "make", "curl", "pip", "python", ".venv/bin/serve")


def blocks(*kinds: str) -> list:
    found = []
    for path in GUIDES:
        texts = [block for block in BLOCK.finditer(path.read_text()) if block[1] in kinds]
        found += [pytest.param(text[2], id=f"{path.name}-{number}") for number, text in enumerate(texts)]
    return found


def commands(block: str) -> list[str]:
    """The commands of a shell block; one goes on while its quotes are open or its line ends in a backslash."""
    found, rest = [], ""
    for line in block.strip().splitlines():
        rest += line + "\n"
        if not line.endswith("\\") and is_whole(rest):
            found.append(rest)
            rest = ""
    assert not rest, f"an open quote: {rest}"
    return found


def is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def run(arguments: list[str], server) -> str:
    arguments = [argument.replace("http://127.0.0.1:30000", server.url) for argument in arguments]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    assert ended.returncode == 0, f"{arguments[-1]}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.parametrize("program", blocks("python"))
def test_programs_run_and_print_something(scripted, program) -> None:
    assert run([sys.executable, "-P", "-W", "ignore", "-c", program], scripted)


@pytest.mark.parametrize("block", blocks("sh"))
def test_commands_work(scripted, block) -> None:
    """Whole, but for three programs: a server would need its model and never end, `make` would install and `pytest`
    would test everything. Of these the words are checked; what they do is tested where they are."""
    for command in commands(block):
        words = shlex.split(command, comments=True)
        program = Path(words[0]).name
        if program == "serve":
            takes_these_flags(words[1:])
        elif program == "make":
            run(["make", "--dry-run", *words[1:]], scripted)
        elif program == "pytest":
            assert all((ROOT / word).exists() for word in words[1:] if "/" in word)
        else:
            assert run(["bash", "-e", "-o", "pipefail", "-c", command], scripted).strip()


def takes_these_flags(arguments: list[str]) -> None:
    """The server's own parser takes them; it exits where it does not."""
    code = "import sys; from corymb.serve.flags import parser; parser('serve').parse(sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, check=False, env=os.environ
    )
    assert ended.returncode == 0, ended.stderr


ASKING = {
    "OPENAI_BASE_URL": "import openai; print(openai.OpenAI().models.list().data[0].id)",
    "ANTHROPIC_BASE_URL": "import anthropic; print(anthropic.Anthropic().models.list().data[0].id)",
    "OLLAMA_HOST": "import ollama; print(ollama.list().models[0].model)",
}


def test_agents_find_the_server_by_the_variables_that_are_told(scripted) -> None:
    rows = re.findall(r"^\| anything .*", (ROOT / "docs/agents.md").read_text(), re.MULTILINE)
    told = [dict(re.findall(r"`([A-Z_]+)=([^`]+)`", row)) for row in rows]
    assert {name for variables in told for name in variables if name in ASKING} == set(ASKING)
    for variables in told:
        places = {name: value.replace("http://127.0.0.1:30000", scripted.url) for name, value in variables.items()}
        (program,) = [ASKING[name] for name in variables if name in ASKING]
        command = [sys.executable, "-P", "-W", "ignore", "-c", program]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | places, timeout=120
        )
        assert ended.stdout.strip() == "tape", ended.stderr


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_every_block_is_of_a_kind_that_is_looked_at(path) -> None:
    assert {block[1] for block in BLOCK.finditer(path.read_text())} <= {"sh", "python", "json", ""}


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_no_command_hides_in_a_block_without_a_language(path) -> None:
    unlabelled = [block[2] for block in BLOCK.finditer(path.read_text()) if block[1] == ""]
    assert [text for text in unlabelled if text.split(maxsplit=1)[0] in COMMANDS] == []
