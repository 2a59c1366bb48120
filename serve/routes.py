"""A route, its access, and the one place where exceptions become responses."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from corymb.serve.auth import Access
from corymb.serve.call import Call, ClientGone
from corymb.serve.errors import ApiError

logger = logging.getLogger(__name__)

Handler = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One path. A path that ends in `/` + `{id:path}` matches everything below it."""

    path: str
    access: Access
    methods: Mapping[str, Handler]


class Endpoint:
    """A route as an ASGI application."""

    def __init__(self, route: Route) -> None:
        self.route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one call, whatever happens."""
        call = Call(scope, receive, send)
        try:
            await self._handle(call)
        except ApiError as error:
            await call.refuse(error)
        except ClientGone:
            pass  # nobody is left to answer
        except Exception:
            logger.exception("%s failed", self.route.path)
            await call.refuse(ApiError("internal_error", "The server failed on this request; its log has the details."))

    async def _handle(self, call: Call) -> None:
        # The middleware has checked this already; a route that it did not see must stay shut.
        if call.scope.get("corymb.granted", -1) < self.route.access:
            raise ApiError("invalid_api_key", "Send a valid API key.")
        method = call.scope["method"]
        handler = self.route.methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = ", ".join([*self.route.methods, *(["HEAD"] if "GET" in self.route.methods else [])])
            call.extra_headers.append((b"allow", allowed.encode()))
            raise ApiError("method_not_allowed", f"This route takes {allowed}.")
        await handler(call)


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers paths that are no route."""
    await Call(scope, receive, send).refuse(ApiError("route_not_found", "There is no such route."))


class AccessTable:
    """Looks up what a path needs, exactly as the router would match it."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact = {route.path: route.access for route in routes if "{" not in route.path}
        self._below = [(route.path.partition("{")[0], route.access) for route in routes if "{" in route.path]

    def __call__(self, path: str) -> Access:
        """A path that is no route needs a user's key, so that nobody can probe."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        return max((access for prefix, access in self._below if path.startswith(prefix)), default=Access.USER)
