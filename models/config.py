"""What a model is, read from the JSON files of its folder. Imports no torch: every process may ask."""

from dataclasses import dataclass, field
from typing import Any, Literal

from corymb.models.experts_config import ExpertsConfig
from corymb.models.latent_config import LatentConfig
from corymb.models.recurrent_config import Multipliers, RecurrentConfig
from corymb.models.rope_config import Rope


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Where decoder layers of one model differ."""

    rope: Rope | None  # None: the layer sees no positions
    window: int | None = None  # tokens it attends to, the current one included; None: all
    indexed: Literal["own", "shared"] | None = None  # whose index chooses its keys: its own, or the last one before it
    sparse: bool = False  # its MLP is a mixture of experts
    attends: bool = True
    recurrent: RecurrentConfig | None = None  # in place of attention, or beside it


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The sizes and variants of a decoder-only transformer."""

    family: str  # "llama": norms before attention and MLP; "gemma": before and after, and scaled embeddings
    vocab_size: int
    context_length: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: Literal["silu", "gelu_tanh"]
    attention_scale: float
    tied: bool  # the head is the embedding
    layers: tuple[LayerConfig, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    query_key_norm: bool = False
    attention_soft_cap: float | None = None
    sinks: bool = False  # each query head has a logit of its own beside those of its keys
    logit_soft_cap: float | None = None
    experts: ExpertsConfig | None = None  # of sparse layers
    latent: LatentConfig | None = None  # attention is to latents; head_dim is what of a head turns
    num_draft_layers: int = 0  # that a checkpoint may hold behind the others, for speculation
    norm_offset: float = 0.0  # checkpoints store the distance of a norm's weights from it
    output_gate: bool = False  # queries come with gates, which weigh what attention gives
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    multipliers: Multipliers | None = None

    def cached_numbers(self, layer: LayerConfig) -> int:
        """Numbers that a layer keeps of each token: keys and values, or latents and index keys."""
        if not layer.attends:
            return 0
        if self.latent is None:
            return 2 * self.num_kv_heads * self.head_dim
        index = self.latent.index if layer.indexed == "own" else None
        return self.latent.stored_dim + (index.head_dim if index else 0)

    def num_attending(self, index: int) -> int:
        """Layers with attention before this one."""
        return sum(layer.attends for layer in self.layers[:index])

    def num_states(self, index: int) -> int:
        """Tensors of state of all layers before this one."""
        recurrent = [layer.recurrent for layer in self.layers[:index]]
        return sum(1 if one.matrix is None else 2 for one in recurrent if one is not None)

    def num_recurrent(self, index: int) -> int:
        """Layers with a state before this one."""
        return sum(layer.recurrent is not None for layer in self.layers[:index])


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model as the rest of the server sees it."""

    architecture: str
    vocab_size: int
    context_length: int
    eos_ids: frozenset[int]
    bos_id: int | None
    dtype: str  # that the checkpoint was saved in: "float32", "float16" or "bfloat16"
    decoder: DecoderConfig | None  # None for the models made for tests
    sampling: dict[str, Any] = field(default_factory=dict)  # what generation_config.json recommends

    @property
    def num_layers(self) -> int:
        """Decoder layers; 0 for the models made for tests."""
        return len(self.decoder.layers) if self.decoder else 0

    @property
    def window(self) -> int | None:
        """The widest sliding window of any layer; None if all layers attend to everything."""
        layers = self.decoder.layers if self.decoder else ()
        return max((layer.window for layer in layers if layer.window is not None), default=None)
