#!/usr/bin/env bash
# The cache's tiers on a GPU: their tests; copies beside the link's bandwidth, and what of their time is hidden behind
# products; the time to the first token of a long prefix that is computed or comes from the device, the host, or files, alone
# and beside others. A part that fails costs only itself.
#   benchmarks/gpu_tiers.sh SECONDS OUT [PART …]      parts: tests copies ttft
# DEVICE=cpu SHAPE=smollm2-135m TOKENS=1024 COPIES="--device cpu --layers 2 --tokens 512" tries the script itself.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds in all}
out=$(mkdir -p "${2:?where results go}" && cd "$2" && pwd)
parts=${*:3}
parts=${parts:-tests copies ttft}
. benchmarks/gpu_environment.sh
device=${DEVICE:-cuda}
shape=${SHAPE:-llama-3.1-8b}
export CORYMB_CACHE=${CORYMB_CACHE:-/tmp/corymb-cache}

for part in $parts; do
  case $part in
    tests) run tests 120 $python -m pytest tests/gpu/test_carrying.py tests/gpu/test_second_tier.py -q --tb=short -p no:cacheprovider ;;
    copies) # shellcheck disable=SC2086  # several flags
      run copies 90 $python benchmarks/gpu_copies.py ${COPIES:-} ;;
    ttft)
      run ttft 400 $python benchmarks/tiers.py --tokens "${TOKENS:-8192}" --record gpu_tiers -- \
        "$($python benchmarks/gpu_shapes.py "$shape" "/tmp/corymb-shapes/$shape")" --load-format dummy \
        --device "$device" --offline ;;
    *) echo "unknown part $part" ;;
  esac
done
cp benchmarks/results/gpu_tiers.jsonl "$out/" 2>/dev/null
save_kernels
save_logs
echo "== all: $((SECONDS - begun)) of $seconds s"
