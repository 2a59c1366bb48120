"""GET /openapi.json: every route, what it takes and what it answers."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from corymb.serve import answer_schemas, shapes
from corymb.serve.answer import encode
from corymb.serve.auth import Access
from corymb.serve.call import Call
from corymb.serve.errors import KINDS
from corymb.serve.operations import Operation, operations
from corymb.serve.parts import Parts
from corymb.serve.routes import Route
from corymb.serve.shapes import Schema

Json = dict[str, Any]


class OpenApi:
    """Answers with the document; it is made when it is first asked for."""

    def __init__(self, routes: Sequence[Route], parts: Parts) -> None:
        self._routes = routes
        self._parts = parts
        self._document = b""

    async def __call__(self, call: Call) -> None:
        """GET /openapi.json."""
        self._document = self._document or encode(document(self._routes, self._parts))
        await call.answer(200, self._document)


def document(routes: Sequence[Route], parts: Parts) -> Json:
    """The document (OpenAPI 3.1, whose schemas are JSON Schemas)."""
    known = operations(parts)
    paths = {_path(route): _path_item(route, known[_path(route)], parts) for route in routes}
    schemes = {"key": {"type": "http", "scheme": "bearer"}} if _has_keys(parts) else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Corymb", "version": _version(), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"securitySchemes": schemes, "schemas": _ERRORS},
    }


def _path(route: Route) -> str:
    return route.path.replace("{id:path}", "{id}")


def _path_item(route: Route, operation: Operation, parts: Parts) -> Json:
    item: Json = {method.lower(): _operation(route, operation, parts) for method in route.methods}
    parameters = [_parameter(name, "query", schema) for name, schema in operation.query.items()]
    if "{id}" in _path(route):
        named = shapes.enum(*parts.engine.info.names) if route.path.startswith("/v1/models/") else shapes.TEXT
        parameters.append(_parameter("id", "path", named))
    return item | ({"parameters": parameters} if parameters else {})


def _parameter(name: str, place: str, schema: Schema) -> Json:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _operation(route: Route, operation: Operation, parts: Parts) -> Json:
    told: Json = {"summary": operation.summary, "responses": _responses(route.path, operation)}
    if operation.body is not None:
        content = {"application/json": {"schema": operation.body.schema()}}
        told["requestBody"] = {"required": not operation.body.optional, "content": content}
    if _has_keys(parts):
        told["security"] = [] if route.access is Access.PUBLIC else [{"key": []}]
    return told


def _responses(path: str, operation: Operation) -> Json:
    content: Json = {"text/plain": {"schema": shapes.TEXT}}
    if operation.answer is not None:
        content = {"application/json": {"schema": operation.answer}}
    if operation.streams is not None:
        content[operation.streams] = {}
    refused = {"application/json": {"schema": _error(path)}}
    statuses = sorted({kind.status for kind in KINDS.values()})
    errors = {str(status): {"description": _when(status), "content": refused} for status in statuses}
    return {"200": {"description": "The answer.", "content": content}, **errors}


_ERRORS = {
    "Error": answer_schemas.error(list(KINDS)),
    "AnthropicError": answer_schemas.ANTHROPIC_ERROR,
    "OllamaError": answer_schemas.OLLAMA_ERROR,
}


def _error(path: str) -> Schema:
    own = "OllamaError" if path.startswith("/api/") else "Error"
    name = "AnthropicError" if path.startswith("/v1/messages") else own
    return {"$ref": f"#/components/schemas/{name}"}


def _when(status: int) -> str:
    return " ".join(kind.about for kind in KINDS.values() if kind.status == status)


def _has_keys(parts: Parts) -> bool:
    keys: Mapping[str, str | None] = {"api": parts.settings.api_key, "admin": parts.settings.admin_api_key}
    return any(keys.values())


def _version() -> str:
    try:
        return version("corymb")
    except PackageNotFoundError:
        return "0"
