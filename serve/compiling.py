"""What the compiler process says and hears, and how one grammar is compiled in a process of its own."""

import os
import random
import resource
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from corymb.models.grammar_backends import Backend, BadGrammar, Program
from corymb.scheduler.messages import Grammar

LENGTH_BYTES = 4  # before every message on a pipe, little-endian
MAX_COMPILED_BYTES = 32 << 20
_NICENESS = 10  # whoever generates text goes first
_WALKS, _WALK_TOKENS = 4, 48
_SLOWEST_TOKEN_S = 0.02


class Compile(msgspec.Struct, frozen=True, tag=True):
    """Asks for a grammar."""

    id: int
    grammar: Grammar


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for it any more."""

    id: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What compiling one grammar may take."""

    seconds: float = 5.0
    memory_bytes: int = 1 << 30


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message: what to compile for."""

    backend: str
    tokenizer_folder: str
    vocab_size: int
    eos_ids: tuple[int, ...]
    limits: Limits
    at_once: int  # compilations that may run beside each other


class Compiled(msgspec.Struct, frozen=True, tag=True):
    """Answers `Compile`."""

    id: int
    compiled: bytes = b""
    failure: str = ""  # one sentence for the client, where it failed
    too_complex: bool = False  # it failed because it takes too much


Order = Begin | Compile | Cancel


def compiler_options(backend: str, tokenizer_folder: str, *, vocab_size: int, eos_ids: tuple[int, ...]) -> Begin:
    """What the compiler process is told."""
    return Begin(
        backend=backend,
        tokenizer_folder=tokenizer_folder,
        vocab_size=vocab_size,
        eos_ids=eos_ids,
        limits=Limits(),
        at_once=max(1, min(4, (os.cpu_count() or 1) // 2)),
    )


def frame(message: msgspec.Struct) -> bytes:
    """A message as it travels on a pipe."""
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(LENGTH_BYTES, "little") + payload


def compile_alone(order: Compile, backend: Backend, limits: Limits, num_tokens: int) -> Compiled:
    """Compiles in this process, which must be a child that nobody needs afterwards: its limits are lowered for good."""
    os.nice(_NICENESS)
    used = _writable_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (used + limits.memory_bytes, used + limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        program = backend.compile(order.grammar)
        slowest_s = rehearse(program, num_tokens)
        compiled = program.dump()
    except BadGrammar as error:
        return Compiled(order.id, failure=str(error))
    except MemoryError:
        memory = f"it takes more than {limits.memory_bytes >> 20} MiB of memory to compile"
        return Compiled(order.id, failure=memory, too_complex=True)
    if slowest_s > _SLOWEST_TOKEN_S:
        took = (
            f"a token of it takes {slowest_s * 1000:.0f} ms to check and {_SLOWEST_TOKEN_S * 1000:.0f} ms are allowed"
        )
        return Compiled(order.id, failure=took, too_complex=True)
    if len(compiled) > MAX_COMPILED_BYTES:
        size = f"compiled it has {len(compiled):,} bytes and {MAX_COMPILED_BYTES:,} are allowed"
        return Compiled(order.id, failure=size, too_complex=True)
    return Compiled(order.id, compiled)


def rehearse(program: Program, num_tokens: int) -> float:
    """Follows the grammar along a few random texts; returns the longest time that a token took, in seconds."""
    chooser = random.Random(0)  # noqa: S311 - the same walks every time
    bits, slowest_s = np.empty(-(-num_tokens // 32), np.int32), 0.0
    for _ in range(_WALKS):
        matcher = program.matcher()
        for _ in range(_WALK_TOKENS):
            begun_s = time.thread_time()
            matcher.fill(bits)
            filled_s = time.thread_time() - begun_s
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:num_tokens])
            if not len(allowed):
                break
            begun_s = time.thread_time()
            matcher.accept(int(allowed[chooser.randrange(len(allowed))]))
            slowest_s = max(slowest_s, filled_s, time.thread_time() - begun_s)
            if slowest_s > _SLOWEST_TOKEN_S:
                return slowest_s
    return slowest_s


def silent(id: int, status: int) -> Compiled:  # noqa: A002 - as the field
    """The answer for a grammar whose compilation gave none: it met its limit, or a fault of the library."""
    how = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "failed"
    return Compiled(id, failure=f"its compilation {how} within its memory limit", too_complex=True)


def out_of_time(id: int, limits: Limits) -> Compiled:  # noqa: A002
    """The answer for a grammar that took all its time."""
    return Compiled(id, failure=f"it takes more than {limits.seconds:g} s to compile", too_complex=True)


def _writable_bytes() -> int:
    """What RLIMIT_DATA counts of this process."""
    fields: Mapping[str, str] = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return int(fields["VmData"].split()[0]) << 10
