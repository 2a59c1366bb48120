"""From a configuration to a server: the model is checked, the children are told, the HTTP application is built."""

import ipaddress
import time
from dataclasses import replace
from pathlib import Path
from socket import socket

import msgspec
from starlette.types import ASGIApp

from corymb.models.sizing import gib
from corymb.serve import main_process
from corymb.serve.app import create_app
from corymb.serve.chat import ChatTemplate, load_chat_template
from corymb.serve.children import ChildOptions, Children
from corymb.serve.compiling import Begin, compiler_options
from corymb.serve.config import HttpConfig, ServeConfig
from corymb.serve.engine import Engine, ServedModel
from corymb.serve.flags import installed_version
from corymb.serve.metrics import Metrics
from corymb.serve.nodes import Nodes
from corymb.serve.prepare import Prepared, prepare
from corymb.serve.reasoning import EFFORT_VARIABLES
from corymb.serve.recognition import recognise_reasoning, recognise_tools
from corymb.serve.seeds import seeds
from corymb.serve.settings import HttpSettings
from corymb.serve.timeline import Timeline
from corymb.serve.tokenizer import load_tokenizer


def serve(
    config: ServeConfig,
    *,
    listener: socket,
    sockets: Path,
    children: Children,
    timeline: Timeline,
    nodes: Nodes | None = None,
) -> int:
    """Serves until the end; returns the exit status. Raises ConfigError, ModelError before any weights are read."""
    begun_s = time.monotonic()
    prepared = prepare(config)
    tokenizer = load_tokenizer(prepared.tokenizer_folder)
    template = load_chat_template(prepared.tokenizer_folder, config.model.chat_template)
    prepared = _with_parsers(prepared, template)
    settings = _settings(prepared, template)
    timeline.line("model", time.monotonic() - begun_s, f"{_describe(prepared)}; {_describe_device(prepared)}")
    if nodes is not None:
        nodes.settle(prepared.config)
    children.tell(
        ChildOptions(
            sockets=str(sockets),
            model_folder=str(prepared.source.folder),
            tokenizer_folder=str(prepared.tokenizer_folder),
            config=prepared.config.without_secrets(),
        )
    )

    def make_app(engine: Engine, metrics: Metrics) -> ASGIApp:
        return create_app(engine, tokenizer, template, settings, metrics)

    return main_process.run(
        prepared.config,
        _served(prepared),
        make_app,
        listener=listener,
        sockets=sockets,
        children=children,
        timeline=timeline,
        nodes=nodes,
    )


def _with_parsers(prepared: Prepared, template: ChatTemplate | None) -> Prepared:
    """Decides how answers are read. A template that knows no tools gets them, and their format, from us."""
    options = prepared.config.model
    tools, reasoning = options.tool_call_parser, options.reasoning_parser
    if tools == "auto":
        known = template is not None and template.takes_tools
        tools = (recognise_tools(template.source) if known and template is not None else "qwen") or "none"
    if reasoning == "auto":
        reasoning = recognise_reasoning(template.source) if template is not None else None
    options = msgspec.structs.replace(options, tool_call_parser=tools, reasoning_parser=reasoning)
    return replace(prepared, config=msgspec.structs.replace(prepared.config, model=options))


def _describe(prepared: Prepared) -> str:
    model = prepared.model
    layers = f", {model.num_layers} layers" if model.num_layers else ""
    size = f", {prepared.weights_bytes / (1 << 20):,.0f} MiB in {prepared.config.model.dtype}" if layers else ""
    options, ranks = prepared.config.model, prepared.config.parallel.tp_size
    size += f" on each of {ranks} ranks" if ranks > 1 else ""
    reading = f", calls as {options.tool_call_parser}"
    reading += f", reasoning as {options.reasoning_parser}" if options.reasoning_parser else ""
    return f"{prepared.served_name}: {model.architecture}{layers}{size}{reading}"


def _describe_device(prepared: Prepared) -> str:
    """What was chosen, as far as it is known without the device."""
    config, gpu = prepared.config, prepared.gpu
    device = f"{gpu.name}, {gib(gpu.total_bytes)}" if gpu else config.runtime.device
    chunk = config.scheduler.chunked_prefill_size
    chunks = f"chunks of {chunk}" if chunk else "whole prompts"
    backend = config.runtime.grammar_backend
    grammars = "no grammars (install corymb[grammar])" if backend == "none" else f"grammars by {backend}"
    return f"{device}, {chunks}, {'overlap' if config.scheduler.overlap_depth else 'no overlap'}, {grammars}"


def _served(prepared: Prepared) -> ServedModel:
    return ServedModel(
        names=_names(prepared),
        path=str(prepared.source.folder),
        tokenizer_path=str(prepared.tokenizer_folder),
        context_length=prepared.context_length,
        vocab_size=prepared.model.vocab_size,
        eos_ids=tuple(sorted(prepared.model.eos_ids)),
        architecture=prepared.model.architecture,
        hidden_size=prepared.model.decoder.hidden_size if prepared.model.decoder else 0,
        version=installed_version(),
        started_at=time.time(),
        config=prepared.config.flat(),
    )


def _names(prepared: Prepared) -> tuple[str, ...]:
    """What clients may call the model: as it is served, and as it was named to be served."""
    return prepared.config.model.served_model_name or tuple(dict.fromkeys((prepared.served_name, prepared.source.name)))


def _settings(prepared: Prepared, template: ChatTemplate | None) -> HttpSettings:
    http, parsers = prepared.config.http, prepared.config.model
    return HttpSettings(
        reasoning_parser=parsers.reasoning_parser,
        tool_call_parser=None if parsers.tool_call_parser == "none" else parsers.tool_call_parser,
        api_key=http.api_key,
        admin_api_key=http.admin_api_key,
        loopback=_is_loopback(http),
        max_body_bytes=http.max_request_bytes,
        clamp_max_tokens=http.allow_auto_truncate,
        incremental_streaming_output=http.incremental_streaming_output,
        enable_response_store=http.enable_response_store,
        uses_priority=_uses_priority(prepared.config),
        uses_effort=template is not None and not template.variables.isdisjoint(EFFORT_VARIABLES),
        web=not http.disable_web,
        uses_routing_key=prepared.config.scheduler.schedule_policy == "routing-key",
        sampling_defaults=prepared.model.sampling if http.sampling_defaults == "model" else {},
        compiler=_compiler(prepared),
        draw_seed=seeds(prepared.config.runtime.random_seed),
    )


def _compiler(prepared: Prepared) -> Begin | None:
    backend = prepared.config.runtime.grammar_backend
    if backend == "none":
        return None
    return compiler_options(
        backend,
        str(prepared.tokenizer_folder),
        vocab_size=prepared.model.vocab_size,
        eos_ids=tuple(sorted(prepared.model.eos_ids)),
    )


def _uses_priority(config: ServeConfig) -> bool:
    return config.scheduler.enable_priority_scheduling or config.memory.radix_eviction_policy == "priority"


def _is_loopback(http: HttpConfig) -> bool:
    try:
        return ipaddress.ip_address(http.host).is_loopback
    except ValueError:
        return http.host == "localhost"
