"""What a folder of safetensors files holds, read from their headers alone. Imports no torch."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.fields import Fields
from corymb.models.inventory import HEAD, Shapes

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100 << 20
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
LOADABLE = ("F32", "F16", "BF16", "MXFP4")

# Checkpoints that also hold a vision tower nest the text model in one of two ways.
NESTED = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
UNUSED = re.compile(r"(^|\.)(vision_tower|multi_modal_projector|visual)\.|^mtp\.|\.rotary_emb\.inv_freq$")

# Some families have names of their own for what Llama has too.
RENAMED = tuple(
    (re.compile(pattern), ours)
    for pattern, ours in (
        (r"\.feed_forward\.", ".mlp."),
        (r"\.mlp\.(.+\.)?w1\.", r".mlp.\1gate_proj."),
        (r"\.mlp\.(.+\.)?w3\.", r".mlp.\1up_proj."),
        (r"\.mlp\.(.+\.)?w2\.", r".mlp.\1down_proj."),
        (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
        (r"\.operator_norm\.", ".input_layernorm."),
        (r"\.(ffn_norm|pre_ff_layernorm)\.", ".post_attention_layernorm."),
        (r"^model\.(embedding_norm|final_layernorm)\.", "model.norm."),
    )
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies."""

    file: Path
    stored_name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """What it takes on disk."""
        return math.prod(self.shape) * WIDTHS.get(self.dtype, 1)


Stored = dict[str, StoredTensor]


def read_headers(folder: Path) -> Stored:
    """All tensors of a model folder that a text model may use, by name. Raises BrokenModel, UnsupportedModel."""
    stored: Stored = {}
    for file in weight_files(folder):
        for name, tensor in read_header(file).items():
            plain = _plain_name(name)
            if plain in stored:
                raise BrokenModel(f"{plain} is in two files of {folder}: {stored[plain].file.name} and {file.name}.")
            if not UNUSED.search(name):
                stored[plain] = tensor
    return stored


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: those that its index names, or all there are."""
    if (folder / INDEX).exists():
        return _indexed(folder)
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    if not files:
        raise _no_files(folder)
    return files


def weights_size_bytes(folder: Path, *, ignored: tuple[str, ...] = ()) -> int:
    """What all tensors of a model folder take on disk, but those whose names begin with one of `ignored`."""
    return sum(tensor.size_bytes for name, tensor in read_headers(folder).items() if not name.startswith(ignored))


def check_tensors(stored: Stored, expected: Shapes, folder: Path, *, ignored: tuple[str, ...] = ()) -> None:
    """Raises BrokenModel unless the stored tensors are those that the model's config asks for. There may be more whose
    names begin with one of `ignored`."""
    missing = [name for name in expected if name not in stored]
    if missing:
        raise BrokenModel(f"{folder} lacks the tensors its config.json asks for: {_some(missing)}.")
    # A tied head is often stored all the same; the embedding stands for it.
    unexpected = [name for name in stored if name not in expected and name != HEAD and not name.startswith(ignored)]
    if unexpected:
        raise BrokenModel(f"{folder} holds tensors its config.json has no place for: {_some(unexpected)}.")
    for name, shape in expected.items():
        if stored[name].shape != shape:
            raise BrokenModel(
                f"{name} in {stored[name].file} has shape {list(stored[name].shape)}, "
                f"but config.json asks for {list(shape)}."
            )
        if stored[name].dtype not in LOADABLE:
            raise UnsupportedModel(
                f"{name} in {stored[name].file} is stored as {stored[name].dtype}, which is not supported."
            )


def _indexed(folder: Path) -> list[Path]:
    names = sorted({str(name) for name in Fields.read(folder / INDEX).inner("weight_map").values.values()})
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise BrokenModel(f"{folder / INDEX} names files outside its folder: {_some(outside)}.")
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise BrokenModel(f"{folder} lacks {_some(missing)}, which its index names; download it again.")
    return [folder / name for name in names]


def read_header(file: Path) -> Stored:
    """All tensors of one file, by the names they have there. Raises BrokenModel."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise BrokenModel(f"{file} is not a whole safetensors file; download it again.")
        try:
            header = json.loads(stream.read(length))
            tensors = {
                name: (StoredTensor(file, name, entry["dtype"], tuple(entry["shape"])), entry["data_offsets"][1])
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise BrokenModel(f"{file} has a damaged header; download it again.") from None
    if max((end for _, end in tensors.values()), default=0) != size - 8 - length:
        raise BrokenModel(f"{file} is cut short; download it again.")
    return {name: tensor for name, (tensor, _) in tensors.items()}


def _plain_name(name: str) -> str:
    for nested, plain in NESTED:
        if name.startswith(nested):
            name = plain + name.removeprefix(nested)
            break
    for pattern, ours in RENAMED:
        name = pattern.sub(ours, name)
    return name


def _no_files(folder: Path) -> UnsupportedModel | BrokenModel:
    pickled = [file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in sorted(folder.glob(pattern))]
    if pickled:
        return UnsupportedModel(
            f"{folder} holds only pickled weights ({_some(pickled)}), which can run code when opened and are refused; "
            "convert them to safetensors."
        )
    return BrokenModel(f"{folder} holds no weights: no *.safetensors file is there.")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
