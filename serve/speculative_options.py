"""What an operator may ask of speculation, and which wishes exclude each other."""

from collections.abc import Iterator
from typing import Literal

import msgspec

Algorithm = Literal["NGRAM", "STANDALONE", "DFLASH", "DSPARK"]

VerifyMode = Literal["static", "compact", "cap-accept"]

DEFAULT_DRAFTS = {"NGRAM": 7, "STANDALONE": 4}  # of those that no checkpoint was trained for
MAX_DRAFTS = 31
LONGEST_MATCH = 12

# Who understands a flag.
_MEANT_FOR: dict[str, tuple[Algorithm, ...]] = {
    "speculative_draft_model_path": ("STANDALONE", "DFLASH", "DSPARK"),
    "speculative_dspark_block_size": ("DSPARK",),
    "speculative_dspark_confidence_sts_path": ("DSPARK",),
    "speculative_ngram_min_match_window_size": ("NGRAM",),
    "speculative_ngram_max_match_window_size": ("NGRAM",),
}

_OF_BUDGETS = (
    "speculative_dspark_sps_table_path",
    "speculative_dspark_align_verify_tokens_to_graph_tier",
    "speculative_dspark_min_predicted_gain",
)


class SpeculativeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Wishes as they were given. None: the algorithm or its checkpoint decides."""

    speculative_algorithm: Algorithm | None = None
    speculative_draft_model_path: str | None = None
    speculative_num_draft_tokens: int | None = None  # with the token that they follow: one more than is drafted
    speculative_dspark_block_size: int | None = None  # without it
    speculative_dspark_confidence_sts_path: str | None = None
    speculative_dspark_verify_mode: VerifyMode | None = None
    speculative_dspark_sps_table_path: str | None = None
    speculative_dspark_align_verify_tokens_to_graph_tier: bool | None = None
    speculative_dspark_min_predicted_gain: float | None = None
    speculative_ngram_min_match_window_size: int | None = None
    speculative_ngram_max_match_window_size: int | None = None
    speculative_trace: str | None = None

    @property
    def num_drafts(self) -> int | None:
        """Most drafts of a row and step; None: as many as the draft was trained for."""
        assert self.speculative_algorithm is not None, "nothing drafts"
        if self.speculative_num_draft_tokens is not None:
            return self.speculative_num_draft_tokens - 1
        if self.speculative_dspark_block_size is not None:
            return self.speculative_dspark_block_size
        return DEFAULT_DRAFTS.get(self.speculative_algorithm)

    @property
    def verify_mode(self) -> VerifyMode:
        """How much is verified."""
        return self.speculative_dspark_verify_mode or "compact"

    @property
    def shortest_match(self) -> int:
        """Tokens that must have come before, for n-grams."""
        return self.speculative_ngram_min_match_window_size or 1

    @property
    def longest_match(self) -> int:
        """Tokens that are looked for at most."""
        return self.speculative_ngram_max_match_window_size or max(LONGEST_MATCH, self.shortest_match)


def conflicts(options: SpeculativeOptions) -> Iterator[str]:
    """A sentence for each pair of wishes that cannot both be met."""
    wishes: dict[str, object] = msgspec.structs.asdict(options)
    algorithm = options.speculative_algorithm
    given = [name for name, value in wishes.items() if value is not None and name != "speculative_algorithm"]
    if algorithm is None:
        if given:
            yield f"{_flag(given[0])} is for --speculative-algorithm; give that too, or leave it out."
        return
    for name in given:
        if algorithm not in _MEANT_FOR.get(name, (algorithm,)):
            yield f"{_flag(name)} is for --speculative-algorithm {' or '.join(_MEANT_FOR[name])}; leave it out."
    if algorithm in ("STANDALONE", "DFLASH") and options.speculative_draft_model_path is None:
        yield f"--speculative-algorithm {algorithm} needs a draft; name it with --speculative-draft-model-path."
    yield from _counts(options)
    if options.verify_mode == "static":
        for name in _OF_BUDGETS:
            if name in given:
                yield f"{_flag(name)} is for budgets; --speculative-dspark-verify-mode static has none; leave it out."
    if options.longest_match < options.shortest_match:
        yield "--speculative-ngram-max-match-window-size is below --speculative-ngram-min-match-window-size."


def _counts(options: SpeculativeOptions) -> Iterator[str]:
    num_tokens, block = options.speculative_num_draft_tokens, options.speculative_dspark_block_size
    if num_tokens is not None and not 2 <= num_tokens <= MAX_DRAFTS + 1:
        yield (
            f"--speculative-num-draft-tokens {num_tokens} counts the token that drafts follow: it is 2 to "
            f"{MAX_DRAFTS + 1}."
        )
    if num_tokens is not None and block is not None and num_tokens != block + 1:
        yield (
            f"--speculative-num-draft-tokens {num_tokens} is one more than --speculative-dspark-block-size, which is "
            f"{block}; leave one of them out."
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
