"""The commands `serve` and `corymb`."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NoReturn

from corymb.models.errors import ModelError
from corymb.serve.children import Children, commands_of
from corymb.serve.config import ConfigError, ServeConfig, from_flags, move_keys_to_environment
from corymb.serve.flags import parser, show_error
from corymb.serve.listener import listen
from corymb.serve.log import set_up_logging
from corymb.serve.nodes import Nodes
from corymb.serve.timeline import Timeline
from corymb.serve.transport import private_directory

_USAGE = """\
usage: corymb serve [MODEL] [flags]
       corymb draft COMMAND [MODEL] [flags]

See corymb serve --help."""


def main(arguments: Sequence[str] | None = None, program: str = "serve") -> NoReturn:
    """Serves until it is told to end. Exits with 0 after a drain, 1 on failure, 2 when it cannot start as asked."""
    flags = parser(program).parse(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _exit)
    try:
        config = from_flags(flags)
        _hide_keys()
        status = _serve(config)
    except (ConfigError, ModelError) as error:
        status = show_error(program, str(error))
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.stderr.flush()
    # Threads that still work for clients which are gone must not hold the process.
    os._exit(status)


def corymb(arguments: Sequence[str] | None = None) -> NoReturn:
    """`corymb serve …` is `serve …`, for environments where another package owns that name; `corymb draft …`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["serve"]:
        main(given[1:], "corymb serve")
    if given[:1] == ["draft"]:
        sys.exit(_draft(given[1:]))
    if given[:1] in (["--help"], ["-h"]):
        print(_USAGE)
        sys.exit(0)
    found = f"Unknown command {given[0]!r}; write" if given else "Write"
    sys.exit(show_error("corymb", f"{found} corymb serve [MODEL] or corymb draft."))


def _draft(arguments: Sequence[str]) -> int:
    # Torch comes along, which a server's main process must not have.
    from corymb.serve.draft_command import run  # noqa: PLC0415

    try:
        return run(arguments)
    except (ConfigError, ModelError) as error:
        return show_error("corymb draft", str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _hide_keys() -> None:
    """Starts this program anew without the keys on its command line, which the process list would show."""
    kept = move_keys_to_environment(sys.orig_argv)
    if len(kept) != len(sys.orig_argv):
        os.execv(sys.executable, [sys.executable, *kept[1:]])  # noqa: S606 - the same program


def _serve(config: ServeConfig) -> int:
    timeline = Timeline()
    set_up_logging(config.http.log_level)
    with ExitStack() as stack:
        listener = stack.enter_context(listen(config.http)) if config.parallel.node_rank == 0 else None
        nodes = stack.enter_context(Nodes(config)) if config.parallel.has_further_nodes else None
        sockets = stack.enter_context(private_directory())
        commands, one_node = commands_of(config.parallel), config.parallel.nnodes == 1
        children = stack.enter_context(Children(commands, sockets, one_node=one_node))
        # The children import what they need while this process does the same and looks at the model.
        if listener is None:
            from corymb.serve.further_node import serve_further  # noqa: PLC0415

            return serve_further(config, sockets=sockets, children=children, timeline=timeline)
        from corymb.serve.serving import serve  # noqa: PLC0415

        return serve(config, listener=listener, sockets=sockets, children=children, timeline=timeline, nodes=nodes)
