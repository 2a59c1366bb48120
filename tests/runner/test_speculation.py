"""Speculation changes no byte: hash models with drafters that are right, wrong at places, and random."""

from pathlib import Path

import pytest
from by_loop import serve
from drafting import Drafts, ForcedBudgets, ScriptedDrafter
from test_exactness import STATES, VARIANTS, generate, hashed, random_prompts, write_folder

NUM_DRAFTS = 4
NUM_TOKENS = 24


def right(window: int | None, *, recurrent: bool = False):
    return lambda said, count: hashed(bytes(said), count, window, recurrent=recurrent)


def wrong_at(places: set[int], window: int | None, *, recurrent: bool = False):
    def say(said: list[int], count: int) -> list[int]:
        drafts = hashed(bytes(said), count, window, recurrent=recurrent)
        return [0 if len(said) + place in places else token for place, token in enumerate(drafts)]

    return say


def drafters(window: int | None, *, recurrent: bool = False):
    places = {n for n in range(600) if n % 5 == 0 or n % 7 == 3}
    return {
        "right": right(window, recurrent=recurrent),
        "wrong at places": wrong_at(places, window, recurrent=recurrent),
        "always wrong": lambda said, count: [0] * count,
    }


@pytest.mark.parametrize(
    ("name", "recurrent"),
    [*((name, False) for name in drafters(None)), ("wrong at places", True)],
    ids=lambda value: value if isinstance(value, str) else "recurrent" * value,
)
@pytest.mark.parametrize("window", [None, 5], ids=["full", "window of 5"])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "mixed chunks"])
def test_hash_says_the_same(tmp_path: Path, variant: str, name: str, window: int | None, *, recurrent: bool) -> None:
    folder = write_folder(tmp_path, "CorymbHash", window, recurrent=recurrent)
    prompts = random_prompts()
    windows = ForcedBudgets(NUM_DRAFTS)
    say = drafters(window, recurrent=recurrent)[name]
    speculation = Drafts(lambda num_rows: ScriptedDrafter(say, NUM_DRAFTS, num_rows=num_rows))
    states = STATES.get(variant, {}) if recurrent else {}
    port = serve(
        folder,
        [generate(str(index), prompt, NUM_TOKENS) for index, prompt in enumerate(prompts)],
        {**VARIANTS[variant], **states, "speculation": speculation, "windows": windows},
    )
    for index, prompt in enumerate(prompts):
        assert port.token_ids(str(index)) == hashed(prompt, NUM_TOKENS, window, recurrent=recurrent)
    assert speculation.drafters[0].num_proposed > 0
    assert (windows.num_accepted > 0) == (name != "always wrong")
