"""The files of the web page: public, fixed, and unable to run anybody else's code."""

import re
from importlib.resources import files

import pytest

from tests.http.client import refused
from tests.http.conftest import simulated

NAMES = sorted(file.name for file in files("corymb.serve").joinpath("web").iterdir())
PATHS = ["/" if name == "page.html" else f"/web/{name}" for name in NAMES]
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@pytest.fixture(scope="module")
def locked():
    with simulated("tape", api_key="user-key", admin_api_key="admin-key") as server:
        yield server


@pytest.mark.parametrize("path", PATHS)
def test_files_are_public_and_say_what_they_are(locked, path) -> None:
    response = locked.client.get(path)
    assert response.status_code == 200
    kind = "html" if path == "/" else path.rpartition(".")[2]
    assert response.headers["content-type"] == f"{TYPES[kind]}; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", PATHS)
def test_no_file_names_another_host_or_holds_code_in_markup(locked, path) -> None:
    text = locked.client.get(path).text.replace("http://www.w3.org/2000/svg", "")
    assert "://" not in text
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=\"|style=\"|javascript:|innerHTML|\beval\(", text)


def test_the_policy_allows_the_pages_own_files_only(locked) -> None:
    policy = locked.client.get("/").headers["content-security-policy"]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert set(rules.values()) == {"'self'", "'none'"}
    assert "unsafe" not in policy


def test_every_file_that_is_named_exists(locked) -> None:
    named = re.findall(r'(?:src|href)="([^"]+)"', locked.client.get("/").text)
    for path in PATHS:
        if path.endswith(".js"):
            named += [
                f"web/{name}" for name in re.findall(r'(?:from|import) "\./([^"]+)"', locked.client.get(path).text)
            ]
    assert named
    assert {f"/{name}" for name in named} <= set(PATHS)


@pytest.mark.parametrize(
    "path", ["/web", "/web/", "/web/page.html", "/web/../page.py", "/web/%2e%2e/page.py", "/web/x.js"]
)
def test_nothing_else_is_served(locked, path) -> None:
    refused(locked.client.get(path), 401)
    refused(locked.client.get(path, headers={"x-api-key": "user-key"}), 404)


def test_the_page_can_be_turned_off() -> None:
    with simulated("tape", web=False) as server:
        for path in PATHS:
            refused(server.client.get(path), 404)
