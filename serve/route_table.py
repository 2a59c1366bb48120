"""The routes of the server."""

from corymb.serve.auth import Access
from corymb.serve.chat_completions import ChatCompletions
from corymb.serve.completions import Completions
from corymb.serve.model_routes import ModelRoutes
from corymb.serve.parts import Parts
from corymb.serve.probes import Probes
from corymb.serve.routes import Handler, Route


def route_table(parts: Parts) -> list[Route]:
    """Every route there is. A route that is not listed here does not exist."""
    models, probes = ModelRoutes(parts), Probes(parts)
    return [
        _get("/health", Access.PUBLIC, probes.health),
        _get("/ping", Access.PUBLIC, probes.health),
        _get("/health_generate", Access.PUBLIC, probes.health_generate),
        _get("/metrics", Access.USER, probes.metrics),
        _get("/v1/models", Access.USER, models.list),
        _get("/v1/models/{id:path}", Access.USER, models.one),
        _post("/v1/completions", Access.USER, Completions(parts)),
        _post("/v1/chat/completions", Access.USER, ChatCompletions(parts)),
    ]


def _get(path: str, access: Access, handler: Handler) -> Route:
    return Route(path, access, {"GET": handler})


def _post(path: str, access: Access, handler: Handler) -> Route:
    return Route(path, access, {"POST": handler})
