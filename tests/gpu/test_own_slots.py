"""Rows own few slots, end at any place, and come where others were: steps that speculate touch nothing else."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from guarded import Guarded
from test_speculation import TARGET, Recorded, gpu_runner, read_drafts, requests, talk, write_target

from corymb.cache.config import CacheConfig
from corymb.speculative.allocation import Compact

NUM_SLOTS, CONTEXT = 100, 24


def test_a_step_touches_what_its_rows_own_up_to_the_contexts_end(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", TARGET)
    speculation = replace(read_drafts("DSPARK", tmp_path / "draft", target), allotment=Compact())
    cache = CacheConfig(num_full_tokens=NUM_SLOTS, num_rows=3, context_length=CONTEXT)
    room = msgspec.structs.replace(cache, num_full_tokens=NUM_SLOTS + 1)
    guarded = Guarded(gpu_runner(target, room, speculation, 1))
    asked = requests([{"max_new_tokens": 2}, {"logit_bias": {30: 100.0}}])
    long = np.arange(3, 3 + CONTEXT - 6, dtype=np.int32)
    asked.append(msgspec.structs.replace(asked[1], rid="long", prompt=long.tobytes(), logprobs=None))
    port = talk(guarded, cache, asked, Recorded())
    assert guarded.num_drafted > 2
    assert max(guarded.ends) >= CONTEXT - 4
    assert all(port.outputs[one.rid][-1].finish is not None for one in asked)
