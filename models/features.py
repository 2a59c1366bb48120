"""What a model thinks on the way: its residual stream after some of its layers, for those who draft for it."""

from dataclasses import dataclass

from torch import Tensor

EMBEDDED = -1  # in the place of a layer: what the first one is given


@dataclass(frozen=True, slots=True)
class Capture:
    """Takes the stream while a forward passes, into memory of the caller's, so that captured graphs may hold it."""

    layers: tuple[int, ...]  # from 0 or EMBEDDED, rising; not the last, whose output `forward` returns
    into: Tensor  # [T, len(layers) * hidden_size], in the order of the layers

    def first(self, num_tokens: int) -> "Capture":
        """For so many tokens, into the same memory."""
        return Capture(self.layers, self.into[:num_tokens])

    def take(self, index: int, residual: Tensor) -> None:
        """Keeps layer `index`'s output, if it is wanted."""
        if index in self.layers:
            hidden_size = residual.shape[1]
            self.into.narrow(1, self.layers.index(index) * hidden_size, hidden_size).copy_(residual)
