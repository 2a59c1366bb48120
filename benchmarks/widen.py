"""Widens a Llama model without changing what it says: a target with a small model's outputs and a large one's cost.

    benchmarks/widen.py SMALL OUT                   SmolLM2 at the cost of an 8B model: 7.5 B weights a token
    benchmarks/widen.py SMALL OUT --draft DRAFT     its draft, widened alike

The residual stream gets further dimensions in which it is zero; norms are rescaled, since they divide by the mean
over all of them. What reads those dimensions, and what stands behind values that are zero, is random: further heads
have random queries and keys and no values, further neurons random gates and nothing to let through. So most of the
new weights are random numbers that cannot reach the output, and kernels move what they would move for a large model.
Activations in the new dimensions are zero, which a GPU's power, though no kernel's schedule, may notice.

A draft's norms over single heads take the epsilon that its config gives to all norms, which is smaller here: its
guesses may differ in the last digits.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

SPREAD = 0.02


@dataclass(frozen=True)
class Sizes:
    """Of one width."""

    hidden: int
    heads: int
    kv_heads: int
    inner: int

    @staticmethod
    def of(config: dict[str, Any]) -> "Sizes":
        """As a config.json has them."""
        return Sizes(
            config["hidden_size"],
            config["num_attention_heads"],
            config["num_key_value_heads"],
            config["intermediate_size"],
        )


WIDE = Sizes(hidden=4096, heads=64, kv_heads=16, inner=16384)


class Widening:
    """Turns tensors of one size into those of another. Heads keep their size."""

    def __init__(self, small: Sizes, wide: Sizes, head_dim: int, *, device: str, seed: int = 0) -> None:
        """Raises SystemExit for sizes that do not fit into each other."""
        group, wide_group = small.heads // small.kv_heads, wide.heads // wide.kv_heads
        fits = small.hidden <= wide.hidden and small.inner <= wide.inner and small.kv_heads <= wide.kv_heads
        if not fits or group > wide_group:
            raise SystemExit(f"{small} does not fit into {wide}.")
        self.scale = math.sqrt(small.hidden / wide.hidden)
        self._small, self._wide = small, wide
        self._head_dim = head_dim
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device = device
        # Query head h of group g goes to the same place in the wider group g.
        self._query_heads = [head // group * wide_group + head % group for head in range(small.heads)]
        self._strays = [g * wide_group + place for g in range(small.kv_heads) for place in range(group, wide_group)]

    def norm(self, weight: Tensor) -> Tensor:
        """Over the residual stream."""
        wide = self._random(self._wide.hidden).float()
        wide[: len(weight)] = weight.float().to(self._device) * self.scale
        return wide

    def reading(self, weight: Tensor, rows: int) -> Tensor:
        """[rows, wide hidden] that reads the stream: new columns meet zeros, new rows are random."""
        wide = self._random(rows, self._wide.hidden)
        wide[: weight.shape[0], : weight.shape[1]] = weight.to(self._device)
        return wide

    def silent(self, weight: Tensor, rows: int) -> Tensor:
        """The same, but what the new rows give is zero."""
        wide = self.reading(weight, rows)
        wide[weight.shape[0] :, : weight.shape[1]] = 0
        return wide

    def queries(self, weight: Tensor) -> Tensor:
        """Query heads, each in its group."""
        wide = self._random(self._wide.heads * self._head_dim, self._wide.hidden)
        for head, place in enumerate(self._query_heads):
            wide[self._of(place), : weight.shape[1]] = weight[self._of(head)].to(self._device)
        return wide

    def values(self, weight: Tensor) -> Tensor:
        """Value heads; new ones are zero, so that whoever attends to them gets nothing."""
        return self.silent(weight, self._wide.kv_heads * self._head_dim)

    def output(self, weight: Tensor) -> Tensor:
        """Of attention. New heads of old groups see real values, and must not pass them on."""
        wide = self._random(self._wide.hidden, self._wide.heads * self._head_dim)
        for head, place in enumerate(self._query_heads):
            wide[:, self._of(place)] = 0
            wide[: weight.shape[0], self._of(place)] = weight[:, self._of(head)].to(self._device)
        for place in self._strays:
            wide[:, self._of(place)] = 0
        return wide

    def writing(self, weight: Tensor, columns: int) -> Tensor:
        """[wide hidden, columns] that writes into the stream: nothing into its new dimensions; new columns meet
        zeros."""
        wide = self._random(self._wide.hidden, columns)
        wide[:, : weight.shape[1]] = 0
        wide[: weight.shape[0], : weight.shape[1]] = weight.to(self._device)
        return wide

    def embedding(self, weight: Tensor) -> Tensor:
        """What the stream begins with."""
        wide = torch.zeros(len(weight), self._wide.hidden, device=self._device)
        wide[:, : weight.shape[1]] = weight.to(self._device)
        return wide

    def features(self, weight: Tensor) -> Tensor:
        """A draft's fusion, whose input is several streams side by side."""
        small, wide = self._small.hidden, self._wide.hidden
        parts = [self.writing(part, small) for part in weight.split(small, dim=1)]
        found = torch.zeros(wide, len(parts) * wide, dtype=parts[0].dtype, device=self._device)
        for index, part in enumerate(parts):
            found[:, index * wide : index * wide + small] = part
            # Columns that meet a stream's new dimensions.
            found[:, index * wide + small : (index + 1) * wide] = self._random(wide, wide - small)
        return found

    def beside(self, weight: Tensor) -> Tensor:
        """[n, wide hidden + rest] of [n, hidden + rest]: a product with the stream and with what keeps its size."""
        stream, rest = weight[:, : self._small.hidden], weight[:, self._small.hidden :]
        return torch.cat((self.reading(stream, len(weight)), rest.to(self._device)), dim=1)

    def _of(self, head: int) -> slice:
        return slice(head * self._head_dim, (head + 1) * self._head_dim)

    def _random(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self._device).normal_(0, SPREAD, generator=self._generator)


def widened(widening: Widening, wide: Sizes, name: str, weight: Tensor, head_dim: int) -> Tensor:
    """One tensor of a Llama model or of a draft, in its own type; norms in float32."""
    kind = name.removesuffix(".weight").rpartition(".")[2]
    if kind in ("input_layernorm", "post_attention_layernorm", "norm", "hidden_norm"):
        return widening.norm(weight)
    if "markov_head.gate_proj.weight" in name:
        kind = "proj"
    makers: dict[str, Callable[[Tensor], Tensor]] = {
        "q_proj": widening.queries,
        "k_proj": partial(widening.reading, rows=wide.kv_heads * head_dim),
        "v_proj": widening.values,
        "o_proj": widening.output,
        "gate_proj": partial(widening.reading, rows=wide.inner),
        "up_proj": partial(widening.silent, rows=wide.inner),
        "down_proj": partial(widening.writing, columns=wide.inner),
        "embed_tokens": widening.embedding,
        "lm_head": partial(widening.reading, rows=len(weight)),
        "fc": widening.features,
        "tied_in": partial(widening.reading, rows=len(weight)),
        "tied_out": widening.embedding,  # what it gives is added to what the head reads
        "proj": widening.beside,
    }
    make = makers.get(kind)
    # Norms over heads, biases, and tables of the Markov head alone know no width.
    return weight if make is None else make(weight).to(weight.dtype)


def read(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a folder."""
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a dict
                yield name, opened.get_tensor(name)


def wide_config(config: dict[str, Any], wide: Sizes) -> dict[str, Any]:
    """The config of what was widened."""
    share = config["hidden_size"] / wide.hidden
    return config | {
        "hidden_size": wide.hidden,
        "num_attention_heads": wide.heads,
        "num_key_value_heads": wide.kv_heads,
        "intermediate_size": wide.inner,
        "head_dim": head_dim_of(config),
        "rms_norm_eps": config["rms_norm_eps"] * share,
        "tie_word_embeddings": False,
    }


def head_dim_of(config: dict[str, Any]) -> int:
    """Which a config may leave out."""
    found: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return found


def widen(small: Path, out: Path, wide: Sizes, *, device: str, dtype: torch.dtype | None = None) -> int:
    """Writes the wide folder, a target in a file a layer; returns how many weights it has. `dtype`: of matrices; None
    for their own."""
    config = json.loads((small / "config.json").read_text())
    head_dim = head_dim_of(config)
    widening = Widening(Sizes.of(config), wide, head_dim, device=device)
    out.mkdir(parents=True, exist_ok=True)
    total = 0
    layers = by_layer(dict(read(small)))
    for number, tensors in enumerate(layers):
        wider = {name: widened(widening, wide, name, weight, head_dim) for name, weight in tensors.items()}
        total += sum(weight.numel() for weight in wider.values())
        file = "model.safetensors" if len(layers) == 1 else f"model-{number:05d}.safetensors"
        save_file({name: kept(weight, dtype).contiguous().cpu() for name, weight in wider.items()}, out / file)
    (out / "config.json").write_text(json.dumps(wide_config(config, wide), indent=1))
    for file in small.iterdir():
        if file.suffix in (".json", ".jinja") and file.name != "config.json" and "index" not in file.name:
            (out / file.name).write_bytes(file.read_bytes())
    return total


def kept(weight: Tensor, dtype: torch.dtype | None) -> Tensor:
    """As it is written: norms keep their type."""
    return weight if dtype is None or weight.dim() < 2 else weight.to(dtype)


def by_layer(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """A target's tensors, layer by layer, its head made a tensor of its own; a draft's all together."""
    if "model.embed_tokens.weight" not in tensors:
        return [tensors]
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    layers: dict[str, dict[str, Tensor]] = {}
    for name, weight in tensors.items():
        place = name.split(".layers.")[1].split(".")[0] if ".layers." in name else ""
        layers.setdefault(place, {})[name] = weight
    return list(layers.values())


def main() -> None:
    """See the top."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("small", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--draft", type=Path, help="widen this draft of SMALL instead")
    parser.add_argument("--draft-inner", type=int, default=2048, help="MLP of the wide draft")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    flags = parser.parse_args()
    wide = WIDE if flags.draft is None else Sizes(WIDE.hidden, WIDE.heads, WIDE.kv_heads, flags.draft_inner)
    # As a GPU computes it: the converted demo model is float32, and would fill the disk twice over.
    dtype = torch.bfloat16 if flags.draft is None else None
    total = widen(flags.draft or flags.small, flags.out, wide, device=flags.device, dtype=dtype)
    print(f"{flags.out}: {total / 1e9:.2f} B weights")


if __name__ == "__main__":
    main()
