"""The HTTP application."""

from fastapi import FastAPI
from starlette.routing import Route as RouterRoute

from corymb.serve.auth import AuthMiddleware, Keys
from corymb.serve.chat import ChatTemplate
from corymb.serve.engine import Engine
from corymb.serve.grammar_store import GrammarStore
from corymb.serve.metrics import Metrics
from corymb.serve.output_parser import OutputParsers
from corymb.serve.parts import Parts
from corymb.serve.route_table import route_table
from corymb.serve.routes import AccessTable, Endpoint, not_found
from corymb.serve.settings import HttpSettings
from corymb.serve.tokenizer import Tokenizer


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    settings: HttpSettings,
    metrics: Metrics,
) -> FastAPI:
    """Builds the application. `engine.info` must be complete except for the sizes of pools."""
    parsers = OutputParsers(settings.reasoning_parser, settings.tool_call_parser, tokenizer)
    grammars = GrammarStore(engine, metrics, settings.compiler)
    parts = Parts(engine, tokenizer, chat_template, settings, metrics, parsers, grammars)
    routes = route_table(parts)
    app = FastAPI(title="Corymb", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    # Endpoints are plain ASGI: a chunk of a stream passes through no layer that inspects it.
    app.router.routes[:] = [RouterRoute(route.path, Endpoint(route)) for route in routes]
    app.router.default = not_found
    app.add_middleware(AuthMiddleware, keys=Keys(settings), access_of=AccessTable(routes))
    return app
