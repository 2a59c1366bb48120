"""What is known of a model before its weights are read, and how to load it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from corymb.kernels.attention import Attention, AttentionSpec
from corymb.kernels.operations import Operations
from corymb.kernels.torch_attention import TorchAttention
from corymb.kernels.torch_operations import TorchOperations
from corymb.models.architectures import read_config
from corymb.models.builtin import HashModel, NoAttention, TapeModel, UniformModel
from corymb.models.config import DecoderConfig, ModelConfig
from corymb.models.errors import UnsupportedModel
from corymb.models.fields import Fields
from corymb.models.headers import weights_size_bytes
from corymb.models.inventory import draft_layers
from corymb.models.layers import attention_specs
from corymb.models.load import TORCH_DTYPES, LoadOptions, load_model
from corymb.models.makers import Makers
from corymb.models.mixers import state_specs
from corymb.models.model import Model
from corymb.models.precision import Precision
from corymb.models.states import StateSpec

OnProgress = Callable[[int, int], None]  # bytes read so far, bytes in all


class Blueprint(Protocol):
    """A model that is not loaded yet."""

    @property
    def config(self) -> ModelConfig:
        """What its folder says."""
        ...

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """Those of the model."""
        ...

    @property
    def state_specs(self) -> Sequence[StateSpec]:
        """Those of the model."""
        ...

    @property
    def weights_bytes(self) -> int:
        """What the loaded weights take."""
        ...

    def load(self, on_progress: OnProgress) -> Model:
        """Reads the weights. Raises ModelError."""
        ...

    def attention(self) -> Attention:
        """The back end for its layers."""
        ...


@dataclass(frozen=True, slots=True)
class BuiltinBlueprint:
    """A model made for tests: a class, and nothing to read."""

    config: ModelConfig
    window: int | None
    recurrent: bool
    weights_bytes: int = 0

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """See Blueprint."""
        return self._make().attention_specs

    @property
    def state_specs(self) -> Sequence[StateSpec]:
        """See Blueprint."""
        return self._make().state_specs

    def load(self, on_progress: OnProgress) -> Model:  # noqa: ARG002
        """See Blueprint."""
        return self._make()

    def attention(self) -> Attention:
        """See Blueprint."""
        return NoAttention()

    def _make(self) -> Model:
        if self.config.architecture == "CorymbHash":
            return HashModel(self.window, recurrent=self.recurrent)
        return TapeModel() if self.config.architecture == "CorymbTape" else UniformModel()


@dataclass(frozen=True, slots=True)
class DecoderBlueprint:
    """A model with weights."""

    folder: Path
    config: ModelConfig
    decoder: DecoderConfig
    precision: Precision
    options: LoadOptions

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """See Blueprint."""
        return attention_specs(self.decoder)

    @property
    def state_specs(self) -> Sequence[StateSpec]:
        """See Blueprint."""
        return state_specs(self.decoder)

    @property
    def weights_bytes(self) -> int:
        """See Blueprint."""
        return self.precision.weights_bytes(self.decoder, "cuda" if self.options.device.type == "cuda" else "cpu")

    def load(self, on_progress: OnProgress) -> Model:
        """See Blueprint."""
        ignored = draft_layers(self.decoder)
        total = 0 if self.options.load_format == "dummy" else weights_size_bytes(self.folder, ignored=ignored)
        done = 0

        def advance(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            on_progress(done, total)

        return load_model(self.folder, self.config, self.options, on_progress=advance)

    def attention(self) -> Attention:
        """See Blueprint."""
        return TorchAttention()


def read_blueprint(
    folder: Path,
    *,
    precision: Precision,
    device: torch.device,
    load_format: Literal["auto", "dummy"],
    operations: Operations | None = None,
    makers: Makers | None = None,
) -> Blueprint:
    """Reads a model's folder, all but its weights. Raises ModelError."""
    config = read_config(folder)
    if config.decoder is not None:
        options = LoadOptions(
            dtype=TORCH_DTYPES[precision.compute],
            weights=precision.weights,
            device=device,
            load_format=load_format,
            operations=operations or TorchOperations(),
            makers=makers,
        )
        return DecoderBlueprint(folder, config, config.decoder, precision, options)
    if precision.weights == "int8":
        raise UnsupportedModel(f"{config.architecture} has no weights to quantize; leave --quantization out.")
    fields = Fields.read(folder / "config.json")
    window = fields.whole("sliding_window") if fields.has("sliding_window") else None
    return BuiltinBlueprint(config, window, recurrent=fields.flag("recurrent", default=False))
