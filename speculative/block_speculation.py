"""Loads a block draft beside its target."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec
from corymb.kernels.block_attention import BlockAttention, TorchBlocks
from corymb.models.config import ModelConfig
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.group import ALONE
from corymb.models.layers import Parts
from corymb.models.model import SharingModel
from corymb.models.precision import ITEM_BYTES, Precision
from corymb.models.speculation import Setting, Tools
from corymb.models.weights import CheckpointWeights, Weights
from corymb.speculative.backbone import Backbone, pool_specs
from corymb.speculative.block_drafter import BlockDrafter, DraftModel
from corymb.speculative.calibration import Scales
from corymb.speculative.device_verification import DeviceVerification
from corymb.speculative.draft_config import DraftConfig, MarkovConfig, check_num_drafts, read_draft_config
from corymb.speculative.draft_dialects import Kind
from corymb.speculative.draft_heads import Confidence, DraftHeads
from corymb.speculative.draft_tensors import HEAD, OFFSETS, expected_shapes, read_draft_headers
from corymb.speculative.markov import Gated, MarkovHead, Mix, Recurrent, vanilla
from corymb.speculative.verification import Allotment, Verification


@dataclass(frozen=True, slots=True)
class BlockSpeculation:
    """A Speculation with a checkpoint of its own."""

    folder: Path
    config: DraftConfig
    num_drafts: int
    temperatures: Scales | None = None  # of the confidence; None: as it was trained
    allotment: Allotment | None = None

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """See Speculation."""
        return pool_specs(self.config)

    def weights_bytes(self, precision: Precision) -> int:
        """See Speculation. Tied tables are counted as they are when loaded."""
        shapes = expected_shapes(self.config)
        count = sum(math.prod(shape) for shape in shapes.values())
        markov = self.config.markov
        if markov and markov.tied:
            count += (self.config.target_vocab_size + self.config.vocab_size) * markov.rank
        return count * ITEM_BYTES[precision.weights]

    def make(self, setting: Setting) -> Verification:
        """See Speculation."""
        return Verification(self._drafter(setting, TorchBlocks()), self.allotment)

    def make_for_gpu(self, setting: Setting, tools: Tools) -> DeviceVerification:
        """See Speculation."""
        return DeviceVerification(self._drafter(setting, tools.blocks), self.allotment, tools)

    def _drafter(self, setting: Setting, attention: BlockAttention) -> BlockDrafter:
        target = setting.model
        assert isinstance(target, SharingModel), "checked by read_draft_config"
        stored = read_draft_headers(self.folder, self.config)
        with CheckpointWeights(stored, setting.load.device, lambda _: None) as weights:
            model = self._load(weights, target, setting, attention)
        return BlockDrafter(model, target, setting.kv, num_drafts=self.num_drafts, dtype=setting.load.dtype)

    def _load(self, weights: Weights, target: SharingModel, setting: Setting, attention: BlockAttention) -> DraftModel:
        config, load = self.config, setting.load
        parts = Parts(
            decoder=config.backbone,
            weights=weights,
            operations=load.operations,
            recurrence=load.recurrence,
            storage=load.storage,
            group=ALONE,
            vocab_size=config.vocab_size,
        )
        heads = DraftHeads(
            scores=_OwnScores(parts) if config.reduced else target.logits,
            vocab_size=config.target_vocab_size,
            token_ids=_drafted_ids(weights.take(OFFSETS), config) if config.reduced else None,
            markov=_markov(parts, config.markov, target) if config.markov else None,
            confidence=self._confidence(parts, load.device) if config.confident else None,
        )
        backbone = Backbone(parts, config, attention, context_length=setting.cache.context_length)
        return DraftModel(config, backbone, heads)

    def _confidence(self, parts: Parts, device: torch.device) -> Confidence:
        scales = self.temperatures or Scales((1.0,) * self.num_drafts)
        heats = sorted(scales.by_heat) or [0.0]
        product = parts.exact_linear("confidence_head.proj", bias=True)
        temperatures = torch.tensor([scales.of(heat) for heat in heats], device=device)
        return Confidence(product, self.config.confident_of_tokens, torch.tensor(heats, device=device), temperatures)


def read_block_speculation(
    folder: Path,
    kind: Kind,
    target: ModelConfig,
    *,
    num_drafts: int | None = None,
    temperatures: Scales | None = None,
    needs_confidence: bool = False,
) -> BlockSpeculation:
    """Reads a draft's folder for a target, all but its weights. `num_drafts`: None for as many as it was trained for;
    `needs_confidence`: of how drafts are chosen. Raises ModelError."""
    config = read_draft_config(folder, kind, target)
    count = check_num_drafts(config, num_drafts)
    if needs_confidence and not config.confident:
        raise UnsupportedModel(
            f"{folder} has no confidence head, by which drafts would be chosen; give "
            "--speculative-dspark-verify-mode static."
        )
    if temperatures is not None and len(temperatures.usual) != count:
        raise UnsupportedModel(
            f"There are {len(temperatures.usual)} temperatures for the confidence of {count} drafts; give a file for "
            "as many."
        )
    read_draft_headers(folder, config)
    return BlockSpeculation(folder, config, count, temperatures)


class _OwnScores:
    """The head of a draft that does not draft all tokens."""

    def __init__(self, parts: Parts) -> None:
        self._product = parts.storage.makers.linear(parts.weights.take(HEAD), None)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._product(hidden).float()


def _drafted_ids(offsets: Tensor, config: DraftConfig) -> Tensor:
    """The target's ids of the draft's tokens."""
    token_ids = torch.arange(len(offsets), device=offsets.device) + offsets.long()
    inside = int(token_ids.min()) >= 0 and int(token_ids.max()) < config.target_vocab_size
    if not inside or len(set(token_ids.tolist())) < len(token_ids):
        raise BrokenModel(f"{OFFSETS} of the draft does not name {len(token_ids)} different tokens of the target.")
    return token_ids


def _markov(parts: Parts, markov: MarkovConfig, target: SharingModel) -> MarkovHead:
    name = "markov_head"
    if markov.tied:
        entries, scores = _untied(parts, target)
    else:
        entries, scores = (parts.weights.take(f"{name}.{part}.weight") for part in ("markov_w1", "markov_w2"))
    mix: Mix
    match markov.kind:
        case "vanilla":
            mix = vanilla
        case "gated":
            mix = Gated(parts.linear(f"{name}.gate_proj", bias=True))
        case "rnn":
            mix = Recurrent(parts.linear(f"{name}.joint_proj", bias=True))
    # A copy: on a CPU the checkpoint's tensors are views of its file.
    return MarkovHead(entries.to(parts.storage.embedding, copy=True), parts.storage.makers.linear(scores, None), mix)


def _untied(parts: Parts, target: SharingModel) -> tuple[Tensor, Tensor]:
    """Tables of all tokens, out of the target's embedding: what is served is a head like any other."""
    first, last = (parts.weights.take(f"markov_head.{part}.weight") for part in ("tied_in", "tied_out"))
    every = target.embed(torch.arange(parts.vocab_size, device=first.device))
    return every @ first.to(every).T, every @ last.to(every).T
