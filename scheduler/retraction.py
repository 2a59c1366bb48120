"""Who gives up its memory first when a step does not fit."""

from collections.abc import Sequence


def victims(num_outputs: Sequence[int], num_prompt: Sequence[int], urgency: Sequence[int] | None = None) -> list[int]:
    """Indices, the first to retract first: fewest output tokens, then longest prompt, then the latest to join.

    With `urgency` (the priority policy) the least urgent go first and the rest only breaks ties.
    """
    count = len(num_outputs)
    ranks = [0] * count if urgency is None else urgency
    return sorted(range(count), key=lambda i: (ranks[i], num_outputs[i], -num_prompt[i], -i))
