"""Makes of an operator's wishes what drafts for a model."""

from pathlib import Path

from corymb.models.config import ModelConfig
from corymb.models.speculation import Speculation
from corymb.serve.speculative_options import SpeculativeOptions
from corymb.speculative.block_speculation import read_block_speculation
from corymb.speculative.calibration import read_temperatures
from corymb.speculative.ngram import NgramSpeculation
from corymb.speculative.standalone import read_standalone


def make_speculation(options: SpeculativeOptions, target: ModelConfig, context_length: int) -> Speculation | None:
    """`options` as `draft_model.prepare_draft` left them; None where nothing drafts. Raises ModelError."""
    algorithm, num_drafts = options.speculative_algorithm, options.num_drafts if options.speculative_algorithm else None
    if algorithm is None:
        return None
    assert num_drafts is not None, "prepare_draft has read the draft's own number"
    if algorithm == "NGRAM":
        return NgramSpeculation(num_drafts, least=options.shortest_match, longest=options.longest_match)
    assert options.speculative_draft_model_path is not None, "checked with the flags"
    folder = Path(options.speculative_draft_model_path)
    if algorithm == "STANDALONE":
        return read_standalone(folder, target, context_length=context_length, num_drafts=num_drafts)
    path = options.speculative_dspark_confidence_sts_path
    temperatures = None if path is None else tuple(read_temperatures(Path(path), num_drafts))
    return read_block_speculation(folder, algorithm, target, num_drafts=num_drafts, temperatures=temperatures)
