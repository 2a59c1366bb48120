"""The GPU's runner brings back from host memory what it put there, beside steps that neither need nor disturb it."""

import pytest
from by_loop import serve_rounds
from late_copies import put_off_copies
from talks import EVERYTHING, NUM_TOKENS, ask, conversations, says, toy_folder

from corymb.cache.cache import Cache
from corymb.models.second_tier import SecondTier
from corymb.scheduler import prefetching


@pytest.mark.parametrize("policy", ["write_back", pytest.param("write_through", marks=pytest.mark.gpu)])
@pytest.mark.timeout(280)
def test_answers_do_not_depend_on_where_their_beginnings_were_nor_on_when_copies_are_done(
    tmp_path, monkeypatch, policy
):
    put_off_copies(monkeypatch)
    monkeypatch.setattr(prefetching, "LEAST_SENT_AHEAD", 16)
    caches = []

    def forget(cache: Cache) -> None:
        cache.execute(cache.tree.evict({"full": EVERYTHING}))
        cache.check()
        caches[:] = [cache]

    folder, model = toy_folder(tmp_path, "hash-hybrid"), "hash-hybrid"
    turns = list(conversations(model, num_turns=2))
    rounds = [[ask(str(i), prompt) for i, prompt in enumerate(prompts)] for prompts in turns]
    options = {
        "device": "cuda",
        "max_total_tokens": 4096,
        "state_interval": 4,
        "second_tier": SecondTier(policy=policy),
    }
    ports = serve_rounds(folder, rounds, options, after_step=forget)
    for prompts, port in zip(turns, ports, strict=True):
        said = [bytes(port.token_ids(str(i))) for i in range(len(prompts))]
        assert said == [says(prompt, NUM_TOKENS, model) for prompt in prompts]
    moved = caches[0].host.moved
    assert min(moved.stored.values()) > 0
    assert min(moved.loaded.values()) > 0
