"""What following grammars costs: compiling, masks token by token, and a server's throughput with and without them.

python benchmarks/grammar.py masks --tokenizer FOLDER --vocab-sizes 49152 151936
python benchmarks/grammar.py serving --port 30000 --concurrency 32 --output-tokens 128
python benchmarks/grammar.py all   # of both back ends, with the demo model, on servers of its own: four minutes
"""

import argparse
import asyncio
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import uvloop
from client import Connection, Timeline
from record import record
from tqdm import tqdm

from corymb.models.grammar_backends import Program, Vocabulary, make_backend
from corymb.models.source import resolve
from corymb.scheduler.messages import Grammar
from corymb.serve.config import cache_folder
from corymb.serve.schemas import any_json_rules, schema_rules
from corymb.serve.strings import whole_answer
from corymb.serve.tokenizer import load_tokenizer

LIST = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 60},
            "kind": {"enum": ["flower", "tree", "grass"]},
            "height_cm": {"type": "number", "minimum": 0, "maximum": 12000},
            "found": {"type": "string", "format": "date"},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "kind", "height_cm", "found", "notes"],
        "additionalProperties": False,
    },
}
GRAMMARS = {
    "json": Grammar("json_object", any_json_rules()),
    "schema": Grammar("json_schema", schema_rules(LIST)),
    "regex": Grammar("regex", whole_answer("[0-9]{4}-[0-9]{2}-[0-9]{2}( [A-Za-z ,.]{3,40})?"), spells_end=True),
}
HOSTILE = [
    {"regex": "".join(f"([a-z]{{0,{900 + number}}})" for number in range(40))},
    {"ebnf": 'root ::= root root | "a" | ""'},
    {"json_schema": {"type": "string", "pattern": "^([a-z]{0,900}[0-9]{0,900}){0,900}$"}},
    {"json_schema": {"properties": {f"900_{n}": {"type": "string", "format": "uri"} for n in range(900)}}},
    {"json_schema": {"oneOf": [{"properties": {"900": {"const": n}}, "required": ["900"]} for n in range(900)]}},
    {"json_schema": {"enum": [f"value {number}" for number in range(20_000)]}},
    {"regex": "|".join(f"a{number}" for number in range(20_000))},
]
PATH = "/v1/completions"


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    masks = kinds.add_parser("masks")
    masks.add_argument("--tokenizer", type=Path, required=True, help="a model folder")
    serving = kinds.add_parser("serving")
    serving.add_argument("--host", default="127.0.0.1")
    serving.add_argument("--grammar-backend", default="xgrammar", help="of the server that runs there")
    everything = kinds.add_parser("all")
    everything.add_argument("--tokenizer", type=Path, help="a model folder; the demo model's if left out")
    everything.add_argument("--model", nargs="*", default=[], help="the demo model if left out")
    for kind in (masks, everything):
        kind.add_argument("--vocab-sizes", type=int, nargs="+", default=[49152, 151936])
        kind.add_argument("--walks", type=int, default=20)
        kind.add_argument("--backends", nargs="+", default=["xgrammar", "llguidance"])
    for kind in (serving, everything):
        kind.add_argument("--port", type=int, default=30000)
        kind.add_argument("--concurrency", type=int, default=32)
        kind.add_argument("--output-tokens", type=int, default=128 if kind is serving else 64)
        kind.add_argument("--rounds", type=int, default=3 if kind is serving else 2)
    options = parser.parse_args()
    if options.kind != "serving":
        for size, backend in itertools.product(options.vocab_sizes, options.backends):
            measure_masks(options, size, backend)
    if options.kind == "serving":
        uvloop.run(measure_serving(options))
    if options.kind == "all":
        measure_servers(options)


def measure_masks(options: argparse.Namespace, size: int, backend_name: str) -> None:
    """Compiles each grammar and follows it along random texts."""
    folder = options.tokenizer or resolve(None, cache_dir=cache_folder(None)).folder
    backend = make_backend(backend_name, vocabulary_of(folder, size))
    for name, grammar in tqdm(GRAMMARS.items(), unit="grammar", desc=f"{backend_name}, {size} tokens"):
        begun_s = time.perf_counter()
        program = backend.compile(grammar)
        compiled_s = time.perf_counter()
        dumped = program.dump()
        dumped_s = time.perf_counter()
        backend.load(grammar, dumped)
        loaded_s = time.perf_counter()
        params = {"grammar": name, "vocabulary": size, "backend": backend_name}
        record("grammar", "grammar_compile_ms", 1e3 * (compiled_s - begun_s), "ms", **params)
        record("grammar", "grammar_load_ms", 1e3 * (loaded_s - dumped_s), "ms", **params)
        record("grammar", "grammar_size_kb", len(dumped) / 1024, "KiB", **params)
        times_us = sorted(1e6 * each for walk in range(options.walks) for each in follow(program, size, walk))
        record("grammar", "mask_us_p50", statistics.median(times_us), "µs", **params)
        record("grammar", "mask_us_p99", times_us[int(len(times_us) * 0.99)], "µs", **params)


def measure_servers(options: argparse.Namespace) -> None:
    """Starts a server for each back end, and ends it."""
    options.host = "127.0.0.1"
    for backend in options.backends:
        options.grammar_backend = backend
        flags = ["--port", str(options.port), "--grammar-backend", backend]
        server = subprocess.Popen([sys.executable, "-P", "-m", "corymb.serve", *options.model, *flags])
        try:
            wait_until_ready(server, f"http://{options.host}:{options.port}/health")
            uvloop.run(measure_serving(options))
        finally:
            server.terminate()
            server.wait()


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    """Asks for its health until it is well."""
    while server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("The server has ended.")


def vocabulary_of(folder: Path, size: int) -> Vocabulary:
    """The tokens of a folder, filled up to `size` with pairs of its own: as long as those of a larger vocabulary."""
    spelling = load_tokenizer(folder).spelling
    tokens = [spelling[index] for index in range(min(size, spelling.num_tokens))]
    pairs = random.Random(0)
    known = set(tokens)
    while len(tokens) < size:
        pair = pairs.choice(tokens[300:]) + pairs.choice(tokens[300:])
        if pair not in known:
            known.add(pair)
            tokens.append(pair)
    return Vocabulary(tokens, spelling.specials, [min(spelling.specials)])


def follow(program: Program, size: int, seed: int) -> list[float]:
    """Seconds that filling a mask and accepting a token took, for each token of a random text."""
    chooser, matcher, bits = random.Random(seed), program.matcher(), np.empty(-(-size // 32), np.int32)
    times: list[float] = []
    while len(times) < 100 and not matcher.is_over:
        begun_s = time.perf_counter()
        matcher.fill(bits)
        filled_s = time.perf_counter() - begun_s
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:size])
        token_id = int(allowed[chooser.randrange(len(allowed))])
        begun_s = time.perf_counter()
        matcher.accept(token_id)
        times.append(filled_s + time.perf_counter() - begun_s)
    return times


async def measure_serving(options: argparse.Namespace) -> None:
    """Output tokens a second without and with grammars, taking turns, and the gaps while hostile grammars come."""
    plain = {"ignore_eos": True}
    held = {"json_schema": LIST, "min_tokens": options.output_tokens}  # the end is held back: as many tokens as plain
    await load(options, held)
    rates: dict[str, list[float]] = {"plain": [], "grammar": []}
    quiet: list[Timeline] = []
    for _ in range(options.rounds):
        for name, fields in (("plain", plain), ("grammar", held)):
            timelines, seconds = await load(options, fields)
            rates[name].append(sum(line.num_output_tokens for line in timelines) / seconds)
            quiet += timelines if name == "plain" else []
    load_size = {"concurrency": options.concurrency, "output_tokens": options.output_tokens}
    params = {**load_size, "backend": options.grammar_backend}
    for name, found in rates.items():
        record("grammar", f"{name}_output_tok_s", statistics.median(found), "tok/s", **params)
    ratio = statistics.median(rates["grammar"]) / statistics.median(rates["plain"])
    record("grammar", "grammar_throughput_ratio", ratio, "x", **params)
    attacks: list[Timeline] = []
    attacker = asyncio.create_task(attack(options, attacks))
    disturbed: list[Timeline] = []
    while len(attacks) < len(HOSTILE) or len(disturbed) < options.rounds * options.concurrency:
        disturbed += (await load(options, plain))[0]
    attacker.cancel()
    record("grammar", "hostile_grammars", len(attacks), "requests", **params)
    record("grammar", "hostile_refused", sum(bool(line.error) for line in attacks), "requests", **params)
    record("grammar", "itl_ms_p99", 1e3 * p99(quiet), "ms", hostile=0, **params)
    record("grammar", "itl_ms_p99", 1e3 * p99(disturbed), "ms", hostile=1, **params)
    record("grammar", "hostile_itl_ratio", p99(disturbed) / p99(quiet), "x", **params)


async def load(options: argparse.Namespace, fields: dict[str, object]) -> tuple[list[Timeline], float]:
    """As many requests as clients, all at once."""
    begun_s = time.perf_counter()
    lines = await asyncio.gather(*(one(options, fields, number) for number in range(options.concurrency)))
    failed = [line.error for line in lines if line.error]
    if failed:
        raise SystemExit(failed[0])
    return list(lines), time.perf_counter() - begun_s


async def one(options: argparse.Namespace, fields: dict[str, object], number: int) -> Timeline:
    connection = Connection(options.host, options.port)
    await connection.open()
    body = {
        "prompt": f"A list of {number + 5} plants, as JSON: ",
        "max_tokens": options.output_tokens,
        "temperature": 0.7,
        "seed": number,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    timeline = await connection.stream(PATH, {**body, **fields})
    await connection.close()
    return timeline


async def attack(options: argparse.Namespace, attacks: list[Timeline]) -> None:
    """Sends hostile grammars, none twice of those that are compiled, until it is cancelled."""
    for number in itertools.count():
        fields = json.loads(json.dumps(HOSTILE[number % len(HOSTILE)]).replace("900", str(500 + number % 400)))
        attacks.append(await one(options, {**fields, "max_tokens": 4}, number))


def p99(timelines: list[Timeline]) -> float:
    """Of the gaps between events."""
    gaps = sorted(b - a for line in timelines for a, b in itertools.pairwise(line.events))
    return gaps[int(len(gaps) * 0.99)]


if __name__ == "__main__":
    main()
