"""What a mixture of experts is, and where its tensors stand in a checkpoint. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from corymb.kernels.routing import SWIGLU, Gating, Routing


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """An MLP beside the routed experts that all tokens go through."""

    intermediate_size: int
    name: str = "shared_experts"
    gate: str | None = None  # of a product [1, hidden_size] whose sigmoid weighs it


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The experts of a model's sparse layers."""

    routing: Routing
    intermediate_size: int
    gating: Gating = SWIGLU
    bias: bool = False  # of the experts' products
    router_bias: bool = False
    shared: SharedConfig | None = None
    # separate: each expert's gate, up and down apart, as `experts.7.NAME.weight`
    # stacked: `experts.gate_up_proj` [experts, 2 × intermediate, hidden], gate above up, and `experts.down_proj`
    # interleaved: the same transposed, gate and up in turns
    form: Literal["separate", "stacked", "interleaved"] = "separate"
    block: str = "mlp"  # of a layer
    router: str = "gate"
    correction: str | None = None  # of a tensor [experts] that is added to scores for the choice
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")

    def tensors(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """All tensors of one sparse layer, by name within the layer, in the order in which a model takes them."""
        count, bias = self.routing.num_experts, self.router_bias
        shapes: dict[str, tuple[int, ...]] = {f"{self.router}.weight": (count, hidden_size)}
        shapes |= {f"{self.router}.bias": (count,)} if bias else {}
        shapes |= {self.correction: (count,)} if self.correction else {}
        shapes |= self._separate(hidden_size) if self.form == "separate" else self._stacked(hidden_size)
        shapes |= self._shared(hidden_size)
        return {f"{self.block}.{name}": shape for name, shape in shapes.items()}

    def _separate(self, hidden: int) -> dict[str, tuple[int, ...]]:
        inner, (gate, up, down) = self.intermediate_size, self.parts
        shapes = {gate: (inner, hidden), up: (inner, hidden), down: (hidden, inner)}
        return {
            f"experts.{expert}.{name}.weight": shape
            for expert in range(self.routing.num_experts)
            for name, shape in shapes.items()
        }

    def _stacked(self, hidden: int) -> dict[str, tuple[int, ...]]:
        count, inner = self.routing.num_experts, self.intermediate_size
        gate_up, down = (2 * inner, hidden), (hidden, inner)
        if self.form == "interleaved":
            gate_up, down = gate_up[::-1], down[::-1]
        shapes: dict[str, tuple[int, ...]] = {"experts.gate_up_proj": (count, *gate_up)}
        if self.bias:
            shapes["experts.gate_up_proj_bias"] = (count, 2 * inner)
        shapes["experts.down_proj"] = (count, *down)
        if self.bias:
            shapes["experts.down_proj_bias"] = (count, hidden)
        return shapes

    def _shared(self, hidden: int) -> dict[str, tuple[int, ...]]:
        if self.shared is None:
            return {}
        name, inner = self.shared.name, self.shared.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {
            f"{name}.gate_proj.weight": (inner, hidden),
            f"{name}.up_proj.weight": (inner, hidden),
            f"{name}.down_proj.weight": (hidden, inner),
        }
        return shapes | ({f"{self.shared.gate}.weight": (1, hidden)} if self.shared.gate else {})
