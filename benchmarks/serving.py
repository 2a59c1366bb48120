"""Loads a server over HTTP in a closed loop and reports throughput, time to first token and inter-token latency.

python benchmarks/serving.py --concurrency 1 8 32 --input-tokens 128 --output-tokens 64
python benchmarks/serving.py --dataset tape --concurrency 64 --output-tokens 256 --metric overhead_tok_s
"""

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import uvloop
from client import Connection, Timeline
from record import record
from step_metrics import StepWatch
from tqdm import tqdm


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: a closed loop of `concurrency` clients until `num_requests` are answered."""

    path: str
    bodies: list[dict[str, object]]
    concurrency: int


def main() -> None:
    """Runs every asked-for concurrency in turn."""
    options = parse()
    check_alive(options)
    for concurrency in options.concurrency:
        count = options.num_requests or max(8, 4 * concurrency)
        load = Load("/v1/completions", list(bodies(options, count)), concurrency)
        warm = Load(load.path, list(bodies(options, min(concurrency, 4))), concurrency)
        uvloop.run(run(options, warm, show=False))
        with StepWatch(options.host, options.port, least_running=int(0.9 * concurrency)) as watch:
            started = time.perf_counter()
            timelines = uvloop.run(run(options, load, show=True))
            wall_s = time.perf_counter() - started
        report(options, concurrency, timelines, wall_s, watch.figures() if options.step_metrics else {})


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--api-key")
    parser.add_argument("--model", help="served name; default: the server's first")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--num-requests", type=int, help="per concurrency; default: four for every client, at least 8")
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--dataset", choices=["random", "shared-prefix", "tape"], default="random")
    parser.add_argument("--prefix-tokens", type=int, default=0, help="shared-prefix: tokens that all share")
    parser.add_argument("--token-range", type=int, nargs=2, default=[1000, 40000])
    parser.add_argument("--seed", type=int, default=int(time.time()), help="another seed, other prompts: no cache hits")
    parser.add_argument("--step-metrics", action="store_true", help="also the server's own figures of its steps")
    parser.add_argument("--metric", default="serving_output_tok_s", help="name that the throughput is recorded under")
    parser.add_argument("--label", default="", help="kept with the figures")
    parser.add_argument(
        "--record", metavar="NAME", default="", help="append the figures to benchmarks/results/NAME.jsonl"
    )
    return parser.parse_args()


def check_alive(options: argparse.Namespace) -> None:
    """Ends with a sentence when nothing serves there; fills in the model's name."""
    address = f"http://{options.host}:{options.port}/v1/models"
    request = urllib.request.Request(address)
    if options.api_key:
        request.add_header("Authorization", f"Bearer {options.api_key}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            models = json.load(answer)["data"]
    except OSError as error:
        raise SystemExit(f"No server answers at {address} ({error}); start one with `serve`.") from error
    options.model = options.model or models[0]["id"]


def bodies(options: argparse.Namespace, count: int) -> Iterator[dict[str, object]]:
    """Makes the request bodies."""
    rng = random.Random(options.seed + count)
    low, high = options.token_range
    prefix = [rng.randrange(low, high) for _ in range(options.prefix_tokens)]
    for _ in range(count):
        prompt: str | list[int]
        if options.dataset == "tape":
            prompt = f'TAPE "{"".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=options.output_tokens + 8))}"'
        else:
            prompt = prefix + [rng.randrange(low, high) for _ in range(options.input_tokens - len(prefix))]
        yield {
            "model": options.model,
            "prompt": prompt,
            "max_tokens": options.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


async def run(options: argparse.Namespace, load: Load, *, show: bool) -> list[Timeline]:
    """Sends a load and gathers what came back."""
    waiting = iter(load.bodies)
    done: list[Timeline] = []
    with tqdm(
        total=len(load.bodies),
        unit="req",
        disable=not show or not sys.stderr.isatty(),
        desc=f"{load.concurrency} clients",
    ) as bar:

        async def client() -> None:
            connection = Connection(options.host, options.port, options.api_key)
            await connection.open()
            for body in waiting:
                done.append(await connection.stream(load.path, body))
                bar.update()
            await connection.close()

        await asyncio.gather(*(client() for _ in range(min(load.concurrency, len(load.bodies)))))
    return done


def report(
    options: argparse.Namespace,
    concurrency: int,
    timelines: list[Timeline],
    wall_s: float,
    steps: dict[str, float],
) -> None:
    """Prints the figures of one concurrency and, if asked to, keeps them."""
    failed = [timeline for timeline in timelines if timeline.error]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(timelines)} requests failed, the first with: {failed[0].error}")
    ttft = [1000 * (timeline.events[0] - timeline.started) for timeline in timelines]
    gaps = [1000 * (b - a) for timeline in timelines for a, b in itertools.pairwise(timeline.events)]
    tokens = sum(timeline.num_output_tokens for timeline in timelines)
    figures = {
        options.metric: (tokens / wall_s, "tok/s"),
        "ttft_ms_p50": (statistics.median(ttft), "ms"),
        "ttft_ms_p99": (percentile(ttft, 0.99), "ms"),
        "itl_ms_p50": (statistics.median(gaps), "ms"),
        "itl_ms_p99": (percentile(gaps, 0.99), "ms"),
        "request_throughput": (len(timelines) / wall_s, "req/s"),
        "cached_tokens": (sum(timeline.num_cached_tokens for timeline in timelines), "tokens"),
        **{metric: (value, "ms") for metric, value in steps.items()},
    }
    params = {
        "concurrency": concurrency,
        "requests": len(timelines),
        "input_tokens": options.input_tokens,
        "output_tokens": options.output_tokens,
        "dataset": options.dataset,
        "label": options.label or options.model,
    }
    for metric, (value, unit) in figures.items():
        if options.record:
            record(options.record, metric, value, unit, **params)
        else:
            print(f"{metric:24} {value:12.3f} {unit:8} concurrency {concurrency}", flush=True)


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


if __name__ == "__main__":
    main()
