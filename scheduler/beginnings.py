"""What the prompts of one step begin with, so that the step does not compute the same beginning twice."""

from corymb.cache.key import Key, Namespace


class Beginnings:
    """Keys whose tokens this step computes. Lives for one planning pass.

    Asks are exact and cheap: for every length that was asked about it keeps the set of such beginnings.
    """

    def __init__(self, *, least: int, step: int) -> None:
        """`least`: tokens that waiting a step must save; negative: nothing is worth it. `step`: hits end only at
        multiples of it, or waiting for one might never end."""
        self._least = least
        self._step = step
        self._keys: list[Key] = []
        self._by_length: dict[int, set[tuple[Namespace, bytes]]] = {}

    def add(self, key: Key) -> None:
        """The step computes this one."""
        self._keys.append(key)
        for length, known in self._by_length.items():
            known.add((key.namespace, key.token_ids[:length].tobytes()))

    def repeats(self, key: Key, matched: int, limit: int) -> bool:
        """Whether `key`, of which the tree has `matched` tokens now and may give `limit`, would find `least` more there
        if it came a step later."""
        length = -(-(matched + max(self._least, 1)) // self._step) * self._step
        if self._least < 0 or length > limit:
            return False
        if length not in self._by_length:
            self._by_length[length] = {(each.namespace, each.token_ids[:length].tobytes()) for each in self._keys}
        return (key.namespace, key.token_ids[:length].tobytes()) in self._by_length[length]
