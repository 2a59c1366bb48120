"""The child processes, seen from the main process."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from corymb.serve.config import ServeConfig, child_environment
from corymb.serve.parallel_options import ParallelOptions
from corymb.serve.transport import DETOKENIZER, scheduler_name

Commands = Mapping[str, Sequence[str]]


def commands_of(options: ParallelOptions) -> Commands:
    """A scheduler for each rank of this node and, on node 0, a detokenizer."""
    python = (sys.executable, "-P", "-m")
    commands: dict[str, tuple[str, ...]] = {
        scheduler_name(rank): (*python, "corymb.serve.scheduler_process", str(rank)) for rank in options.local_ranks
    }
    if options.node_rank == 0:
        commands[DETOKENIZER] = (*python, "corymb.serve.detokenizer_process")
    return commands


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told, on its standard input: behind a line that names the private directory. When that closes,
    the child ends, and the directory with it."""

    sockets: str  # the private directory
    model_folder: str
    tokenizer_folder: str
    config: ServeConfig  # without secrets


class Child:
    """One child process. It starts its imports at once and waits for its options."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def write(self, line: bytes) -> None:
        """Sends a line. A child that is already dead is found by `exit_status`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def how_it_ended(self) -> str:
        """For a sentence about a dead child."""
        status = self._process.returncode
        return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"

    def stop(self) -> None:
        """Ends it for certain, and waits for nothing: so no rank sees another one gone and complains."""
        self._process.kill()

    def kill(self) -> None:
        """Ends it for certain and takes its exit status."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


class Children:
    """Owns the child processes: leaving the `with` ends them all."""

    def __init__(self, commands: Commands, sockets: Path, *, one_node: bool = True) -> None:
        """`sockets`: the private directory. Children know it from birth: they remove it when this process is killed."""
        self._children = [Child(name, _start(command, one_node)) for name, command in commands.items()]
        for child in self._children:
            child.write(bytes(sockets))

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    @property
    def names(self) -> list[str]:
        """Of all of them."""
        return [child.name for child in self._children]

    @property
    def pids(self) -> dict[str, int]:
        """By name."""
        return {child.name: child.pid for child in self._children}

    def tell(self, options: ChildOptions) -> None:
        """Sends every child its options."""
        for child in self._children:
            child.write(msgspec.json.encode(options))

    def dead(self) -> Child | None:
        """One that has ended, if any."""
        return next((child for child in self._children if child.exit_status is not None), None)

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for child in self._children:
            child.stop()
        for child in self._children:
            child.kill()


def _start(command: Sequence[str], one_node: bool) -> subprocess.Popen[bytes]:
    # A process group of its own keeps a terminal's Ctrl-C from the children: the main process decides.
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=sys.stderr.fileno(),
        env=child_environment(one_node=one_node),
        process_group=0,
    )
