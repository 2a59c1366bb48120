"""Every route of the server, and who may call it."""

from corymb.serve.admin import Admin
from corymb.serve.anthropic import Anthropic
from corymb.serve.auth import Access
from corymb.serve.chat_completions import ChatCompletions
from corymb.serve.completions import Completions
from corymb.serve.decisions import Decisions
from corymb.serve.embeddings import Embeddings
from corymb.serve.model_routes import ModelRoutes
from corymb.serve.native import Native
from corymb.serve.ollama import Ollama
from corymb.serve.openapi import OpenApi
from corymb.serve.page import page_files
from corymb.serve.parse_routes import ParseRoutes
from corymb.serve.parts import Parts
from corymb.serve.probes import Probes
from corymb.serve.rerank import Rerank
from corymb.serve.responses import Responses
from corymb.serve.routes import Handler, Route
from corymb.serve.score import Score
from corymb.serve.text_routes import TextRoutes


def route_table(parts: Parts) -> list[Route]:
    """Every route there is. A route that is not listed here does not exist."""
    routes = _api(parts)
    page = page_files() if parts.settings.web else {}
    return [
        *(_get(path, Access.PUBLIC, file) for path, file in page.items()),
        *routes,
        _get("/openapi.json", Access.USER, OpenApi(routes, parts)),
    ]


def _api(parts: Parts) -> list[Route]:
    models, probes, texts, admin = ModelRoutes(parts), Probes(parts), TextRoutes(parts), Admin(parts)
    native, anthropic, responses = Native(parts), Anthropic(parts), Responses(parts)
    ollama, embeddings, parsing = Ollama(parts), Embeddings(parts), ParseRoutes(parts)
    stored = {"GET": responses.one, "DELETE": responses.delete, "POST": responses.cancel}
    return [
        _get("/health", Access.PUBLIC, probes.health),
        _get("/ping", Access.PUBLIC, probes.health),
        _get("/health_generate", Access.PUBLIC, probes.health_generate),
        _get("/metrics", Access.USER, probes.metrics),
        _get("/v1/models", Access.USER, models.list),
        _get("/v1/models/{id:path}", Access.USER, models.one),
        _post("/v1/completions", Access.USER, Completions(parts)),
        _post("/v1/chat/completions", Access.USER, ChatCompletions(parts)),
        _post("/v1/responses", Access.USER, responses.create),
        _post("/v1/responses/input_tokens", Access.USER, responses.count_tokens),
        Route("/v1/responses/{id:path}", Access.USER, stored),
        _post("/v1/messages", Access.USER, anthropic.messages),
        _post("/v1/messages/count_tokens", Access.USER, anthropic.count_tokens),
        _post("/v1/embeddings", Access.USER, embeddings.openai),
        _post("/v1/classify", Access.USER, embeddings.classify),
        _post("/api/embed", Access.USER, embeddings.ollama),
        _post("/v1/score", Access.USER, Score(parts)),
        _post("/v1/rerank", Access.USER, Rerank(parts)),
        _post("/v1/decisions", Access.USER, Decisions(parts)),
        _post("/api/chat", Access.USER, ollama.chat),
        _post("/api/generate", Access.USER, ollama.generate),
        _get("/api/tags", Access.USER, ollama.tags),
        _get("/api/ps", Access.USER, ollama.running),
        _post("/api/show", Access.USER, ollama.show),
        _get("/api/version", Access.USER, ollama.version),
        Route("/generate", Access.USER, {"POST": native, "PUT": native}),
        _post("/tokenize", Access.USER, texts.tokenize),
        _post("/v1/tokenize", Access.USER, texts.tokenize),
        _post("/detokenize", Access.USER, texts.detokenize),
        _post("/v1/detokenize", Access.USER, texts.detokenize),
        _post("/parse_function_call", Access.USER, parsing.parse_function_call),
        _post("/separate_reasoning", Access.USER, parsing.separate_reasoning),
        _get("/model_info", Access.USER, models.model_info),
        _get("/get_model_info", Access.USER, models.model_info),
        _get("/server_info", Access.USER, models.server_info),
        _get("/get_server_info", Access.USER, models.server_info),
        _get("/v1/loads", Access.USER, models.loads),
        _get("/get_load", Access.USER, models.loads),
        Route("/flush_cache", Access.ADMIN, {"POST": admin.flush_cache, "GET": admin.flush_cache}),
        _post("/abort_request", Access.ADMIN, admin.abort_request),
        _post("/pause_generation", Access.ADMIN, admin.pause),
        _post("/continue_generation", Access.ADMIN, admin.resume),
        _post("/start_profile", Access.ADMIN, admin.start_profile),
        _post("/stop_profile", Access.ADMIN, admin.stop_profile),
        _get("/debug/tree", Access.ADMIN, admin.debug_tree),
    ]


def _get(path: str, access: Access, handler: Handler) -> Route:
    return Route(path, access, {"GET": handler})


def _post(path: str, access: Access, handler: Handler) -> Route:
    return Route(path, access, {"POST": handler})
