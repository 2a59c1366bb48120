"""What a model and the options of its runner cannot do together, said before anything is loaded."""

from typing import TYPE_CHECKING

from corymb.models.blueprint import Blueprint
from corymb.models.errors import UnsupportedModel

if TYPE_CHECKING:
    from corymb.models.build import RunnerOptions


def refuse(options: "RunnerOptions", blueprint: Blueprint, *, on_gpu: bool) -> None:
    """Raises UnsupportedModel, in one sentence."""
    _refuse_unused(options, blueprint)
    if options.kv_cache_dtype != "auto" and any(spec.latent_dim is not None for spec in blueprint.attention_specs):
        raise UnsupportedModel(f"Latents are not kept in {options.kv_cache_dtype}; leave --kv-cache-dtype out.")
    if options.speculation and on_gpu and blueprint.config.decoder is None:  # it asks the host for lengths
        name = blueprint.config.architecture
        raise UnsupportedModel(f"{name} does not work with --speculative-algorithm on a GPU; use --device cpu.")


def _refuse_unused(options: "RunnerOptions", blueprint: Blueprint) -> None:
    """Options for a kind of memory that the model does not have would promise something."""
    of_states = {
        "--mamba-full-memory-ratio": options.state_ratio,
        "--max-mamba-cache-size": options.max_states,
        "--mamba-track-interval": options.state_interval,
        "--mamba-max-states-per-path": options.max_states_per_path,
    }
    kinds = [
        ("recurrent state", bool(blueprint.state_specs), of_states),
        (
            "a sliding window",
            any(spec.window for spec in blueprint.attention_specs),
            {"--swa-full-tokens-ratio": options.sliding_ratio},
        ),
    ]
    for kind, present, flags in kinds:
        given = [flag for flag, value in flags.items() if value is not None]
        if given and not present:
            name = blueprint.config.architecture
            raise UnsupportedModel(f"{given[0]} is for models with {kind}, and {name} has none; leave it out.")
