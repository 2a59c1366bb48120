"""The flags of speculation."""

from typing import Any, get_args

from corymb.serve.flag_values import not_negative, positive
from corymb.serve.speculative_options import LONGEST_MATCH, Algorithm, VerifyMode


def add_speculative(group: Any) -> None:
    """Adds them to a group of a parser."""
    add = group.add_argument
    add("--speculative-algorithm", choices=get_args(Algorithm), help="what drafts tokens ahead (default: nothing does)")
    add(
        "--speculative-draft-model-path",
        metavar="PATH",
        help="folder, or name on a hub, of the draft: a DSpark or DFlash checkpoint, or a smaller model",
    )
    add(
        "--speculative-num-draft-tokens",
        metavar="N",
        type=positive,
        help="tokens a step may verify of a request: one more than are drafted (default: what the draft was made for)",
    )
    add(
        "--speculative-dspark-block-size",
        metavar="N",
        type=positive,
        help="tokens that are drafted, instead of what the draft was trained for: no more than that",
    )
    add(
        "--speculative-dspark-confidence-sts-path",
        metavar="FILE",
        help="temperatures of the draft's confidence, as `corymb draft calibrate` writes them",
    )
    add(
        "--speculative-dspark-verify-mode",
        choices=get_args(VerifyMode),
        help="drafts that are verified: all; as many as pay (compact, the default); all, but accepted as if compact",
    )
    add(
        "--speculative-dspark-sps-table-path",
        metavar="FILE",
        help="what steps cost, as `corymb draft profile` writes it (default: measured at start-up)",
    )
    add(
        "--speculative-dspark-align-verify-tokens-to-graph-tier",
        action="store_true",
        default=None,
        help="fill steps up with drafts to the size that they are computed at anyway",
    )
    add(
        "--speculative-dspark-min-predicted-gain",
        metavar="X",
        type=not_negative,
        help="verify less than all only where that promises so much more speed: 0.04 for 4%% (default: 0)",
    )
    add(
        "--speculative-ngram-min-match-window-size",
        metavar="N",
        type=positive,
        help="tokens that must have come before in the request (default: 1)",
    )
    add(
        "--speculative-ngram-max-match-window-size",
        metavar="N",
        type=positive,
        help=f"tokens looked for at most (default: {LONGEST_MATCH})",
    )
    add("--speculative-trace", metavar="FILE", help="write a line of JSON there for every step")
