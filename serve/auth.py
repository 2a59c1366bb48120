"""Who may call what. Deny by default: a path that is in no table needs a user's key."""

import enum
import hmac
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from corymb.serve.call import Call
from corymb.serve.errors import ApiError
from corymb.serve.settings import HttpSettings


class Access(enum.IntEnum):
    """What a caller must be; each may do what the ones before it may."""

    PUBLIC = 0
    USER = 1
    ADMIN = 2


class Keys:
    """Decides what a request's keys allow.

    Without keys everyone is a user, and an admin as well where the server listens on a loopback address only. An API
    key makes users of those who have it; then, and on other addresses, admins need the admin key. An admin key alone
    leaves the user routes open. The admin key is also a user's key.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._api_key = _encoded(settings.api_key)
        self._admin_key = _encoded(settings.admin_api_key)
        open_admin = settings.loopback and not self._api_key and not self._admin_key
        self._without = Access.ADMIN if open_admin else Access.PUBLIC if self._api_key else Access.USER

    def granted(self, headers: list[tuple[bytes, bytes]]) -> Access:
        """The most that any key of the request allows."""
        return max((self._of(key) for key in _keys(headers)), default=self._without)

    def _of(self, key: bytes) -> Access:
        # Both comparisons always run and each takes constant time, so timing tells nothing about a key.
        is_admin = self._admin_key is not None and hmac.compare_digest(key, self._admin_key)
        is_user = self._api_key is not None and hmac.compare_digest(key, self._api_key)
        if is_admin:
            return Access.ADMIN
        return max(Access.USER, self._without) if is_user else self._without

    @property
    def has_admin(self) -> bool:
        """An admin key is set."""
        return self._admin_key is not None


def _is_cross_site(headers: list[tuple[bytes, bytes]]) -> bool:
    """What browsers, and only they, say of requests that a page of another site makes."""
    return any(name == b"sec-fetch-site" and value in (b"cross-site", b"same-site") for name, value in headers)


def _encoded(key: str | None) -> bytes | None:
    return None if key is None else key.encode()


def _keys(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    keys = []
    for name, value in headers:
        if name == b"x-api-key":
            keys.append(value)
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            keys.append(value[7:].strip())
    return keys


class AuthMiddleware:
    """Pure ASGI, so that a client's leaving still reaches the handlers. Stores what was granted in the scope."""

    def __init__(self, app: ASGIApp, keys: Keys, access_of: Callable[[str], Access]) -> None:
        self._app = app
        self._keys = keys
        self._access_of = access_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a call through or answers it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        granted = self._keys.granted(scope["headers"])
        if granted is Access.ADMIN and not self._keys.has_admin and _is_cross_site(scope["headers"]):
            granted = Access.USER  # a page of another site, in the operator's browser
        needed = self._access_of(scope["path"])
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif granted >= needed:
            scope["corymb.granted"] = granted
            await self._app(scope, receive, send)
        else:
            await Call(scope, receive, send).refuse(self._refusal(granted))

    def _refusal(self, granted: Access) -> ApiError:
        if granted is Access.PUBLIC:
            return ApiError("invalid_api_key", "Send a valid API key: `Authorization: Bearer KEY` or `x-api-key: KEY`.")
        if self._keys.has_admin:
            return ApiError("admin_key_required", "This route needs the admin key.")
        return ApiError("admin_key_required", "This route is off: start the server with --admin-api-key to use it.")
