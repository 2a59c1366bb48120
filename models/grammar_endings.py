"""Which rules of a grammar can never end: whoever enters one finds no way out, or no next character at all."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_RULE = re.compile(r"^(\w+) ::= (.*?)(?=^\w+ ::= |\Z)", re.MULTILINE | re.DOTALL)
_PIECE = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\w+|\{\d+|[()|*?]')
_DISPATCH = ("TagDispatch", "TokenTagDispatch")  # text with tags in it: it ends where no tag comes

_OPEN, _CLOSE = "()"
_MAY_BE_LEFT_OUT = ("*", "?", "{0")  # behind what they repeat


@dataclass(slots=True)
class Group:
    """What is known of a group that is being read."""

    earlier: bool = False  # an alternative before this one can end
    so_far: bool = True  # this one can, up to here

    def turn(self) -> None:
        """Begins the next alternative."""
        self.earlier, self.so_far = self.ends, True

    @property
    def ends(self) -> bool:
        return self.earlier or self.so_far


def endless_rule(printed: str) -> str | None:
    """A rule that `root` leads to and that has no finite text, the furthest from it; None where all have one.

    `printed`: as the back end prints a grammar.
    """
    bodies = {name: tuple(_PIECE.findall(body)) for name, body in _RULE.findall(printed)}
    ending = _ending_rules(bodies)
    return next((name for name in reversed(_reached(bodies)) if name not in ending), None)


def _ending_rules(bodies: Mapping[str, tuple[str, ...]]) -> set[str]:
    ending: set[str] = set()
    left = list(bodies)
    while True:
        left.reverse()  # chains are spelt in either direction
        ending.update(name for name in left if name not in ending and _ends(bodies[name], bodies, ending))
        still = [name for name in left if name not in ending]
        if len(still) == len(left):
            return ending
        left = still


def _ends(body: tuple[str, ...], bodies: Mapping[str, object], ending: set[str]) -> bool:
    """Whether a body has a finite text, given the rules that are known to have one."""
    if body and body[0] in _DISPATCH:
        return True
    groups = [Group()]
    for piece, following in zip(body, (*body[1:], ""), strict=True):
        if piece == _OPEN:
            groups.append(Group())
        elif piece == "|":
            groups[-1].turn()
        else:
            can = groups.pop().ends if piece == _CLOSE else piece not in bodies or piece in ending
            groups[-1].so_far &= can or following in _MAY_BE_LEFT_OUT
    return groups[0].ends


def _reached(bodies: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The rules that `root` leads to, the nearest first."""
    seen, reached = {"root"}, ["root"]
    for name in reached:  # which grows on the way
        inner = [piece for piece in dict.fromkeys(bodies[name]) if piece in bodies and piece not in seen]
        seen.update(inner)
        reached += inner
    return reached
