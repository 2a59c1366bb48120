"""Makes of an operator's wishes what drafts for a model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from corymb.models.build import Built
from corymb.models.config import ModelConfig
from corymb.models.speculation import Speculation
from corymb.scheduler.windows import FullWindows, WindowPolicy
from corymb.serve.speculative_options import SpeculativeOptions, VerifyMode
from corymb.speculative.allocation import CapAccept, Compact
from corymb.speculative.block_speculation import read_block_speculation
from corymb.speculative.budget import Budgets
from corymb.speculative.calibration import read_temperatures
from corymb.speculative.cost_model import read_table
from corymb.speculative.measuring import measure_server
from corymb.speculative.ngram import NgramSpeculation
from corymb.speculative.standalone import read_standalone
from corymb.speculative.trace import Trace, Traced
from corymb.speculative.verification import Allotment, WholeBlocks

_ALLOTMENTS: dict[VerifyMode, Callable[[], Allotment]] = {
    "static": WholeBlocks,
    "compact": Compact,
    "cap-accept": CapAccept,
}


def make_speculation(options: SpeculativeOptions, target: ModelConfig, context_length: int) -> Speculation | None:
    """`options` as `draft_model.prepare_draft` left them; None where nothing drafts. Raises ModelError."""
    algorithm, num_drafts = options.speculative_algorithm, options.num_drafts if options.speculative_algorithm else None
    if algorithm is None:
        return None
    assert num_drafts is not None, "prepare_draft has read the draft's own number"
    allotment = _ALLOTMENTS[options.verify_mode]()
    if algorithm == "NGRAM":
        return NgramSpeculation(
            num_drafts, least=options.shortest_match, longest=options.longest_match, allotment=allotment
        )
    assert options.speculative_draft_model_path is not None, "checked with the flags"
    folder = Path(options.speculative_draft_model_path)
    if algorithm == "STANDALONE":
        standalone = read_standalone(folder, target, context_length=context_length, num_drafts=num_drafts)
        return replace(standalone, allotment=allotment)
    path = options.speculative_dspark_confidence_sts_path
    temperatures = None if path is None else read_temperatures(Path(path), num_drafts)
    needs_confidence = algorithm == "DSPARK" and options.verify_mode != "static"
    block = read_block_speculation(
        folder,
        algorithm,
        target,
        num_drafts=num_drafts,
        temperatures=temperatures,
        needs_confidence=needs_confidence,
    )
    return replace(block, allotment=allotment)


def make_windows(options: SpeculativeOptions, built: Built, *, leads: bool = True) -> WindowPolicy | None:
    """Who decides how much is verified; None where nothing drafts. All ranks make theirs at once; the one that `leads`
    writes the trace. Raises OSError where that cannot be written."""
    if built.num_drafts is None:
        return None
    path = options.speculative_trace if leads else None
    trace = None if path is None else Trace(Path(path))
    if options.verify_mode == "static":
        full = FullWindows(built.num_drafts)
        return full if trace is None else Traced(full, trace, lambda: None)
    budgets = _budgets(options, built, built.num_drafts)
    return budgets if trace is None else Traced(budgets, trace, lambda: budgets.last)


def _budgets(options: SpeculativeOptions, built: Built, num_drafts: int) -> Budgets:
    table = options.speculative_dspark_sps_table_path
    costs = measure_server(built) if table is None else read_table(Path(table))
    fills = bool(options.speculative_dspark_align_verify_tokens_to_graph_tier)
    least_gain = options.speculative_dspark_min_predicted_gain or 0.0
    return Budgets(num_drafts, built.cache_config.num_rows, costs, least_gain=least_gain, fills_tiers=fills)
