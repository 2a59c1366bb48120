"""The draft that comes with the package: for the model that is served when none is named."""

from pathlib import Path

from corymb.models.config import ModelConfig

FOLDER = Path(__file__).parent / "smollm2_135m_instruct"
NUM_LAYERS, HIDDEN_SIZE, VOCAB_SIZE = 30, 576, 49_152


def shipped_draft(target: ModelConfig) -> Path | None:
    """Its folder, if the target has SmolLM2-135M's sizes. It was trained for the instruct model."""
    decoder = target.decoder
    if decoder is None:
        return None
    sizes = len(decoder.layers), decoder.hidden_size, decoder.vocab_size
    return FOLDER if sizes == (NUM_LAYERS, HIDDEN_SIZE, VOCAB_SIZE) else None
