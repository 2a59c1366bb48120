#!/usr/bin/env bash
# Everything that needs a GPU, once: tests, kernels, products, decode steps, prefill. A step that fails or runs out of
# its time costs only itself.
#   benchmarks/gpu_session.sh SECONDS OUT [STEP …]      steps: tests llama plain attention linear
#                                                     experts small flashinfer qwen fp8
#                                                     recurrent sanitize (only if named)
# Wheels of what the machine lacks are taken from .whl (docs/gpu.md says how to fill it). Results and logs go to OUT.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds in all}
out=${2:?where results go}
steps=${*:3}
steps=${steps:-tests llama plain attention linear small flashinfer qwen fp8}
mkdir -p "$out"
begun=$SECONDS
python=${PYTHON:-python3}
site=$(mktemp -d)

left() { echo $((seconds - (SECONDS - begun))); }

# run NAME LIMIT COMMAND…: at most LIMIT seconds, and never past the end.
run() {
  local name=$1 limit=$2
  shift 2
  local most=$(($(left) < limit ? $(left) : limit))
  if [ "$most" -lt 15 ]; then echo "== $name: no time left"; return; fi
  echo "== $name (at most $most s): ${*:2}" | tee -a "$out/session.log"
  local from=$SECONDS
  timeout --signal=INT --kill-after=10 "$most" "$@" 2>&1 | tee -a "$out/session.log"
  echo "== $name: $((SECONDS - from)) s, exit ${PIPESTATUS[0]}" | tee -a "$out/session.log"
}

if compgen -G ".whl/*.whl" >/dev/null; then
  $python -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" .whl/*.whl
fi
mkdir -p "$site/corymb"
for layer in cache kernels models scheduler serve speculative; do ln -sfn "$PWD/$layer" "$site/corymb/$layer"; done
export PYTHONPATH="$site" PYTHONUNBUFFERED=1 FLASHINFER_CUDA_ARCH_LIST=${FLASHINFER_CUDA_ARCH_LIST:-9.0a}
decode="$python benchmarks/gpu_decode.py"

{
  nvidia-smi
  $python -c 'import torch, triton, numpy; print(torch.__version__, triton.__version__, numpy.__version__)'
  $python -c 'import flashinfer; print("flashinfer", flashinfer.__version__)'
} >"$out/machine.log" 2>&1
tail -3 "$out/machine.log"

for step in $steps; do
  case $step in
    tests) run tests 200 $python -P -m pytest tests/gpu -q --tb=short -p no:cacheprovider --timeout=100 \
      --deselect tests/gpu/test_compiles_for_hopper.py \
      --deselect tests/gpu/test_backends.py::test_flashinfer_attends_as_defined ;;
    llama) run llama 220 $decode --shapes llama-3.1-8b --seconds 170 --attention triton ;;
    flashinfer) # compiles its kernels first, for two minutes
      run flashinfer 260 $decode --shapes llama-3.1-8b --batches 64 --seconds 240 --skip profile
      run flashinfer 120 $decode --shapes llama-3.1-8b --batches 64 256 --seconds 90 --attention flashinfer \
        --skip floor prefill profile
      run flashinfer 200 $python -P -m pytest tests/gpu/test_backends.py -q --tb=short -p no:cacheprovider -k llama ;;
    attention) run attention 170 $python benchmarks/gpu_attention.py --seconds 150 ;;
    recurrent) run recurrent 220 $python benchmarks/gpu_recurrent.py --seconds 200 ;;
    experts) run experts 230 $python benchmarks/gpu_experts.py --seconds 200 ;;
    linear) run linear 110 $python benchmarks/gpu_linear.py --seconds 95 ;;
    small) run small 110 $decode --shapes smollm2-135m --seconds 80 --attention triton
      run small 45 $decode --shapes smollm2-135m --batches 32 64 --seconds 30 --attention triton --fused-rows 64 --skip prefill profile ;;
    plain) for variant in "--fused-rows 0" "--fused-rows 64" "--no-early-launch"; do
      run "plain" 70 $decode --shapes llama-3.1-8b --batches 1 8 32 64 --seconds 50 --attention triton --skip floor prefill profile $variant
    done ;;
    qwen) run qwen 120 $decode --shapes qwen3-8b --seconds 90 --attention triton --skip profile ;;
    fp8) run fp8 80 $decode --shapes llama-3.1-8b --batches 64 256 --kv-cache-dtype fp8_e4m3 --seconds 60 --attention triton --skip prefill ;;
    sanitize) for tool in memcheck racecheck; do
      # Every allocation on its own, or an access past one would hit its neighbour unseen.
      run sanitize 240 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 \
        $python -P -m pytest tests/gpu -q --tb=short -p no:cacheprovider -m "not gpu" \
        -k "not hopper and not runner and not flashinfer"
    done ;;
    *) echo "unknown step $step" ;;
  esac
done
cp benchmarks/results/gpu.jsonl "$out/" 2>/dev/null
echo "== all: $((SECONDS - begun)) of $seconds s"
