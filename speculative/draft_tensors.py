"""Which tensors a block draft's checkpoint must hold, and where they are. Of what it shares with its target it may hold
copies, which are not read."""

import re
from dataclasses import replace
from pathlib import Path

from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.headers import Stored, check_tensors, read_header, weight_files
from corymb.models.inventory import Shapes, expected_tensors
from corymb.speculative.draft_config import DraftConfig, MarkovConfig

HEAD, OFFSETS = "lm_head.weight", "d2t"
_SHARED = re.compile(r"^(embed_tokens\.|lm_head\.|t2d$|verifier_)|(^|\.)rotary_emb\.")
_STAGE = re.compile(r"^mtp\.(\d+)\.(.+)$")
_FUSING = {"main_proj.weight": "fc.weight", "main_norm.weight": "hidden_norm.weight"}  # in its first stage
_BEHIND_LAYERS = ("norm.", "markov_head.", "confidence_head.")  # in the last stage of a bundled draft


def read_draft_headers(folder: Path, config: DraftConfig) -> Stored:
    """The tensors that the draft is made of, by their published names. Raises BrokenModel, UnsupportedModel."""
    stored: Stored = {}
    for file in weight_files(folder):
        for name, tensor in read_header(file).items():
            plain = _bundled_name(name, config) if config.bundled else name.removeprefix("model.")
            if plain is None or (_SHARED.search(plain) and not (config.reduced and plain == HEAD)):
                continue
            if plain in stored:
                raise BrokenModel(f"{plain} is twice in {folder}.")
            stored[plain] = tensor
    _check(stored, config, folder)
    return stored


def expected_shapes(config: DraftConfig) -> Shapes:
    """What the config asks for. A reduced vocabulary's map of tokens is not among them: it holds whole numbers."""
    backbone = config.backbone
    hidden = backbone.hidden_size
    shapes: Shapes = {"fc.weight": (hidden, hidden * len(config.layers)), "hidden_norm.weight": (hidden,)}
    shapes |= {
        name.removeprefix("model."): shape
        for name, shape in expected_tensors(replace(backbone, tied=True)).items()
        if name.startswith("model.layers.")
    }
    shapes["norm.weight"] = (hidden,)
    if config.reduced:
        shapes[HEAD] = (config.vocab_size, hidden)
    if config.markov is not None:
        shapes |= _markov(config, config.markov)
    if config.confident:
        rank = config.markov.rank if config.markov and config.confident_of_tokens else 0
        shapes |= {"confidence_head.proj.weight": (1, hidden + rank), "confidence_head.proj.bias": (1,)}
    return shapes


def _markov(config: DraftConfig, markov: MarkovConfig) -> Shapes:
    hidden, rank = config.backbone.hidden_size, markov.rank
    tables: Shapes = {
        "markov_w1.weight": (config.target_vocab_size, rank),
        "markov_w2.weight": (config.vocab_size, rank),
    }
    if markov.tied:
        tables = {"tied_in.weight": (rank, hidden), "tied_out.weight": (rank, hidden)}
    mixing: dict[str, Shapes] = {
        "vanilla": {},
        "gated": {"gate_proj.weight": (rank, hidden + rank), "gate_proj.bias": (rank,)},
        "rnn": {"joint_proj.weight": (3 * rank, 2 * rank + hidden), "joint_proj.bias": (3 * rank,)},
    }
    return {f"markov_head.{name}": shape for name, shape in (tables | mixing[markov.kind]).items()}


def _check(stored: Stored, config: DraftConfig, folder: Path) -> None:
    hyper = [name for name in stored if "hc_" in name]
    if hyper:
        raise UnsupportedModel(f"{folder} holds a draft with hyper-connections ({hyper[0]}), which are not supported.")
    if config.confident and not any(name.startswith("confidence_head.") for name in stored):
        raise BrokenModel(f"The config.json of {folder} speaks of a confidence head, and its weights hold none.")
    if config.reduced:
        offsets = stored.get(OFFSETS)
        if offsets is None or offsets.shape != (config.vocab_size,) or offsets.dtype not in ("I64", "I32"):
            raise BrokenModel(
                f"{folder} drafts {config.vocab_size} of the target's {config.target_vocab_size} tokens, and has no "
                f"{OFFSETS} of that many whole numbers to say which."
            )
    check_tensors(stored, expected_shapes(config), folder, ignored=(OFFSETS,))


def _bundled_name(name: str, config: DraftConfig) -> str | None:
    """The published name of a tensor of the target's extra layers; None for one of the target's own."""
    match = _STAGE.match(name)
    if match is None:
        return None
    stage, rest = int(match[1]), match[2]
    if stage == 0 and rest in _FUSING:
        return _FUSING[rest]
    if rest.startswith(_BEHIND_LAYERS):
        return rest if stage == len(config.backbone.layers) - 1 else f"layers.{stage}.{rest}"
    return f"layers.{stage}.{rest}"
