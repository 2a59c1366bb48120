"""The flags of `serve`, in groups. Names are SGLang's where the thing is the same."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn, get_args

from corymb.cache.config import Eviction, WritePolicy
from corymb.scheduler.config import Order, PrefetchPolicy
from corymb.serve.config import GrammarBackend
from corymb.serve.flag_values import (
    above_zero,
    chunk,
    fraction,
    minus_one,
    names,
    natural,
    not_negative,
    port,
    positive,
    share,
    text,
)
from corymb.serve.gpu_options import MAX_GRAPH_TOKENS, Backend, DecodeGraphs, KvCacheType, PrefillGraphs
from corymb.serve.reasoning_syntaxes import REASONING
from corymb.serve.speculative_flags import add_speculative
from corymb.serve.tool_syntaxes import TOOL_SYNTAXES

_DESCRIPTION = """\
Serves a language model over an OpenAI-compatible HTTP API.
MODEL is a folder, a GGUF file or a hub id; without one, the demo model SmolLM2-135M-Instruct is served."""
_EPILOG = """\
Environment: CORYMB_API_KEY and CORYMB_ADMIN_API_KEY hold keys, CORYMB_CACHE the cache folder;
HF_HUB_OFFLINE=1 is --offline.
Ctrl-C or SIGTERM ends open requests first (--drain-timeout); a second Ctrl-C stops at once."""


class Parser(argparse.ArgumentParser):
    """Answers mistakes in one sentence and exits with 2."""

    def error(self, message: str) -> NoReturn:
        """Ends the process."""
        self.exit(2, f"{self.prog}: {message} (See {self.prog} --help.)\n")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses all arguments; for an unknown flag, names the closest one."""
        flags, unknown = self.parse_known_args(arguments)
        for argument in unknown:
            if argument.startswith("-"):
                self._refuse_flag(argument.partition("=")[0])
        if unknown:
            self.error(f"Unexpected argument {unknown[0]!r}: give one MODEL, and a value only to flags that take one.")
        if flags.positional_model is not None and flags.model_path is not None:
            self.error("Give MODEL or --model-path, not both.")
        flags.model_path = flags.positional_model if flags.model_path is None else flags.model_path
        return flags

    def _refuse_flag(self, name: str) -> NoReturn:
        if name in REFUSED:
            self.error(f"{name}: {REFUSED[name]}")
        known = [flag for flag in self._option_string_actions if not flag.startswith("--test-")]
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        self.error(f"Unknown flag {name}." + (f" Did you mean {close[0]}?" if close else ""))


# Flags of other servers that are refused with a reason.
REFUSED = {
    "--trust-remote-code": "code from a model folder is never run; models are built from known architectures only.",
    "--enable-torch-compile": "its kernels are fused by hand and its steps captured as graphs; leave the flag out.",
}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """One line a flag where the terminal allows."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=46)


def parser(program: str) -> Parser:
    """The parser of `serve`."""
    made = Parser(
        program,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage=f"{program} [MODEL] [flags]",
        allow_abbrev=False,
        formatter_class=_Formatter,
    )
    made.add_argument("--version", action="version", version=f"corymb {installed_version()}")
    _add_model(made.add_argument_group("model and tokenizer"))
    _add_http(made.add_argument_group("HTTP"))
    _add_scheduler(made.add_argument_group("scheduler"))
    _add_memory(made.add_argument_group("memory"))
    _add_runtime(made.add_argument_group("runtime"))
    _add_gpu(made.add_argument_group("GPU"))
    add_speculative(made.add_argument_group("speculation"))
    _add_parallel(made.add_argument_group("several GPUs and nodes"))
    _add_tests(made)
    return made


def _add_model(group: Any) -> None:
    add = group.add_argument
    add(
        "positional_model",
        metavar="MODEL",
        nargs="?",
        type=text,
        help="folder, .gguf file, hub id, or corymb/tape, corymb/hash, …",
    )
    add("--model-path", "--model", metavar="MODEL", type=text, help="the same as a flag")
    add("--tokenizer-path", metavar="MODEL", type=text, help="take the tokenizer from elsewhere")
    add(
        "--served-model-name",
        metavar="NAME",
        action="extend",
        type=names,
        help="the name that clients see, or several with commas between (default: from MODEL)",
    )
    add("--revision", metavar="REV", type=text, help="branch, tag or commit of a hub model")
    add("--load-format", choices=("auto", "dummy"), help="dummy: random weights from the config alone (default: auto)")
    add(
        "--dtype",
        choices=("auto", "float32", "float16", "bfloat16"),
        help="of weights and KV cache; on a CPU, float16 (auto) is for weights alone",
    )
    add("--quantization", choices=("int8",), help="int8 weights, activations quantised as they come; changes numbers")
    add("--context-length", metavar="N", type=positive, help="tokens a request may span (default: the model's)")
    add(
        "--chat-template",
        metavar="FILE",
        type=text,
        help="a Jinja file, chatml, or one of several templates that the model names (default: the model's own)",
    )
    add(
        "--tool-call-parser",
        metavar="NAME",
        choices=("auto", "none", *TOOL_SYNTAXES),
        help=f"how the model writes calls: auto (by its template; default), none, {', '.join(TOOL_SYNTAXES)}",
    )
    add(
        "--reasoning-parser",
        metavar="NAME",
        choices=("auto", *REASONING),
        help=f"tell reasoning apart (default: it is content): auto (by the template), {', '.join(REASONING)}",
    )
    add(
        "--cache-dir",
        "--download-dir",
        metavar="DIR",
        type=text,
        help="for downloads and conversions (~/.cache/corymb)",
    )
    add("--offline", action="store_true", help="use only what is in the cache")


def _add_http(group: Any) -> None:
    add = group.add_argument
    add("--host", metavar="HOST", type=text, help="address to listen on (default: 127.0.0.1)")
    add("--port", metavar="PORT", type=port, help="port to listen on; 0 takes a free one (default: 30000)")
    add("--api-key", metavar="KEY", help="users must send it; also from the environment, see below")
    add("--api-key-file", metavar="FILE", help="a file that holds the key")
    add(
        "--admin-api-key",
        metavar="KEY",
        help="for admin routes (default: open on a loopback server without keys, else closed)",
    )
    add("--admin-api-key-file", metavar="FILE", help="a file that holds the key")
    add("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    add("--log-requests", action="store_true", help="one line a request, without its text")
    add("--decode-log-interval", metavar="N", type=positive, help="a line of figures every N steps (default: none)")
    add("--enable-metrics", "--enable-cache-report", action="store_true", help="always on; for existing commands")
    add("--incremental-streaming-output", action="store_true", help="/generate streams deltas, not the text so far")
    add(
        "--enable-response-store",
        action="store_true",
        help="keep responses for previous_response_id (64 MiB of memory)",
    )
    add("--allow-auto-truncate", action="store_true", help="cut max_tokens to what the context has left")
    add(
        "--sampling-defaults",
        choices=("model", "openai"),
        help="from generation_config.json, or OpenAI's (default: model)",
    )
    add("--max-request-bytes", metavar="N", type=positive, help="largest request body (default: 16 MiB)")
    add("--disable-web", action="store_true", help="no web page at /")


def _add_scheduler(group: Any) -> None:
    add = group.add_argument
    add("--schedule-policy", choices=get_args(Order), help="order of waiting requests (default: fcfs)")
    add(
        "--schedule-conservativeness",
        metavar="X",
        type=above_zero,
        help="above 1 admits later and retracts less (default: 1)",
    )
    add("--max-running-requests", metavar="N", type=positive, help="requests in the batch (default: 256)")
    add(
        "--max-queued-requests",
        metavar="N",
        type=natural,
        help="requests that may wait; more get 503 (default: no bound)",
    )
    add(
        "--queue-timeout",
        dest="queue_timeout_s",
        metavar="S",
        type=above_zero,
        help="a longer wait gets 503 (default: none)",
    )
    add("--max-prefill-tokens", metavar="N", type=positive, help="prompt tokens admitted in one step (default: 16384)")
    add(
        "--chunked-prefill-size",
        metavar="N",
        type=chunk,
        help="prompt tokens computed in one step; -1: whole prompts (2048; GPU: by its memory)",
    )
    add("--enable-mixed-chunk", action="store_true", help="prompt chunks and running requests share steps")
    add("--enable-priority-scheduling", action="store_true", help="heed the field priority")
    add("--schedule-low-priority-values-first", action="store_true", help="lower values are more urgent")
    add(
        "--priority-scheduling-preemption-threshold",
        metavar="N",
        type=natural,
        help="preempt above this gap (default: 10)",
    )
    add(
        "--retraction-policy",
        choices=("length", "priority"),
        help="whom to put back when memory runs out (default: length)",
    )
    add(
        "--in-batch-prefix-threshold",
        metavar="N",
        type=minus_one,
        help="wait for a shared prefix from N tokens; -1: off (32)",
    )
    add("--random-seed", metavar="N", type=natural, help="of requests that bring no seed, and of the order random")


def _add_memory(group: Any) -> None:
    add = group.add_argument
    add(
        "--mem-fraction-static",
        metavar="X",
        type=fraction,
        help="share of memory for weights and pools (default: by device)",
    )
    add("--max-total-tokens", metavar="N", type=positive, help="tokens in the KV pool (default: what fits)")
    add("--page-size", metavar="N", type=positive, help="tokens a page (default: 1)")
    add(
        "--swa-full-tokens-ratio",
        metavar="X",
        type=share,
        help="tokens in the pool of sliding-window layers for each in the full one (default: 0.8)",
    )
    add(
        "--mamba-full-memory-ratio",
        metavar="X",
        type=above_zero,
        help="memory for recurrent states for each byte of keys and values (default: 0.9)",
    )
    add("--max-mamba-cache-size", metavar="N", type=positive, help="recurrent states to keep, instead of that ratio")
    add(
        "--mamba-track-interval",
        metavar="N",
        type=positive,
        help="tokens between two snapshots of a recurrent state (default: 256, or a page)",
    )
    add(
        "--mamba-max-states-per-path",
        metavar="N",
        type=positive,
        help="recurrent states that the cache keeps of one sequence (default: no bound)",
    )
    add("--radix-eviction-policy", choices=get_args(Eviction), help="what leaves the cache first (default: lru)")
    add("--radix-eviction-slack", metavar="N", type=positive, help="tokens of a conversation's end for tlru (1024)")
    add("--enable-hierarchical-cache", action="store_true", help="keep what leaves the cache in host memory")
    add("--hicache-ratio", metavar="X", type=above_zero, help="host memory for each byte of the KV pools (default: 2)")
    add("--hicache-size", metavar="GB", type=above_zero, help="host memory, instead of that ratio")
    add("--hicache-write-policy", choices=get_args(WritePolicy), help="when it is copied (default: write_through)")
    add(
        "--hicache-storage-backend",
        choices=("file",),
        help="keep in files what the host holds, for later starts too",
    )
    add("--hicache-storage-dir", metavar="DIR", type=text, help="the files' folder")
    add("--hicache-storage-size", metavar="GB", type=above_zero, help="their bound (default: half of the free disk)")
    add(
        "--hicache-storage-prefetch-policy",
        choices=get_args(PrefetchPolicy),
        help="how long requests wait for what is read there (default: timeout)",
    )
    add("--disable-radix-cache", action="store_true", help="no prefix reuse between requests")


def _add_runtime(group: Any) -> None:
    add, seconds = group.add_argument, above_zero
    add("--device", choices=("auto", "cpu", "cuda"), help="default: auto")
    add(
        "--grammar-backend",
        choices=get_args(GrammarBackend),
        help="what makes answers follow schemas and grammars (default: xgrammar where it is installed)",
    )
    add("--disable-overlap-schedule", action="store_true", help="read each step's result before planning the next")
    add(
        "--watchdog-timeout",
        dest="watchdog_timeout_s",
        metavar="S",
        type=seconds,
        help="end a hung server (default: 300)",
    )
    add(
        "--heartbeat-timeout",
        dest="heartbeat_timeout_s",
        metavar="S",
        type=seconds,
        help="/health fails after (default: 10)",
    )
    add(
        "--drain-timeout",
        dest="drain_timeout_s",
        metavar="S",
        type=not_negative,
        help="for open requests at the end (30)",
    )
    add("--startup-timeout", dest="startup_timeout_s", metavar="S", type=seconds, help="give up starting after (1800)")


def _add_gpu(group: Any) -> None:
    add = group.add_argument
    add("--attention-backend", choices=get_args(Backend), help="of prompts and decode (default: auto)")
    add("--prefill-attention-backend", choices=get_args(Backend), help="of prompts alone")
    add("--decode-attention-backend", choices=get_args(Backend), help="of decode alone")
    add("--kv-cache-dtype", choices=get_args(KvCacheType), help="auto: that of the model (default)")
    add(
        "--cuda-graph-max-bs-decode",
        "--cuda-graph-max-bs",
        metavar="N",
        type=positive,
        help=f"requests in the largest captured decode step (default: {MAX_GRAPH_TOKENS})",
    )
    add("--cuda-graph-backend-decode", choices=get_args(DecodeGraphs), help="default: full")
    add("--cuda-graph-backend-prefill", choices=get_args(PrefillGraphs), help="default: piecewise")
    add("--disable-cuda-graph", action="store_true", help="queue every step kernel by kernel")
    add("--enable-deterministic-inference", action="store_true", help="the same bits whatever runs beside a request")


def _add_parallel(group: Any) -> None:
    add = group.add_argument
    add("--tp-size", "--tensor-parallel-size", "--tp", metavar="N", type=positive, help="GPUs that share the model (1)")
    add("--base-gpu-id", metavar="N", type=natural, help="index of the first GPU (default: 0)")
    add("--gpu-id-step", metavar="N", type=positive, help="from one rank's GPU to the next (default: 1)")
    add("--nnodes", metavar="N", type=positive, help="hosts that share the model; start the server on each (1)")
    add("--node-rank", metavar="N", type=natural, help="of this host; node 0 serves HTTP (default: 0)")
    add("--dist-init-addr", metavar="HOST:PORT", type=text, help="where nodes meet: on node 0, with the port above it")
    add(
        "--node-timeout",
        dest="node_timeout_s",
        metavar="S",
        type=above_zero,
        help="a node that is silent for so long is lost (default: 1.5)",
    )
    add("--check-plans", action="store_true", help="compare every step's plan over all ranks before it runs")


def _add_tests(made: Parser) -> None:
    add, hidden = made.add_argument, argparse.SUPPRESS
    add("--test-retract-interval", type=positive, help=hidden)
    add("--test-force-cache-miss", action="store_true", help=hidden)
    add("--test-failpoint", action="append", default=[], help=hidden)


def installed_version() -> str:
    """The version of the installed package."""
    try:
        return version("corymb")
    except PackageNotFoundError:
        return "(not installed)"


def show_error(program: str, message: str) -> int:
    """Prints one sentence for the operator; returns the exit status of a refused start."""
    print(f"{program}: {message}", file=sys.stderr, flush=True)
    return 2
