"""Models from a hub: a small one on loopback, and huggingface_hub's cache without any."""

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from corymb.models.errors import SourceError
from corymb.models.source import Hub, resolve

MAIN, OLD = "a" * 40, "b" * 40
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "README.md": b"# read me",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"the same again",
    "onnx/model.safetensors": b"for others",
}


class Handler(BaseHTTPRequestHandler):
    """The four requests that fetching a model makes."""

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        hub: LoopbackHub = self.server.hub  # type: ignore[attr-defined]
        hub.requests.append(f"{self.command} {self.path}")
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"] and parts[4:5] == ["tree"]:
            return self.list_tree(hub, "/".join(parts[2:4]), parts[5])
        if parts[:2] == ["api", "models"]:
            return self.describe(hub, "/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
        if parts[2] == "resolve":
            return self.give(hub, "/".join(parts[:2]), parts[3], "/".join(parts[4:]), body=body)
        return self.refuse("EntryNotFound")

    def describe(self, hub: "LoopbackHub", repo: str, revision: str) -> None:
        if repo == "tiny/gated":
            return self.refuse("GatedRepo", 403)
        if repo not in hub.repos:
            return self.refuse("RepoNotFound")
        commit = hub.commits.get(revision)
        if commit is None:
            return self.refuse("RevisionNotFound")
        siblings = [{"rfilename": name} for name in hub.repos[repo]]
        body = json.dumps({"id": repo, "sha": commit, "siblings": siblings, "private": False, "tags": []}).encode()
        return self.send(body, {"Content-Type": "application/json"}, body=True)

    def list_tree(self, hub: "LoopbackHub", repo: str, revision: str) -> None:
        entries = [
            {"type": "file", "path": name, "size": len(hub.content(repo, revision, name)), "oid": "0" * 40}
            for name in hub.repos[repo]
        ]
        self.send(json.dumps(entries).encode(), {"Content-Type": "application/json"}, body=True)

    def give(self, hub: "LoopbackHub", repo: str, revision: str, name: str, *, body: bool) -> None:
        if name not in hub.repos.get(repo, {}) or revision not in hub.commits:
            return self.refuse("EntryNotFound")
        content = hub.content(repo, revision, name)
        etag = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return self.send(content, {"ETag": f'"{etag}"', "X-Repo-Commit": hub.commits[revision]}, body=body)

    def refuse(self, code: str, status: int = 404) -> None:
        self.send(b"", {"X-Error-Code": code}, status=status, body=False)

    def send(self, content: bytes, headers: dict[str, str], *, body: bool, status: int = 200) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


class LoopbackHub:
    """A hub with a few small models."""

    def __init__(self) -> None:
        self.repos = {
            "tiny/model": dict(FILES),
            "tiny/pickled": {"config.json": b"{}", "pytorch_model.bin": b""},
            "tiny/packed": {"a-Q4_0.gguf": b"", "sub/b-Q8_0.gguf": b""},
            "tiny/images": {"config.json": b"{}"},
        }
        self.commits = {"main": MAIN, "v1": OLD, MAIN: MAIN, OLD: OLD}
        self.requests: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.hub = self  # type: ignore[attr-defined]
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def content(self, repo: str, revision: str, name: str) -> bytes:
        content = self.repos[repo][name]
        return b"old " + content if self.commits[revision] == OLD else content

    def fetched(self) -> set[str]:
        return {
            request.split("/resolve/")[1].split("/", 1)[1] for request in self.requests if request.startswith("GET /t")
        }


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    hub = LoopbackHub()
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()
    thread.join()


@pytest.fixture
def nowhere() -> str:
    """The address of a hub that does not answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def get(endpoint: str, tmp_path: Path, model: str = "tiny/model", **options) -> Path:
    place = Hub(endpoint=endpoint, cache_dir=tmp_path / "hub")
    return resolve(model, cache_dir=tmp_path / "cache", hub=place, **options).folder


def test_only_needed_files_are_fetched_and_only_once(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = get(hub.endpoint, tmp_path)
    assert hub.fetched() == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    hub.requests.clear()
    assert get(hub.endpoint, tmp_path) == folder
    assert hub.fetched() == set()


def test_name_is_what_clients_see(hub: LoopbackHub, tmp_path: Path) -> None:
    source = resolve("tiny/model", cache_dir=tmp_path, hub=Hub(hub.endpoint, tmp_path / "hub"))
    assert (source.name, source.served_name) == ("tiny/model", "tiny/model")


@pytest.mark.parametrize("revision", ["v1", OLD])
def test_revision_is_a_branch_tag_or_commit(hub: LoopbackHub, tmp_path: Path, revision: str) -> None:
    folder = get(hub.endpoint, tmp_path, revision=revision)
    assert (folder / "model.safetensors").read_bytes() == b"old weights"
    assert (get(hub.endpoint, tmp_path) / "model.safetensors").read_bytes() == b"weights"


def test_offline_start_uses_the_cache_and_asks_nobody(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = get(hub.endpoint, tmp_path)
    hub.requests.clear()
    assert get(hub.endpoint, tmp_path, offline=True) == folder
    assert hub.requests == []
    with pytest.raises(SourceError, match="tiny/model at v1 is not in the hub cache"):
        get(hub.endpoint, tmp_path, offline=True, revision="v1")


def test_half_fetched_model_is_not_served_offline(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = get(hub.endpoint, tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="not in the hub cache as a whole"):
        get(hub.endpoint, tmp_path, offline=True)
    assert (get(hub.endpoint, tmp_path) / "model.safetensors").read_bytes() == b"weights"


def test_unreachable_hub_falls_back_to_the_cache(hub: LoopbackHub, nowhere: str, tmp_path: Path) -> None:
    folder = get(hub.endpoint, tmp_path)
    assert get(nowhere, tmp_path) == folder


def test_unreachable_hub_without_a_cached_copy_is_said(nowhere: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"{nowhere} cannot be reached"):
        get(nowhere, tmp_path)
    with pytest.raises(SourceError, match=f"{nowhere} cannot be reached"):
        get(nowhere, tmp_path, "tiny/packed/a-Q4_0.gguf")


def test_cache_made_by_other_tools_is_used(tmp_path: Path) -> None:
    repo = tmp_path / "hub" / "models--some--model"
    for name, content in FILES.items():
        blob = repo / "blobs" / hashlib.sha256(content).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = repo / "snapshots" / MAIN / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(MAIN)
    folder = get("http://127.0.0.1:9", tmp_path, "some/model", offline=True)
    assert folder == repo / "snapshots" / MAIN
    assert get("http://127.0.0.1:9", tmp_path, "some/model", offline=True, revision=MAIN) == folder


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("tiny/pickled", "only as pickled files"),
        ("tiny/packed", "'tiny/packed/a-Q4_0.gguf'"),
        ("tiny/packed/c.gguf", "its GGUF files are: a-Q4_0.gguf, sub/b-Q8_0.gguf"),
        ("tiny/images", "no .safetensors weights"),
        ("tiny/absent", "tiny/absent is not on http"),
        ("tiny/gated", "agree to terms"),
    ],
)
def test_models_that_cannot_be_served_say_why(hub: LoopbackHub, tmp_path: Path, model: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        get(hub.endpoint, tmp_path, model)
    assert not any(request.startswith("GET /tiny") for request in hub.requests)


def test_unknown_revision_is_named(hub: LoopbackHub, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="tiny/model has no revision 'v9'"):
        get(hub.endpoint, tmp_path, revision="v9")


def test_gguf_file_of_a_hub_is_converted(hub: LoopbackHub, tiny, tmp_path: Path) -> None:
    hub.repos["tiny/packed"]["sub/b-Q8_0.gguf"] = tiny().to_bytes()
    source = resolve("tiny/packed/sub/b-Q8_0.gguf", cache_dir=tmp_path, hub=Hub(hub.endpoint, tmp_path / "hub"))
    assert source.served_name == "b-Q8_0"
    assert (source.folder / "model.safetensors").is_file()
    assert hub.fetched() == {"sub/b-Q8_0.gguf"}
