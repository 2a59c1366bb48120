"""Keys: what each kind of route needs, and that there is no way around."""

import hmac
import socket

import httpx
import pytest

from corymb.serve.auth import Access, Keys
from corymb.serve.route_table import route_table
from corymb.serve.routes import AccessTable, Endpoint
from corymb.serve.settings import HttpSettings
from tests.http.client import refused
from tests.http.conftest import simulated
from tests.http.simulator import TOKENIZER

PUBLIC = {"/health", "/ping", "/health_generate"}
ADMIN = {
    *("/flush_cache", "/abort_request", "/pause_generation", "/continue_generation", "/start_profile", "/stop_profile"),
    "/debug/tree",
}


@pytest.fixture(scope="module")
def locked():
    with simulated("tape", api_key="user-key", admin_api_key="admin-key") as server:
        yield server


def routes_of(server):
    return [route.endpoint.route for route in server.app.routes]


def concrete(path: str) -> str:
    return path.replace("{id:path}", "tape")


def test_every_route_of_the_app_is_in_the_table(locked) -> None:
    assert all(isinstance(route.endpoint, Endpoint) for route in locked.app.routes)
    by_path = {route.path: route.access for route in routes_of(locked)}
    assert len(by_path) == len(locked.app.routes) > 15
    public = {path for path, access in by_path.items() if access is Access.PUBLIC}
    assert {path for path in public if path != "/" and not path.startswith("/web/")} == PUBLIC
    assert {path for path, access in by_path.items() if access is Access.ADMIN} == ADMIN


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH"])
def test_without_a_key_nothing_but_health_answers(locked, method) -> None:
    for route in routes_of(locked):
        status = locked.client.request(method, concrete(route.path)).status_code
        if route.access is Access.PUBLIC:
            assert status in (200, 405), route.path
        else:
            assert status == 401, route.path


WRONG = ["", "user-ke", "user-keyx", "USER-KEY", "user-key\u00e9", "\u00e9", "null", "user-key admin-key"]


@pytest.mark.parametrize("key", WRONG)
def test_wrong_keys(locked, key) -> None:
    for headers in ({"authorization": f"Bearer {key}x".encode()}, {"x-api-key": key.encode()}):
        response = locked.client.get("/v1/models", headers=headers)
        refused(response, 401, code="invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "Bearer  "])
def test_right_key(locked, scheme) -> None:
    assert locked.client.get("/v1/models", headers={"authorization": f"{scheme}user-key"}).status_code == 200
    assert locked.client.get("/v1/models", headers={"x-api-key": "user-key"}).status_code == 200


@pytest.mark.parametrize("value", ["user-key", "Basic user-key", "Bearer", "Bearer=user-key", "Bearer,user-key"])
def test_other_ways_to_send_a_key_are_none(locked, value) -> None:
    assert locked.client.get("/v1/models", headers={"authorization": value}).status_code == 401
    assert locked.client.get("/v1/models?api_key=user-key").status_code == 401
    assert locked.client.get("/v1/models", headers={"cookie": "api_key=user-key"}).status_code == 401


def test_admin_routes_need_the_admin_key(locked) -> None:
    user, admin = {"x-api-key": "user-key"}, {"x-api-key": "admin-key"}
    refused(locked.client.post("/flush_cache", headers=user), 403, code="admin_key_required")
    assert locked.client.post("/flush_cache", headers=admin).status_code == 200
    assert locked.client.get("/v1/models", headers=admin).status_code == 200
    both = {"authorization": "Bearer user-key", "x-api-key": "admin-key"}
    assert locked.client.post("/flush_cache", headers=both).status_code == 200


TRICKS = [
    "/flush_cache/", "//flush_cache", "/flush_cache%0a", "/flush_cache%00", "/FLUSH_CACHE", "/./flush_cache",
    "/v1/../flush_cache", "/health/../flush_cache", "/flush_cache;x", "/%66lush_cache", "/flush_cache?x=/health",
    "/health%2f..%2fflush_cache", "/flush_cache#/health", "/v1/models/../../flush_cache",
    "http://127.0.0.1/flush_cache",
]  # fmt: skip


@pytest.mark.parametrize("path", TRICKS)
@pytest.mark.parametrize("key", ["", "x-api-key: user-key\r\n"], ids=["no key", "user"])
def test_no_spelling_of_a_path_leads_around_the_check(locked, path, key) -> None:
    url = httpx.URL(locked.url)
    with socket.create_connection((url.host, url.port), timeout=5) as sock:
        sock.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n{key}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
    assert answer.split(b" ")[1] in (b"400", b"401", b"403", b"404", b"405"), answer
    assert b"flushed" not in answer.lower()


def test_a_path_of_no_table_needs_a_key(locked) -> None:
    assert locked.client.get("/v1/nope").status_code == 401
    assert locked.client.get("/v1/nope", headers={"x-api-key": "user-key"}).status_code == 404
    table = AccessTable(routes_of(locked))
    assert table("/anything") is Access.USER
    assert table("/v1/models/a/b") is Access.USER


def test_an_endpoint_does_not_trust_that_someone_checked() -> None:
    import asyncio

    with simulated("tape", api_key="user-key") as server:
        sent = []

        async def send(message) -> None:
            sent.append(message)

        scope = {"type": "http", "path": "/v1/models", "method": "GET", "headers": []}
        endpoint = next(route.endpoint for route in server.app.routes if route.path == "/v1/models")
        asyncio.run(endpoint(scope, None, send))
        assert sent[0]["status"] == 401


GRANTS = [
    # settings, key sent, what is granted
    ({}, None, Access.ADMIN),
    ({"loopback": False}, None, Access.USER),
    ({"api_key": "u"}, None, Access.PUBLIC),
    ({"api_key": "u"}, b"u", Access.USER),
    ({"api_key": "u"}, b"a", Access.PUBLIC),
    ({"api_key": "u", "loopback": False}, b"u", Access.USER),
    ({"admin_api_key": "a"}, None, Access.USER),
    ({"admin_api_key": "a"}, b"a", Access.ADMIN),
    ({"admin_api_key": "a"}, b"x", Access.USER),
    ({"api_key": "u", "admin_api_key": "a"}, None, Access.PUBLIC),
    ({"api_key": "u", "admin_api_key": "a"}, b"u", Access.USER),
    ({"api_key": "u", "admin_api_key": "a"}, b"a", Access.ADMIN),
    ({"api_key": "u", "admin_api_key": "a"}, b"", Access.PUBLIC),
]


@pytest.mark.parametrize(("settings", "key", "access"), GRANTS, ids=str)
def test_what_keys_grant(settings, key, access) -> None:
    headers = [] if key is None else [(b"x-api-key", key)]
    assert Keys(HttpSettings(**settings)).granted(headers) is access


def test_admin_routes_are_off_when_only_users_have_a_key() -> None:
    with simulated("tape", api_key="user-key", headers={"x-api-key": "user-key"}) as server:
        error = refused(server.client.post("/flush_cache"), 403, code="admin_key_required")
        assert "--admin-api-key" in error["message"]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_give_no_orders_to_an_open_server(site) -> None:
    headers = {"sec-fetch-site": site}
    with simulated("tape") as server:
        refused(server.client.get("/flush_cache", headers=headers), 403, code="admin_key_required")
        assert server.client.get("/flush_cache", headers={"sec-fetch-site": "same-origin"}).status_code == 200
        assert server.client.get("/v1/models", headers=headers).status_code == 200
    with simulated("tape", admin_api_key="a", headers={"x-api-key": "a"}) as server:
        assert server.client.get("/flush_cache", headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["", " ", "a b ", "\u00e9", "a\nb"])
def test_keys_that_cannot_be_sent_are_refused_at_the_start(key) -> None:
    with pytest.raises(ValueError, match="API key"):
        HttpSettings(api_key=key)


def test_settings_do_not_show_keys() -> None:
    assert "secret" not in repr(HttpSettings(api_key="secret", admin_api_key="secret"))


def test_keys_are_compared_in_constant_time(monkeypatch) -> None:
    seen = []

    def compare(a: bytes, b: bytes) -> bool:
        seen.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys(HttpSettings(api_key="u", admin_api_key="a"))
    keys.granted([(b"x-api-key", b"a")])
    assert seen == [(b"a", b"a"), (b"a", b"u")]  # both, whatever the first said


def test_route_table_has_no_path_twice(locked) -> None:
    from corymb.serve.output_parser import OutputParsers
    from corymb.serve.parts import Parts

    parsers = OutputParsers(None, None, TOKENIZER)
    parts = Parts(locked.engine, TOKENIZER, None, HttpSettings(), None, parsers, None)  # type: ignore[arg-type]
    paths = [route.path for route in route_table(parts)]
    assert len(set(paths)) == len(paths)
