"""The kernels compile for sm_90 where no GPU is: the interpreter accepts what the compiler does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # minutes where no kernel has been compiled before


@pytest.fixture(scope="module")
def kernels() -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_for_hopper.py")
    result = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_every_kernel_compiles(kernels) -> None:
    expected = {"attend_lanes", "plan_lanes", "store_slots", "prepare_heads", "norm_rows", "gate_rows"}
    expected |= {"peak_chunks", "race_chunks", "join_chunks", "cut_rows", "multiply_rows", "open_tokens"}
    expected |= {"spread_rows", "store_lines", "attend_latents", "merge_latents", "score_keys", "select_keys"}
    expected |= {"choose_experts", "count_pairs", "group_pairs", "multiply_pairs", "weigh_pairs"}
    expected |= {"mask_rows", "close_rows", "list_slots", "copy_slots", "sum_rows", "pick_rows"}
    expected |= {"convolve_tokens", "convolve_pieces", "keep_windows", "fold_rows", "solve_pieces", "scan_rows"}
    expected |= {"convolve_rows", "carry_slots"}
    expected |= {
        "gate_heads",
        "distil_rows",
        "attend_blocks",
        "stand_rows",
        "allot_rows",
        "pack_windows",
        "settle_rows",
    }
    assert {kernel["name"] for kernel in kernels} >= expected


def test_attention_uses_tensor_cores_and_asynchronous_copies(kernels) -> None:
    attends = [kernel for kernel in kernels if kernel["name"] == "attend_lanes"]
    assert all(kernel["async_copies"] for kernel in attends)
    assert all(kernel["tensor_products"] for kernel in attends if not kernel["exact"])
    assert any(kernel["wgmma"] for kernel in attends)


def test_two_narrow_lanes_fit_one_multiprocessor(kernels) -> None:
    twice = 0
    for kernel in kernels:
        if kernel["name"] == "attend_lanes" and not kernel["wgmma"]:
            assert kernel["shared_bytes"] + 1024 <= 228 * 1024
            fits = 2 * (kernel["shared_bytes"] + 1024) <= 228 * 1024
            twice += fits and 2 * kernel["num_warps"] * 32 * kernel["registers"] <= 65536
    assert twice >= 4  # three models in 16 bits, one in 8


def test_nothing_spills_much(kernels) -> None:
    assert [kernel for kernel in kernels if kernel["stack_bytes"] > 96] == []
