"""The flags of `corymb draft`."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from corymb.serve.flag_values import above_zero, heat, natural, positive, text
from corymb.serve.flags import Parser

COMMANDS = ("train", "calibrate", "evaluate", "profile")

_DESCRIPTIONS = {
    "train": """\
Trains a DSpark draft for MODEL: lets the model write conversations, then teaches the draft to guess what it writes.
Killed at any time, the same command goes on where it was. Exit status 75: --stop-after is over, and work is left.""",
    "calibrate": "Fits what a draft's confidence is worth at each place, from its own full windows; writes sts.json.",
    "evaluate": "Runs the real speculative loop over held-out prompts; writes what it accepted into metrics.json.",
    "profile": "Measures what steps cost by the number of rows and verified tokens; writes a table for the cost model.",
}
Add = Callable[..., Any]


def draft_parser(command: str) -> Parser:
    """The parser of `corymb draft COMMAND`."""
    made = Parser(
        f"corymb draft {command}",
        description=_DESCRIPTIONS[command],
        usage=f"corymb draft {command} [MODEL] [flags]",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=40),
        allow_abbrev=False,
    )
    _add_model(made.add_argument)
    {"train": _add_train, "calibrate": _add_loop, "evaluate": _add_evaluate, "profile": _add_profile}[command](
        made.add_argument
    )
    return made


def _add_model(add: Add) -> None:
    add("positional_model", metavar="MODEL", nargs="?", type=text, help="the target (default: the demo model)")
    add("--model-path", "--model", metavar="MODEL", type=text, help="the same as a flag")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: a GPU where there is one")
    add("--cache-dir", metavar="DIR", type=text, help="where models are kept")
    add("--offline", action="store_true", help="fetch nothing")
    add("--seed", metavar="N", type=natural, default=0, help="of everything that is drawn (default: 0)")


def _add_train(add: Add) -> None:
    add("--out", metavar="DIR", type=text, required=True, help="where the draft goes")
    add("--work", metavar="DIR", type=text, help="conversations and state (default: OUT/work)")
    add("--stop-after", dest="stop_after_s", metavar="S", type=above_zero, help="leave off in time; go on later")
    add("--num-drafts", metavar="N", type=positive, default=7, help="tokens guessed at once (default: 7)")
    add("--num-layers", metavar="N", type=positive, default=3, help="of the draft (default: 3)")
    add("--intermediate-size", metavar="N", type=positive, default=704, help="of its MLPs (default: 704)")
    add("--target-layers", metavar="N", type=natural, nargs="+", default=[], help="whose output it sees")
    add("--markov-head", choices=("vanilla", "gated"), default="gated", help="default: gated")
    add("--markov-rank", metavar="N", type=positive, default=256, help="default: 256")
    add("--no-markov-tied", action="store_true", help="tables of their own: the file grows by 2 × vocabulary × rank")
    add("--mask-token-id", metavar="N", type=natural, help="default: the model's last special token")
    add("--num-steps", metavar="N", type=positive, default=12_000, help="default: 12000")
    add("--warm-up-steps", metavar="N", type=positive, default=200, help="default: 200")
    add("--save-steps", metavar="N", type=positive, default=500, help="between two saves (default: 500)")
    add("--learning-rate", metavar="X", type=above_zero, default=2e-3, help="default: 0.002")
    add("--batch-size", metavar="N", type=positive, default=64, help="conversations a step (default: 64)")
    add("--num-anchors", metavar="N", type=positive, default=96, help="places in each (default: 96)")
    add("--num-conversations", metavar="N", type=positive, default=90_000, help="default: 90000")
    add("--conversations-per-file", metavar="N", type=positive, default=22_500, help="default: 22500")
    add("--max-tokens", metavar="N", type=positive, default=512, help="of a conversation (default: 512)")
    add("--max-answer-tokens", metavar="N", type=positive, default=360, help="default: 360")
    add("--max-running-requests", metavar="N", type=positive, default=1024, help="written at once (default: 1024)")


def _add_draft(add: Add) -> None:
    add("--draft", metavar="DIR", type=text, required=True, help="the draft's folder; results go there, too")
    add("--max-running-requests", metavar="N", type=positive, default=64, help="at once (default: 64)")


def _add_loop(add: Add) -> None:
    _add_draft(add)
    add("--num-prompts", metavar="N", type=positive, default=300, help="held-out prompts (default: 300)")
    add("--max-answer-tokens", metavar="N", type=positive, default=150, help="default: 150")
    add("--temperatures", metavar="X", type=heat, nargs="+", default=[0.0, 0.7], help="default: 0 0.7")


def _add_evaluate(add: Add) -> None:
    _add_loop(add)
    add("--num-drafts", metavar="N", type=positive, help="guesses of a block that are verified (default: all)")


def _add_profile(add: Add) -> None:
    add("--draft", metavar="DIR", type=text, required=True, help="the draft's folder; results go there, too")
    add("--rows", metavar="N", type=positive, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="default: 1 2 4 … 64")
    add("--num-steps", metavar="N", type=positive, default=32, help="measured for every point (default: 32)")
    add("--context-tokens", metavar="N", type=positive, default=256, help="of every row (default: 256)")


def chosen(arguments: Sequence[str]) -> str | None:
    """The command that is meant; None for none of them."""
    return arguments[0] if arguments and arguments[0] in COMMANDS else None
