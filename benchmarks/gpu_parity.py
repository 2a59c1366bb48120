"""Whether a GPU's answers are right: against transformers in float32, and against themselves in deterministic mode.

python benchmarks/gpu_parity.py SmolLM2.gguf gemma.gguf

Every token that the server chooses is compared with the best token of transformers for the same tokens before it. Where
they differ, the gap between transformers' two logits must be within what bfloat16 changes in transformers itself.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from offline import greedy, serve
from record import record
from torch import Tensor
from transformers import AutoModelForCausalLM

from corymb.kernels.select import Wish
from corymb.models.build import Built, RunnerOptions, build
from corymb.models.cuda_options import CudaOptions
from corymb.models.source import resolve
from corymb.scheduler.config import SchedulerConfig
from corymb.serve.tokenizer import load_tokenizer

LEAST_AGREEMENT = 0.985
MOST_RUNNING = 64
OPENINGS = ("", "Question: ", "Once upon a time, ", "In one sentence: ", "def answer():\n    # ")
TOPICS = (
    "what is the capital of France",
    "how do plants turn sunlight into sugar",
    "a fisherman who lived by the sea with three daughters",
    "the first ten prime numbers are 2, 3, 5,",
    "why does water boil at a lower temperature in the mountains",
    "sort a list of words by their length",
    "the history of the printing press began when",
    "a letter to an old friend who moved away",
    "the difference between a stack and a queue",
    "три сестры жили в Москве",
)
# What must not change a byte in deterministic mode.
VARIANTS: dict[str, dict[str, object]] = {
    "1 at a time": {"max_running_requests": 1},
    "8 at a time": {"max_running_requests": 8},
    "64 at a time": {},
    "64 at a time, again": {},
    "no cache": {"enable_prefix_cache": False},
    "chunks of 16": {"chunked_prefill_size": 16},
    "chunks of 100, mixed": {"chunked_prefill_size": 100, "enable_mixed_chunk": True},
    "whole prompts": {"chunked_prefill_size": None},
    "no overlap": {"overlap_depth": 0},
    "retraction every 5 steps": {"test_retract_interval": 5},
}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A position at which two models have different best tokens."""

    prompt: int
    position: int
    ours: int
    theirs: int
    gap: float  # of transformers' logits for the two


def main() -> None:
    """Compares every model."""
    options = parse()
    wrong = [model for model in options.models if not right(model, options)]
    raise SystemExit(f"WRONG: {', '.join(wrong)}" if wrong else 0)


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a .gguf file or a folder")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--attention", choices=["auto", "triton", "flashinfer"], default="auto")
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8_e4m3", "fp8_e5m2"], default="auto")
    parser.add_argument("--skip", nargs="*", choices=["parity", "drift", "deterministic"], default=[])
    parser.add_argument("--cache-dir", type=Path, default=Path("/tmp/corymb-cache"))  # noqa: S108
    parser.add_argument("--results", default="gpu_parity")
    return parser.parse_args()


def right(model: str, options: argparse.Namespace) -> bool:
    """Prints and keeps all that is asked of one model."""
    begun = time.perf_counter()
    folder = resolve(model, cache_dir=options.cache_dir, offline=True).folder
    tokenizer = load_tokenizer(folder)
    texts = [f"{opening}{topic}" for topic in TOPICS for opening in OPENINGS]
    prompts = [tokenizer.encode(text) for text in texts[: options.prompts]]
    print(f"{model}: {len(prompts)} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens", flush=True)
    good = True
    if not {"parity", "drift"} <= set(options.skip):
        built = make(folder, options, deterministic=False)
        said = run(built, prompts, options.tokens, {})
        if "drift" not in options.skip:
            drift(built, prompts, options, Path(model).stem)
        built.runner.close()
        del built
        torch.cuda.empty_cache()
        if "parity" not in options.skip:
            good &= parity(folder, prompts, said, options, Path(model).stem)
    if "deterministic" not in options.skip:
        built = make(folder, options, deterministic=True)
        good &= not drift(built, prompts, options, Path(model).stem, deterministic=True)
        built.runner.close()
    print(f"{model}: {'right' if good else 'WRONG'}, {time.perf_counter() - begun:.0f} s", flush=True)
    return good


def make(folder: Path, options: argparse.Namespace, *, deterministic: bool) -> Built:
    """The server's own runner."""
    attention = "triton" if deterministic else options.attention
    asked = RunnerOptions(
        folder,
        device=options.device,
        max_running_requests=MOST_RUNNING,
        max_total_tokens=MOST_RUNNING * 256,
        context_length=2048,
        kv_cache_dtype=options.kv_cache_dtype,
        cuda=CudaOptions(
            attention=Wish(both=attention, deterministic=deterministic),
            graph_max_tokens=MOST_RUNNING,
            max_step_tokens=16384 + MOST_RUNNING,
        ),
    )
    return build(asked, lambda name, seconds, detail: print(f"  {name} {seconds:.1f} s {detail}") if seconds else None)


def run(built: Built, prompts: Sequence[Sequence[int]], num_tokens: int, variant: dict[str, object]) -> list[list[int]]:
    """The tokens that the server chooses."""
    scheduler = {name: value for name, value in variant.items() if name != "enable_prefix_cache"}
    config = SchedulerConfig(**({"max_running_requests": MOST_RUNNING} | scheduler))  # type: ignore[arg-type]
    cached = bool(variant.get("enable_prefix_cache", True))
    return serve(built, greedy(prompts, num_tokens), config, enable_prefix_cache=cached)


def drift(
    built: Built,
    prompts: Sequence[Sequence[int]],
    options: argparse.Namespace,
    model: str,
    *,
    deterministic: bool = False,
) -> int:
    """How many requests say something else under some variant than 64 at a time; printed by variant."""
    base = run(built, prompts, options.tokens, {})
    changed = 0
    for name, variant in VARIANTS.items():
        begun = time.perf_counter()
        said = run(built, prompts, options.tokens, variant)
        different = [index for index, (one, other) in enumerate(zip(said, base, strict=True)) if one != other]
        changed += len(different)
        print(
            f"  {name:26} {len(different)} of {len(prompts)} differ ({time.perf_counter() - begun:.1f} s)", flush=True
        )
        for index in different[:3] if deterministic else []:
            at = next(at for at, (a, b) in enumerate(zip(said[index], base[index], strict=True)) if a != b)
            print(f"    prompt {index} at token {at}: {said[index][at]} instead of {base[index][at]}")
        mode = "deterministic" if deterministic else "fast"
        record(options.results, "changed_requests", len(different), "requests", model=model, mode=mode, variant=name)
    return changed


def parity(
    folder: Path, prompts: Sequence[Sequence[int]], said: list[list[int]], options: argparse.Namespace, model: str
) -> bool:
    """Compares chosen tokens with transformers' best ones."""
    exact = logits_of(folder, prompts, said, torch.float32, options.device)
    rounded = logits_of(folder, prompts, said, torch.bfloat16, options.device)
    found, noises, total = [], [], 0
    for index, (tokens, logits, others) in enumerate(zip(said, exact, rounded, strict=True)):
        top = logits.topk(2, dim=-1)
        noises.append(((others - logits).gather(-1, top.indices)).diff(dim=-1).abs().flatten())
        for at, token in enumerate(tokens):
            total += 1
            best = int(top.indices[at, 0])
            if token != best:
                found.append(Disagreement(index, at, token, best, float(logits[at, best] - logits[at, token])))
    noise = torch.cat(noises)
    agreement = 1 - len(found) / total
    most, p99 = float(noise.max()), float(noise.quantile(0.99))
    print(f"  argmax agreement {agreement:.4%} of {total}")
    print(f"  bfloat16 moves transformers' own top-two gap by up to {most:.3f}, at 99 % by less than {p99:.3f}")
    for one in found:
        print(f"    prompt {one.prompt} token {one.position}: ours {one.ours}, theirs {one.theirs}, gap {one.gap:.4f}")
    params = {"model": model, "attention": options.attention, "kv_cache_dtype": options.kv_cache_dtype}
    record(options.results, "argmax_agreement", agreement, "", positions=total, **params)
    record(options.results, "largest_disagreement_gap", max((one.gap for one in found), default=0.0), "logit", **params)
    record(options.results, "bf16_gap_noise_max", most, "logit", **params)
    record(options.results, "bf16_gap_noise_p99", p99, "logit", **params)
    return agreement >= LEAST_AGREEMENT and all(one.gap <= most for one in found)


@torch.inference_mode()
def logits_of(
    folder: Path, prompts: Sequence[Sequence[int]], said: list[list[int]], dtype: torch.dtype, device: str
) -> list[Tensor]:
    """transformers' logits [tokens, V] for each chosen token, float32 on the host."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").to(device).eval()
    logits = []
    for prompt, tokens in zip(prompts, said, strict=True):
        ids = torch.tensor([[*prompt, *tokens[:-1]]], device=device)
        logits.append(model(ids, use_cache=False).logits[0, len(prompt) - 1 :].float().cpu())
    del model
    torch.cuda.empty_cache()
    return logits


if __name__ == "__main__":
    main()
