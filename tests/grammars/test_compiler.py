"""The compiler process: its limits, and that it outlives what it kills."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from corymb.models.source import resolve
from corymb.scheduler.messages import Grammar
from corymb.serve.compiler import Compiler
from corymb.serve.compiling import Limits, compiler_options
from corymb.serve.errors import ApiError
from tests.grammars.conftest import EOS_IDS, VOCAB_SIZE

EASY = Grammar("ebnf", 'root ::= "yes" | "no"')
SLOW = Grammar("ebnf", "root ::= " + " ".join(f"[a-z]{{0,{900 + number}}}" for number in range(60)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve("corymb/tape", cache_dir=tmp_path_factory.mktemp("models"), offline=True, weights=False).folder


def compiler(folder: Path, **limits: float) -> Compiler:
    begin = compiler_options("xgrammar", str(folder), vocab_size=VOCAB_SIZE, eos_ids=EOS_IDS)
    return Compiler(msgspec.structs.replace(begin, limits=msgspec.structs.replace(Limits(), **limits)))


def test_a_late_compilation_is_killed_and_the_next_one_runs(folder) -> None:
    async def scenario() -> None:
        one = compiler(folder, seconds=1.0)
        late, easy = await asyncio.gather(one.compile(SLOW), one.compile(EASY))
        assert late.too_complex
        assert "more than 1 s" in late.failure
        assert easy.compiled

    asyncio.run(scenario())


def test_memory_is_limited(folder) -> None:
    async def scenario() -> None:
        answer = await compiler(folder, memory_bytes=4 << 20, seconds=20.0).compile(SLOW)
        assert answer.too_complex
        assert "memory" in answer.failure

    asyncio.run(scenario())


def test_the_process_is_started_again_after_its_death(folder) -> None:
    async def scenario() -> None:
        one = compiler(folder)
        assert (await one.compile(EASY)).compiled
        assert one.pid is not None
        os.kill(one.pid, signal.SIGKILL)
        with pytest.raises(ApiError, match="has ended"):
            await one.compile(SLOW)
        assert (await one.compile(EASY)).compiled

    asyncio.run(scenario())


def test_what_is_compiled_can_be_loaded(folder, tagwise) -> None:
    compiled = asyncio.run(compiler(folder).compile(EASY)).compiled
    program = tagwise.backend.load(EASY, compiled)
    assert tagwise.accepts(program, "no")
    assert not tagwise.accepts(program, "maybe")
