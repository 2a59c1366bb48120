"""What is known of a model before its weights are read, and how to load it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from corymb.kernels.attention import Attention, AttentionSpec
from corymb.kernels.torch_attention import TorchAttention
from corymb.models.architectures import read_config
from corymb.models.builtin import HashModel, NoAttention, TapeModel, UniformModel
from corymb.models.config import DecoderConfig, ModelConfig
from corymb.models.errors import UnsupportedModel
from corymb.models.fields import Fields
from corymb.models.group import ALONE, Group
from corymb.models.layers import attention_specs
from corymb.models.load import LoadOptions, load_model, read_size_bytes
from corymb.models.mixers import record_specs, state_specs
from corymb.models.model import Model
from corymb.models.precision import Precision
from corymb.models.share import Share, check_split, local_config
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
    def record_specs(self) -> Sequence[StateSpec]:
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
    group: Group = ALONE
    weights_bytes: int = 0

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """See Blueprint."""
        return self._make().attention_specs

    @property
    def state_specs(self) -> Sequence[StateSpec]:
        """See Blueprint."""
        return self._make().state_specs

    @property
    def record_specs(self) -> Sequence[StateSpec]:
        """See Blueprint."""
        return self._make().record_specs

    def load(self, on_progress: OnProgress) -> Model:  # noqa: ARG002
        """See Blueprint."""
        return self._make()

    def attention(self) -> Attention:
        """See Blueprint."""
        return NoAttention()

    def _make(self) -> Model:
        if self.config.architecture == "CorymbHash":
            return HashModel(self.window, recurrent=self.recurrent, group=self.group)
        return TapeModel(self.group) if self.config.architecture == "CorymbTape" else UniformModel()


@dataclass(frozen=True, slots=True)
class DecoderBlueprint:
    """A model with weights."""

    folder: Path
    config: ModelConfig
    decoder: DecoderConfig  # the whole
    precision: Precision
    options: LoadOptions

    @property
    def share(self) -> Share:
        """Which part of the model this rank keeps."""
        return Share(self.options.group.rank, self.options.group.size)

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """See Blueprint."""
        return attention_specs(local_config(self.decoder, self.share))

    @property
    def state_specs(self) -> Sequence[StateSpec]:
        """See Blueprint."""
        return state_specs(local_config(self.decoder, self.share))

    @property
    def record_specs(self) -> Sequence[StateSpec]:
        """See Blueprint."""
        return record_specs(local_config(self.decoder, self.share))

    @property
    def weights_bytes(self) -> int:
        """See Blueprint."""
        local = local_config(self.decoder, self.share)
        return self.precision.weights_bytes(local, "cuda" if self.options.device.type == "cuda" else "cpu")

    def load(self, on_progress: OnProgress) -> Model:
        """See Blueprint."""
        invented = self.options.load_format == "dummy"
        total = 0 if invented else read_size_bytes(self.folder, self.decoder, self.share)
        done = 0

        def advance(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            on_progress(done, total)

        return load_model(self.folder, self.config, self.options, on_progress=advance)

    def attention(self) -> Attention:
        """See Blueprint."""
        return TorchAttention()


def read_blueprint(folder: Path, precision: Precision, options: LoadOptions) -> Blueprint:
    """Reads a model's folder, all but its weights. Raises ModelError."""
    config = read_config(folder)
    if config.decoder is not None:
        check_split(config.decoder, config.architecture, options.group.size)
        return DecoderBlueprint(folder, config, config.decoder, precision, options)
    if precision.weights == "int8":
        raise UnsupportedModel(f"{config.architecture} has no weights to quantize; leave --quantization out.")
    fields = Fields.read(folder / "config.json")
    window = fields.whole("sliding_window") if fields.has("sliding_window") else None
    recurrent = fields.flag("recurrent", default=False)
    return BuiltinBlueprint(config, window, recurrent=recurrent, group=options.group)
