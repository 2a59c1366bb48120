"""Every route of the server, and who may call it."""

from corymb.serve.admin import Admin
from corymb.serve.auth import Access
from corymb.serve.chat_completions import ChatCompletions
from corymb.serve.completions import Completions
from corymb.serve.model_routes import ModelRoutes
from corymb.serve.native import Native
from corymb.serve.parts import Parts
from corymb.serve.probes import Probes
from corymb.serve.routes import Handler, Route
from corymb.serve.text_routes import TextRoutes


def route_table(parts: Parts) -> list[Route]:
    """Every route there is. A route that is not listed here does not exist."""
    models, probes, texts, admin = ModelRoutes(parts), Probes(parts), TextRoutes(parts), Admin(parts)
    native = Native(parts)
    return [
        _get("/health", Access.PUBLIC, probes.health),
        _get("/ping", Access.PUBLIC, probes.health),
        _get("/health_generate", Access.PUBLIC, probes.health_generate),
        _get("/metrics", Access.USER, probes.metrics),
        _get("/v1/models", Access.USER, models.list),
        _get("/v1/models/{id:path}", Access.USER, models.one),
        _post("/v1/completions", Access.USER, Completions(parts)),
        _post("/v1/chat/completions", Access.USER, ChatCompletions(parts)),
        Route("/generate", Access.USER, {"POST": native, "PUT": native}),
        _post("/tokenize", Access.USER, texts.tokenize),
        _post("/v1/tokenize", Access.USER, texts.tokenize),
        _post("/detokenize", Access.USER, texts.detokenize),
        _post("/v1/detokenize", Access.USER, texts.detokenize),
        _get("/model_info", Access.USER, models.model_info),
        _get("/get_model_info", Access.USER, models.model_info),
        _get("/server_info", Access.USER, models.server_info),
        _get("/get_server_info", Access.USER, models.server_info),
        Route("/flush_cache", Access.ADMIN, {"POST": admin.flush_cache, "GET": admin.flush_cache}),
        _post("/abort_request", Access.ADMIN, admin.abort_request),
        _get("/debug/tree", Access.ADMIN, admin.debug_tree),
    ]


def _get(path: str, access: Access, handler: Handler) -> Route:
    return Route(path, access, {"GET": handler})


def _post(path: str, access: Access, handler: Handler) -> Route:
    return Route(path, access, {"POST": handler})
