"""Sliding windows and recurrent states under a whole scheduler: conversations say what plain Python says, whatever
becomes of the memory that they left behind."""

from collections.abc import Callable
from pathlib import Path

import pytest
from by_loop import FakePort, serve_rounds
from drafting import Drafts, ForcedBudgets, ScriptedDrafter
from talks import EVERYTHING, NUM_TOKENS, ask, cached, conversations, says, toy_folder

from corymb.cache.cache import Cache
from corymb.scheduler.messages import Abort, ToScheduler

MODELS = ["hash-sliding", "hash-recurrent", "hash-hybrid"]
NUM_DRAFTS = 4
# Options of a kind of memory that a model does not have are refused.
LACKS = {"state_interval": "hash-sliding", "max_states": "hash-sliding", "max_states_per_path": "hash-sliding"}
LACKS |= {"sliding_ratio": "hash-recurrent"}
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {"state_interval": 16},
    "pages of 4": {"page_size": 4, "state_interval": 16},
    "pages of 64": {"page_size": 64, "state_interval": 64},
    "chunks of 7": {"chunked_prefill_size": 7, "state_interval": 5},
    "chunks beside running rows": {"chunked_prefill_size": 32, "enable_mixed_chunk": True, "state_interval": 16},
    "whole prompts": {"chunked_prefill_size": None},
    "no overlap": {"overlap_depth": 0, "state_interval": 3},
    "retraction every 3 steps": {"test_retract_interval": 3, "state_interval": 16},
    "little memory": {"max_total_tokens": 600, "sliding_ratio": 0.3, "max_states": 7, "state_interval": 16},
    "little memory in pages": {"max_total_tokens": 768, "page_size": 16, "max_states": 5, "state_interval": 16},
    "a state a conversation": {"max_states_per_path": 1, "state_interval": 4},
    "longest prefix first": {"schedule_policy": "lpm", "state_interval": 16},
    "every hit missed": {"test_force_cache_miss": True},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def folder(model: str) -> Path:
        return toy_folder(tmp_path_factory.mktemp(model), model)

    return folder


def talk(
    folder: Path, model: str, variant: dict[str, object], after_step: Callable[[Cache], None] = lambda _: None
) -> list[FakePort]:
    """Holds all conversations, one turn of all at a time, and checks every answer."""
    turns = list(conversations(model))
    rounds = [[ask(str(i), prompt) for i, prompt in enumerate(prompts)] for prompts in turns]
    options = {name: value for name, value in variant.items() if LACKS.get(name) != model}
    ports = serve_rounds(folder, rounds, {"max_total_tokens": 4096} | options, after_step=after_step)
    for prompts, port in zip(turns, ports, strict=True):
        said = [bytes(port.token_ids(str(i))) for i in range(len(prompts))]
        assert said == [says(prompt, NUM_TOKENS, model) for prompt in prompts]
    return ports


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_conversations_are_exact(folders: Callable[[str], Path], variant: str, model: str) -> None:
    talk(folders(model), model, VARIANTS[variant])


@pytest.mark.parametrize("model", MODELS)
def test_conversations_go_on_from_what_they_left(folders: Callable[[str], Path], model: str) -> None:
    _, *later = talk(folders(model), model, {"state_interval": 4})
    turns = list(conversations(model))[1:]
    for prompts, port in zip(turns, later, strict=True):
        # Every fourth goes on from the very end of what was said.
        for hit, prompt in list(zip(cached(port), prompts, strict=True))[::4]:
            assert hit >= len(prompt) - len(" and 0? ") - 1, "a conversation was computed again"


def follow(model: str) -> Callable[[list[int], int], list[int]]:
    """Drafts what the model says, but for some places."""

    def say(known: list[int], count: int) -> list[int]:
        drafts = says(bytes(known), count, model)
        return [0 if (len(known) + place) % 9 in (2, 7) else draft for place, draft in enumerate(drafts)]

    return say


def drafting(model: str) -> dict[str, object]:
    drafter = Drafts(lambda num_rows: ScriptedDrafter(follow(model), NUM_DRAFTS, num_rows=num_rows))
    return {"speculation": drafter, "windows": ForcedBudgets(NUM_DRAFTS)}


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "chunks beside running rows"])
def test_conversations_with_drafts_are_exact(folders: Callable[[str], Path], variant: str) -> None:
    talk(folders("hash-hybrid"), "hash-hybrid", VARIANTS[variant] | drafting("hash-hybrid"), Cache.check)


@pytest.mark.parametrize("model", ["hash-recurrent", "hash-hybrid"])
@pytest.mark.parametrize("depth", [0, 1])
def test_conversations_with_drafts_leave_exact_states_near_their_ends(
    folders: Callable[[str], Path], model: str, depth: int
) -> None:
    _, *later = talk(folders(model), model, {"state_interval": 64, "overlap_depth": depth} | drafting(model))
    turns = list(conversations(model))[1:]
    for prompts, port in zip(turns, later, strict=True):
        for hit, prompt in list(zip(cached(port), prompts, strict=True))[::4]:
            # A state stays before what the last step gave.
            assert hit >= len(prompt) - len(" and 0? ") - 1 - (1 + NUM_DRAFTS), "a conversation was computed again"


@pytest.mark.parametrize(
    ("model", "component"),
    [
        ("hash-sliding", "full"),
        ("hash-sliding", "sliding"),
        ("hash-recurrent", "full"),
        ("hash-recurrent", "recurrent"),
        ("hash-hybrid", "full"),
        ("hash-hybrid", "sliding"),
        ("hash-hybrid", "recurrent"),
    ],
)
@pytest.mark.parametrize("interval", [1, 5])
def test_losing_one_kind_of_memory_alone_changes_no_answer(
    folders: Callable[[str], Path], model: str, component: str, interval: int
) -> None:
    num_steps = 0

    def evict(cache: Cache) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps % interval == 0:
            cache.execute(cache.tree.evict({component: EVERYTHING}))
            cache.check()

    talk(folders(model), model, {"state_interval": 4, "chunked_prefill_size": 32}, evict)
    assert num_steps > 50


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_aborted_requests_leave_nothing_wrong_behind(
    folders: Callable[[str], Path], model: str, page_size: int
) -> None:
    """Some are cut off while they wait, compute or decode; what they leave is found by others."""
    turns = list(conversations(model))
    rounds: list[list[ToScheduler]] = []
    for prompts in turns:
        messages: list[ToScheduler] = []
        for i, prompt in enumerate(prompts):
            messages += [ask(f"{i} cut", prompt, 100), ask(str(i), prompt), Abort(f"{max(i - 2, 0)} cut")]
        rounds.append([*messages, *(Abort(f"{i} cut") for i in range(len(prompts)))])
    options: dict[str, object] = {"max_total_tokens": 4096, "page_size": page_size}
    options |= {} if model == "hash-sliding" else {"state_interval": 4}
    for prompts, port in zip(turns, serve_rounds(folders(model), rounds, options), strict=True):
        for i, prompt in enumerate(prompts):
            expected = says(prompt, 100, model)
            assert bytes(port.token_ids(str(i))) == expected[:NUM_TOKENS]
            assert expected.startswith(bytes(port.token_ids(f"{i} cut")))
