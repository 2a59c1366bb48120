"""Finds what drafts for a model and checks that it fits, before any weights are read. Imports no torch."""

from pathlib import Path

import msgspec

from corymb.models.config import ModelConfig
from corymb.models.source import resolve, resolve_draft
from corymb.serve.config import ConfigError, ServeConfig
from corymb.serve.speculative_options import MAX_DRAFTS, Algorithm, SpeculativeOptions
from corymb.speculative.calibration import CALIBRATION, BadCalibration, read_temperatures
from corymb.speculative.cost_model import BadTable, read_table
from corymb.speculative.draft_config import check_num_drafts, read_draft_config
from corymb.speculative.draft_tensors import read_draft_headers
from corymb.speculative.shipped import shipped_draft
from corymb.speculative.standalone_config import read_standalone_config


def prepare_draft(config: ServeConfig, model: ModelConfig) -> SpeculativeOptions:
    """The wishes with a folder for a path and a number for what the draft decides. Raises ConfigError, ModelError."""
    options = _with_trace(config.speculative)
    path, algorithm = options.speculative_draft_model_path, options.speculative_algorithm
    _check_table(options.speculative_dspark_sps_table_path)
    if algorithm is None or algorithm == "NGRAM":
        return options
    if path is None:
        path = _shipped(model)
    if algorithm == "STANDALONE":
        folder = resolve(path, cache_dir=Path(config.model.cache_dir), offline=config.model.offline).folder
        context_length = config.model.context_length or model.context_length
        read_standalone_config(folder, model, context_length=context_length)
        return msgspec.structs.replace(options, speculative_draft_model_path=str(folder))
    folder = resolve_draft(path, offline=config.model.offline)
    draft = read_draft_config(folder, algorithm, model)
    num_drafts = check_num_drafts(draft, options.num_drafts)
    if num_drafts > MAX_DRAFTS:
        raise ConfigError(
            f"The draft was trained for {num_drafts} tokens; give --speculative-num-draft-tokens {MAX_DRAFTS + 1} or "
            "less."
        )
    read_draft_headers(folder, draft)
    temperatures = options.speculative_dspark_confidence_sts_path or _own_temperatures(folder, algorithm)
    _check_temperatures(temperatures, num_drafts)
    return msgspec.structs.replace(
        options,
        speculative_draft_model_path=str(folder),
        speculative_num_draft_tokens=num_drafts + 1,
        speculative_dspark_confidence_sts_path=temperatures,
    )


def _shipped(model: ModelConfig) -> str:
    folder = shipped_draft(model)
    if folder is None:
        raise ConfigError(
            "--speculative-algorithm DSPARK needs a draft for this model; name it with --speculative-draft-model-path, "
            "or make one with `corymb draft train`."
        )
    return str(folder)


def _own_temperatures(folder: Path, algorithm: Algorithm) -> str | None:
    """What `corymb draft calibrate` left beside the draft."""
    path = folder / CALIBRATION
    return str(path) if algorithm == "DSPARK" and path.is_file() else None


def _check_table(path: str | None) -> None:
    if path is None:
        return
    try:
        read_table(Path(path))
    except BadTable as error:
        raise ConfigError(f"--speculative-dspark-sps-table-path: {error}") from error


def _check_temperatures(path: str | None, num_drafts: int) -> None:
    if path is None:
        return
    try:
        read_temperatures(Path(path), num_drafts)
    except BadCalibration as error:
        raise ConfigError(f"--speculative-dspark-confidence-sts-path: {error}") from error


def _with_trace(options: SpeculativeOptions) -> SpeculativeOptions:
    """Begins the file of the trace, so that what cannot be written is known now."""
    if options.speculative_trace is None:
        return options
    path = Path(options.speculative_trace).absolute()
    try:
        path.write_bytes(b"")
    except OSError as error:
        raise ConfigError(f"--speculative-trace {path} cannot be written: {error.strerror}.") from error
    return msgspec.structs.replace(options, speculative_trace=str(path))
