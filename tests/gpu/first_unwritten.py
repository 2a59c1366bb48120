"""Runs the steps of a model made for tests again and again, outputs poisoned, and says which operation first gave NaN.

python tests/gpu/first_unwritten.py [mamba] [--rounds 20]      # on a GPU; with nothing found it says so

Once, on an H200, the Mamba 2 model of test_cuda_runner said token 0, which is what NaN gives, in place of 16; the
interpreter shows no operation that reads what none wrote. Each round runs the steps eagerly and by graphs, and eagerly
with a look at every operation's inputs and outputs, which waits for it: what fails only in the first two is a race.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runner")]

import test_cuda_runner as cases  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from corymb.kernels.triton_attention import TritonAttention  # noqa: E402
from corymb.kernels.triton_operations import TritonOperations  # noqa: E402
from corymb.kernels.triton_recurrence import TritonRecurrence  # noqa: E402
from corymb.models.cuda_linear import CudaLinear  # noqa: E402

MODELS = {"mamba": cases.MAMBA, "delta": cases.DELTA_NET, "convolution": cases.SHORT_CONVOLUTION, "llama": cases.TINY}
WATCHED: list[tuple[type, str]] = [
    *((TritonRecurrence, name) for name in ("convolve", "scan", "apply_delta_rule", "gate")),
    *((TritonOperations, name) for name in ("rms_norm", "add_rms_norm", "silu_mul", "prepare_heads")),
    (TritonAttention, "attend"),
    *((CudaLinear, name) for name in ("__call__", "fused")),
]


def main() -> None:
    """Every model, round by round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    poison()
    wrong = 0
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            path = write(Path(folder), MODELS[name])
            plans = script()
            right = tokens(cases.cpu_runner(path, MODELS[name]), plans)
            for round_ in range(options.rounds):
                for kind in ("eager", "graphs", "watched"):
                    said = say(path, MODELS[name], plans, kind)
                    if said != right:
                        wrong += 1
                        print(f"{name}, round {round_}, {kind}: {said} instead of {right}", flush=True)
        print(f"{name}: {options.rounds} rounds, {wrong} wrong so far", flush=True)
    raise SystemExit(1 if wrong else 0)


def write(folder: Path, config: dict[str, Any]) -> Path:
    """The model's folder, as the test writes it."""
    (folder / "config.json").write_text(json.dumps(config))
    shapes = cases.expected_tensors(cases.read_config(folder).decoder)
    invented = cases.DummyWeights(shapes, torch.float32, torch.device("cpu"))
    save_file({name: invented.take(name) for name in shapes}, folder / "model.safetensors")
    return folder


def script() -> list[Any]:
    """The test's plans."""
    plans, _ = cases.script(5, sliding=False, settings=[cases.GREEDY] * 3, sizes=(75, 4, 14))
    return [cases.with_states(plan) for plan in plans]


def say(path: Path, config: dict[str, Any], plans: list[Any], kind: str) -> list[list[int]]:
    """The tokens of a new runner."""
    with pytest.MonkeyPatch.context() as patch:
        if kind == "watched":
            watch(patch)
        runner = cases.gpu_runner(path, config, graph_max_tokens=8 if kind == "graphs" else 0)
        return tokens(runner, plans)


def tokens(runner: Any, plans: list[Any]) -> list[list[int]]:
    """Of every step."""
    return [one.token_ids.tolist() for one in cases.run(runner, plans)]


def watch(patch: pytest.MonkeyPatch) -> None:
    """Looks at what goes into every operation, and at what comes out."""
    for owner, name in WATCHED:
        patch.setattr(owner, name, watched(f"{owner.__name__}.{name}", owner.__dict__[name]))


def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that tells of NaN."""

    def look(*args: Any, **named: Any) -> Any:
        before = nan_in([*args[1:], *named.values()])
        out = method(*args, **named)
        after = nan_in([out, *args[1:], *named.values()])
        if after and not before:
            print(f"  {name} gave NaN: {after} of inputs {shapes([*args[1:], *named.values()])}", flush=True)
        return out

    return look


def nan_in(things: list[Any]) -> list[str]:
    """Which tensors hold NaN, pools of states and keys left out: those are right to hold it elsewhere."""
    return [
        f"{tuple(one.shape)}: {int(one.isnan().any(dim=-1).sum())} lines"
        for one in things
        if isinstance(one, Tensor) and one.is_floating_point() and one.dim() < 4 and bool(one.isnan().any())
    ]


def shapes(things: list[Any]) -> list[tuple[int, ...]]:
    """Of tensors."""
    return [tuple(one.shape) for one in things if isinstance(one, Tensor)]


def poison() -> None:
    """`torch.empty` gives NaN, as in tests."""
    empty = torch.empty

    def poisoned(*size: Any, **options: Any) -> Tensor:
        if options.get("device") == "meta":
            return empty(*size, **options)
        tensor = torch.zeros(*size, **options)
        if tensor.is_floating_point():
            return tensor.fill_(float("nan"))
        return tensor if tensor.dtype == torch.bool else tensor.fill_(torch.iinfo(tensor.dtype).min)

    torch.empty = poisoned  # type: ignore[assignment]


if __name__ == "__main__":
    main()
