"""How tokens choose their experts and what an expert does between its two products. Imports no torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Routing:
    """A router: `top_k` of `num_experts` for each token, the lower number among equals.

    Softmax probabilities, or sigmoid scores, of the router's logits. A correction, where a model has one, is added to
    scores for the choice alone; the weights are the scores of the chosen experts.
    """

    num_experts: int
    top_k: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalized: bool = True  # the weights of a token are divided by their sum
    scale: float = 1.0  # multiplies the weights
    # Experts stand in groups of equal size; those of the best `top_groups` groups alone may be chosen. A group is as
    # good as its two best experts together.
    num_groups: int = 1
    top_groups: int = 1

    @property
    def group_size(self) -> int:
        """Experts of a group."""
        return self.num_experts // self.num_groups


@dataclass(frozen=True, slots=True)
class Gating:
    """An expert's activation: gate × sigmoid(slope × gate) × (up + lift), both bounded by `limit` first.

    The bound is on both sides of up and above alone for gate. As it stands: SwiGLU.
    """

    slope: float = 1.0
    lift: float = 0.0
    limit: float | None = None


SWIGLU = Gating()
