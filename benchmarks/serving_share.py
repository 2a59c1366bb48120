"""What a loaded server gives of what its steps allow: output tokens a second over HTTP against steps measured offline.

python benchmarks/serving_share.py llama-3.1-8b        # reads results/gpu.jsonl and gpu_serving.jsonl of this commit

C clients that each send I tokens and want O get, all of them once, C × O tokens in (O - 1) steps of C rows and C × I
tokens of prefill: the first token of an answer comes with its prompt. The steps' rows have I + O ÷ 2 tokens on average.
"""

import argparse
from collections.abc import Iterator

from gpu_decode import TOKENS_SINCE
from record import figures, record

NAME = "gpu_serving"
Figure = dict[str, object]


def main() -> None:
    """Records and judges every load of the shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape")
    parser.add_argument("--least", type=float, default=0.96)
    parser.add_argument("--from-clients", type=int, default=64, help="fewer are recorded, and not judged")
    options = parser.parse_args()
    found = list(shares(options.shape, figures("gpu"), figures(NAME)))
    if not found:
        raise SystemExit(f"No load of {options.shape} has its steps and its prefill beside it, all of one commit.")
    low = []
    for share, params in found:
        record(NAME, "serving_share_of_offline", share, "x", **params)
        if share < options.least and int(params["concurrency"]) >= options.from_clients:
            low.append(f"{share:.3f} at {params['concurrency']}")
    raise SystemExit(f"TOO LITTLE: {', '.join(low)}" if low else 0)


def shares(shape: str, steps: list[Figure], loads: list[Figure]) -> Iterator[tuple[float, dict[str, float | str]]]:
    """Of every concurrency's last load, if the steps of its commit were measured."""
    last = {}
    for load in loads:
        if load["metric"] == "serving_output_tok_s" and _params(load).get("label") == shape:
            last[_params(load)["concurrency"]] = load
    for clients, load in sorted(last.items(), key=lambda item: int(str(item[0]))):
        num_inputs, num_outputs = (int(str(_params(load)[name])) for name in ("input_tokens", "output_tokens"))
        context = int(num_inputs + num_outputs / 2 - TOKENS_SINCE)
        same = [one for one in steps if one["commit"] == load["commit"] and _params(one).get("shape") == shape]
        step_ms = _last(same, "decode_step_ms", batch=clients, context=context)
        prefill = _last(same, "prefill_tok_s", tokens=num_inputs)
        if step_ms is None or prefill is None:
            continue
        allowed = allowed_tok_s(int(str(clients)), num_inputs, num_outputs, step_s=step_ms / 1e3, prefill_tok_s=prefill)
        yield (
            float(str(load["value"])) / allowed,
            {
                "shape": shape,
                "concurrency": int(str(clients)),
                "input_tokens": num_inputs,
                "output_tokens": num_outputs,
                "served_tok_s": float(str(load["value"])),
                "allowed_tok_s": round(allowed, 1),
                "step_ms": step_ms,
                "prefill_tok_s": prefill,
            },
        )


def allowed_tok_s(clients: int, num_inputs: int, num_outputs: int, *, step_s: float, prefill_tok_s: float) -> float:
    """Output tokens a second of a server whose time goes into steps and prompts alone."""
    return clients * num_outputs / ((num_outputs - 1) * step_s + clients * num_inputs / prefill_tok_s)


def _params(figure: Figure) -> dict[str, object]:
    params = figure["params"]
    assert isinstance(params, dict), figure
    return params


def _last(figures_: list[Figure], metric: str, **wanted: object) -> float | None:
    found = [one for one in figures_ if one["metric"] == metric and wanted.items() <= _params(one).items()]
    return float(str(found[-1]["value"])) if found else None


if __name__ == "__main__":
    main()
