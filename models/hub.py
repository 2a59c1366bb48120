"""Fetches models from a Hugging Face hub into huggingface_hub's own cache."""

import fnmatch
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError: of the HTTP library in use
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from corymb.models.errors import SourceError

_log = logging.getLogger(__name__)
_UNREACHABLE = (HTTPError, HfHubHTTPError, OfflineModeIsEnabled, OSError)
_ANSWER_LIMIT_S = 20.0
_ALLOWED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
_IGNORED = ["*/*", "consolidated*", "*.bin.index.json"]  # the same weights again, in forms for other programs


@dataclass(frozen=True, slots=True)
class Hub:
    """Where models come from and are kept; None leaves it to huggingface_hub and its environment variables."""

    endpoint: str | None = None
    cache_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Repo:
    """A model on a hub at one revision (branch, tag or commit; None for the main branch)."""

    id: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.id} at {self.revision}" if self.revision else self.id


def fetch_repo(hub: Hub, repo: Repo, *, offline: bool = False) -> Path:
    """Returns the folder of the model's files, fetching those that are missing; raises SourceError."""
    listing = _list(hub, repo, offline=offline)
    if listing.files is None:
        return _from_cache(hub, repo, listing.why_not)
    check_files(repo.id, listing.files)
    try:
        return _snapshot(hub, repo, offline=False)
    except _UNREACHABLE as error:
        raise SourceError(
            f"Fetching {repo} broke off ({_first_line(error)}); start again to go on from there."
        ) from error


def fetch_file(hub: Hub, repo: Repo, name: str, *, offline: bool = False) -> Path:
    """Returns one file of a model, fetching it if it is missing; raises SourceError."""
    listing = _list(hub, repo, offline=offline)
    if listing.files is not None and name not in listing.files:
        packed = [file for file in listing.files if file.endswith(".gguf")]
        raise SourceError(f"{repo} has no file '{name}'; its GGUF files are: {', '.join(packed) or 'none'}.")
    try:
        path = hf_hub_download(
            repo.id,
            name,
            revision=repo.revision,
            cache_dir=hub.cache_dir,
            endpoint=hub.endpoint,
            local_files_only=listing.files is None,
        )
    except LocalEntryNotFoundError as error:
        raise SourceError(_absent(hub, repo, listing.why_not or error)) from error
    except _UNREACHABLE as error:
        raise SourceError(
            f"Fetching {name} broke off ({_first_line(error)}); start again to go on from there."
        ) from error
    return Path(path)


def check_files(name: str, files: Sequence[str]) -> None:
    """Raises SourceError when a repository or folder with these files has no weights that can be read."""
    if any(file.endswith(".safetensors") and not _matches(file, _IGNORED) for file in files):
        return
    packed = [file for file in files if file.endswith(".gguf")]
    if packed:
        raise SourceError(f"{name} holds GGUF files: name the one to serve, for example '{name}/{packed[0]}'.")
    if any(file.endswith((".bin", ".pt", ".pth")) for file in files):
        raise SourceError(
            f"{name} has weights only as pickled files (.bin), which can run code; convert them to safetensors first."
        )
    raise SourceError(f"{name} has no .safetensors weights, so it is no language model that can be served.")


@dataclass(frozen=True, slots=True)
class _Listing:
    """The names of a repository's files, or None where the hub was not asked or did not answer (`why_not`)."""

    files: list[str] | None
    why_not: Exception | None = None


def _list(hub: Hub, repo: Repo, *, offline: bool) -> _Listing:
    if offline:
        return _Listing(None)
    try:
        # One request and no retries: an operator without network should not wait for the cached copy.
        info = HfApi(endpoint=hub.endpoint).model_info(repo.id, revision=repo.revision, timeout=_ANSWER_LIMIT_S)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise SourceError(_refusal(hub, repo, error)) from error
    except _UNREACHABLE as error:
        return _Listing(None, error)
    return _Listing([file.rfilename for file in info.siblings or ()])


def _snapshot(hub: Hub, repo: Repo, *, offline: bool) -> Path:
    return Path(
        snapshot_download(
            repo.id,
            revision=repo.revision,
            cache_dir=hub.cache_dir,
            endpoint=hub.endpoint,
            allow_patterns=_ALLOWED,
            ignore_patterns=_IGNORED,
            local_files_only=offline,
        )
    )


def _from_cache(hub: Hub, repo: Repo, why: Exception | None) -> Path:
    try:
        folder = _snapshot(hub, repo, offline=True)
    except LocalEntryNotFoundError as error:
        raise SourceError(_absent(hub, repo, why)) from error
    if why is not None:
        _log.warning("The hub cannot be reached (%s); serving %s as the cache has it", _first_line(why), repo)
    return folder


def _absent(hub: Hub, repo: Repo, why: Exception | None) -> str:
    if why is None:
        return f"{repo} is not in the hub cache as a whole, and --offline forbids to fetch it."
    place = hub.endpoint or "the hub"
    return f"{repo} is not in the hub cache and {place} cannot be reached ({_first_line(why)}); check the network."


def _refusal(hub: Hub, repo: Repo, error: Exception) -> str:
    place = hub.endpoint or "the hub"
    if isinstance(error, GatedRepoError):
        return f"{repo} asks its users to agree to terms first; do so on {place} and log in with 'hf auth login'."
    if isinstance(error, RevisionNotFoundError):
        return f"{repo.id} has no revision '{repo.revision}' on {place}."
    if isinstance(error, HFValidationError):
        return f"'{repo.id}' is neither a path that exists nor a name that a hub can have (OWNER/NAME)."
    return f"{repo.id} is not on {place}, or only for accounts with access ('hf auth login'); is its name right?"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def _matches(file: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(file, pattern) for pattern in patterns)
