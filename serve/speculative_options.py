"""What an operator may ask of speculation, and which wishes exclude each other."""

from collections.abc import Iterator
from typing import Literal

import msgspec

Algorithm = Literal["NGRAM"]

DEFAULT_DRAFTS = {"NGRAM": 7}
MAX_DRAFTS = 31
LONGEST_MATCH = 12


class SpeculativeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Wishes as they were given. None: the algorithm or its checkpoint decides."""

    speculative_algorithm: Algorithm | None = None
    speculative_num_draft_tokens: int | None = None  # with the token that they follow: one more than is drafted
    speculative_ngram_min_match_window_size: int | None = None
    speculative_ngram_max_match_window_size: int | None = None

    @property
    def num_drafts(self) -> int:
        """Most drafts of a row and step."""
        assert self.speculative_algorithm is not None, "nothing drafts"
        if self.speculative_num_draft_tokens is None:
            return DEFAULT_DRAFTS[self.speculative_algorithm]
        return self.speculative_num_draft_tokens - 1

    @property
    def shortest_match(self) -> int:
        """Tokens that must have come before, for n-grams."""
        return self.speculative_ngram_min_match_window_size or 1

    @property
    def longest_match(self) -> int:
        """Tokens that are looked for at most."""
        return self.speculative_ngram_max_match_window_size or max(LONGEST_MATCH, self.shortest_match)


def conflicts(options: SpeculativeOptions, *, tp_size: int) -> Iterator[str]:
    """A sentence for each pair of wishes that cannot both be met."""
    wishes: dict[str, object] = msgspec.structs.asdict(options)
    algorithm = wishes.pop("speculative_algorithm")
    given = [f"--{name.replace('_', '-')}" for name, value in wishes.items() if value is not None]
    if algorithm is None:
        if given:
            yield f"{given[0]} is for --speculative-algorithm; give that too, or leave it out."
        return
    num_tokens = options.speculative_num_draft_tokens
    if num_tokens is not None and not 2 <= num_tokens <= MAX_DRAFTS + 1:
        yield (
            f"--speculative-num-draft-tokens {num_tokens} counts the token that drafts follow: it is 2 to "
            f"{MAX_DRAFTS + 1}."
        )
    if options.longest_match < options.shortest_match:
        yield "--speculative-ngram-max-match-window-size is below --speculative-ngram-min-match-window-size."
    if tp_size > 1:
        yield "--speculative-algorithm works with one rank; leave it or --tp-size out."
