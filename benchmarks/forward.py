"""Times a model's steps alone: no scheduler, no tree, no HTTP. Rows lie scattered over the pools.

python benchmarks/forward.py --rows 1 8 32 --chunks 128 512
python benchmarks/forward.py --dtype float32 --rows 1 8 32
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from record import record
from tqdm import tqdm

from corymb.kernels.torch_attention import TorchAttention
from corymb.models.architectures import read_config
from corymb.models.decoder import Decoder
from corymb.models.load import TORCH_DTYPES, LoadOptions, load_model
from corymb.models.precision import resolve_precision
from corymb.models.sequences import Sequences
from corymb.models.source import resolve


def main() -> None:
    """Times decode steps at every number of rows, then chunks of one prompt."""
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = load(options)
    for num_rows in options.rows:
        seconds = best(lambda rows=num_rows: decode(model, rows, options), options.repeats, f"decode {num_rows}")
        report(options, "decode_step_ms", seconds * 1e3, "ms", rows=num_rows, context=options.context)
    for chunk in options.chunks:
        seconds = best(lambda width=chunk: prefill(model, width), options.repeats, f"prefill {chunk}")
        report(options, "prefill_tok_s", chunk / seconds, "tok/s", chunk=chunk)


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as `serve` takes it; default: the demo model")
    parser.add_argument("--cache-dir", type=Path, default=Path("~/.cache/corymb").expanduser())
    parser.add_argument("--load-format", choices=["auto", "dummy"], default="auto")
    parser.add_argument("--dtype", choices=["auto", "float32", "float16", "bfloat16"], default="auto")
    parser.add_argument("--quantization", choices=["int8"])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=160, help="tokens that each decoding row has behind it")
    parser.add_argument("--chunks", type=int, nargs="*", default=[128, 512, 2048])
    parser.add_argument("--repeats", type=int, default=20, help="the fastest counts: others may use the machine")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dry-run", action="store_true", help="print, but record nothing")
    return parser.parse_args()


def load(options: argparse.Namespace) -> Decoder:
    """The model as a server would load it on a CPU."""
    folder = resolve(options.model, cache_dir=options.cache_dir).folder
    config = read_config(folder)
    precision = resolve_precision(options.dtype, options.quantization, device="cpu", saved=config.dtype)
    loading = LoadOptions(
        dtype=TORCH_DTYPES[precision.compute], weights=precision.weights, load_format=options.load_format
    )
    return load_model(folder, config, loading)


def best(step: Callable[[], float], repeats: int, name: str) -> float:
    """The shortest time of several, in seconds."""
    return min(step() for _ in tqdm(range(repeats), desc=name, leave=False))


def decode(model: Decoder, num_rows: int, options: argparse.Namespace) -> float:
    """Seconds of one decode step, logits included."""
    sequences = written(model, num_rows + 1, options.context + 1)
    sequences.lengths[1:] = options.context
    return timed(model, sequences, {row: [7 * row] for row in range(1, num_rows + 1)})


def prefill(model: Decoder, width: int) -> float:
    """Seconds of one prompt's first chunk, with the last token's logits."""
    return timed(model, written(model, 2, width), {1: list(range(width))})


def written(model: Decoder, num_rows: int, context_length: int) -> Sequences:
    """Pools as they are after some time: every slot holds numbers."""
    sequences = Sequences.empty(model.attention_specs, num_rows=num_rows, context_length=context_length)
    for layer in sequences.kv:
        layer.keys.normal_()
        layer.values.normal_()
    return sequences


def timed(model: Decoder, sequences: Sequences, tokens: dict[int, list[int]]) -> float:
    """Seconds from token ids to logits."""
    attention = TorchAttention()
    last = torch.from_numpy(np.cumsum([len(ids) for ids in tokens.values()]) - 1)
    begun_s = time.perf_counter()
    model.logits(sequences.step(model, attention, tokens)[last])
    return time.perf_counter() - begun_s


def report(options: argparse.Namespace, metric: str, value: float, unit: str, **params: int) -> None:
    """Prints a figure and, unless told otherwise, records it."""
    described = {
        "model": options.model or "SmolLM2-135M-Instruct",
        "weights": options.quantization or options.dtype,
        "threads": torch.get_num_threads(),
        **params,
    }
    if options.dry_run:
        print(f"{metric:24} {value:12.3f} {unit:8} {described}", flush=True)
    else:
        record("forward", metric, value, unit, **described)


if __name__ == "__main__":
    main()
