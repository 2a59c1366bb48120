"""Whether a smaller model can draft for a target. Imports no torch."""

from pathlib import Path

from corymb.models.architectures import read_config
from corymb.models.config import ModelConfig
from corymb.models.errors import UnsupportedModel


def read_standalone_config(folder: Path, target: ModelConfig, *, context_length: int) -> ModelConfig:
    """Reads the smaller model's folder; `context_length` is the server's. Raises BrokenModel, UnsupportedModel."""
    config = read_config(folder)
    decoder = config.decoder
    if decoder is None:
        raise UnsupportedModel(f"{config.architecture} has no weights to draft with.")
    if any(layer.recurrent is not None for layer in decoder.layers):
        raise UnsupportedModel(
            f"{config.architecture} carries recurrent state, which cannot take drafts back; use a draft model of "
            "attention layers alone."
        )
    if config.vocab_size != target.vocab_size:
        raise UnsupportedModel(
            f"The draft model has {config.vocab_size} tokens and the target {target.vocab_size}; they must share a "
            "vocabulary."
        )
    if config.context_length < context_length:
        raise UnsupportedModel(
            f"The draft model takes {config.context_length} tokens and the server {context_length}; give "
            f"--context-length {config.context_length} or less."
        )
    return config
