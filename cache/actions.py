"""What the tree wants done to the pools."""

from dataclasses import dataclass, field

from corymb.cache.path import Path
from corymb.cache.slots import Int32


@dataclass(frozen=True, slots=True)
class Move:
    """The state that `pool` keeps for the slots `source` belongs to the slots `target` from now on."""

    pool: str
    source: Int32
    target: Int32


@dataclass(slots=True)
class Actions:
    """Decided by the tree, executed by its owner before the next call: departures, moves, frees in order of `frees`.

    The frees of the full pool come last: a full slot may go only after the state that other pools keep under its name.
    """

    moves: list[Move] = field(default_factory=list)
    frees: dict[str, list[Int32]] = field(default_factory=dict)
    departures: list[Path] = field(default_factory=list)  # as they were before evictions took something of their ends

    def free(self, pool: str, slots: Int32) -> None:
        """Gives `slots` back to `pool`."""
        self.frees.setdefault(pool, []).append(slots)

    def move(self, pool: str, source: Int32, target: Int32) -> None:
        """Hands the state of `source` over to `target`."""
        self.moves.append(Move(pool, source, target))
