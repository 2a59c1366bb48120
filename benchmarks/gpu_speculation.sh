#!/usr/bin/env bash
# The figures of speculation on a GPU: its tests, the demo model and its draft widened to an 8B model's cost, then plain,
# static and compact decoding by batch, whose costs are measured at start-up as a server measures them.
#   benchmarks/gpu_speculation.sh SECONDS OUT [PART …]     parts: tests widen figures (these, unless named), profile
# 540 seconds are enough for all three, and as many as there are figures for come back from fewer: batches go from the
# smallest up. DRAFT is the one that comes with the package, or a folder that corymb draft has trained and calibrated;
# MODEL as in gpu_draft.sh. Widened folders (17 GB) stay in WORK (/tmp/corymb-wide), so that a later run on the same
# machine leaves `widen` out. `profile` writes a table of costs beside the widened draft; then that is used.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds in all}
out=$(mkdir -p "${2:?where results go}" && cd "$2" && pwd)
parts=${*:3}
parts=${parts:-tests widen figures}
. benchmarks/gpu_environment.sh
work=${WORK:-/tmp/corymb-wide}
device=${DEVICE:-cuda}
pieces=${PIECES:-/tmp/corymb-pieces}
model=${MODEL:-/tmp/corymb-models/SmolLM2-135M-Instruct.Q4_1.gguf}
draft=${DRAFT:-speculative/smollm2_135m_instruct}
batches=${BATCHES:-1 2 4 8 16 32 64 128 256}
mkdir -p "$work"

# folder_of MODEL: a folder with its tensors; a GGUF file is converted once.
folder_of() {
  "$python" -P -c 'import sys, pathlib
from corymb.models.source import resolve
print(resolve(sys.argv[1], cache_dir=pathlib.Path("~/.cache/corymb").expanduser(), offline=True).folder)' "$1"
}

[ -e "$model" ] || benchmarks/pieces.sh join "$pieces" "$(basename "$model")" "$model" || { rm -f "$model"; exit 1; }
for part in $parts; do
  case $part in
    tests)
      run tests 150 "$python" -P -m pytest -q -p no:cacheprovider --timeout=140 tests/gpu/test_block_attention.py \
        tests/gpu/test_packing.py tests/gpu/test_standing.py tests/gpu/test_settling.py tests/gpu/test_own_slots.py \
        tests/gpu/test_speculation.py ;;
    widen)
      run widen 300 "$python" benchmarks/widen.py "$(folder_of "$model")" "$work/target" --device "$device"
      run widen-draft 60 "$python" benchmarks/widen.py "$(folder_of "$model")" "$work/draft" --draft "$draft" \
        --device "$device" ;;
    profile) # shellcheck disable=SC2086  # several numbers
      run profile 240 "$python" -P -c 'from corymb.serve.cli import corymb; corymb()' draft profile "$work/target" \
        --draft "$work/draft" --device "$device" --rows $batches ;;
    figures) # shellcheck disable=SC2086
      run figures 500 "$python" benchmarks/speculation.py "$work/target" --draft "$work/draft" --device "$device" \
        --batches $batches --trace "$out/trace.jsonl"
      gzip -f "$out/trace.jsonl"
      run plot 20 "$python" benchmarks/speculation.py --plot ;;
    *) echo "unknown part $part" ;;
  esac
done
save_kernels
cp "$work/draft/sps.json" benchmarks/results/speculation.jsonl benchmarks/results/speculation.svg "$out/" 2>/dev/null
save_logs
echo "== all: $((SECONDS - begun)) of $seconds s"
