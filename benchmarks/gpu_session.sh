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
out=$(mkdir -p "${2:?where results go}" && cd "$2" && pwd)
steps=${*:3}
steps=${steps:-tests llama plain attention linear small flashinfer qwen fp8}
. benchmarks/gpu_environment.sh
decode="$python benchmarks/gpu_decode.py"

{
  nvidia-smi
  $python -c 'import torch, triton, numpy; print(torch.__version__, triton.__version__, numpy.__version__)'
  $python -c 'import flashinfer; print("flashinfer", flashinfer.__version__)'
} >"$logs/machine.log" 2>&1
tail -3 "$logs/machine.log"

for step in $steps; do
  case $step in
    tests) # tests/gpu/last_run.txt is the last one's
      {
        echo "$(date -u +%F) · commit $(cat .commit 2>/dev/null || git rev-parse --short=10 HEAD) · $(nvidia-smi -L | head -1 | sed 's/ (UUID.*//')"
        $python -c 'import torch, triton; print("torch", torch.__version__, "· triton", triton.__version__)'
      } >"$out/last_run.txt"
      run tests "${TESTS_SECONDS:-280}" $python -P -m pytest tests/gpu -q -rs --tb=short --durations=12 -p no:cacheprovider --timeout=100 \
        --deselect tests/gpu/test_compiles_for_hopper.py \
        --deselect tests/gpu/test_backends.py::test_flashinfer_attends_as_defined
      cat "$logs/tests.log" >>"$out/last_run.txt" ;;
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
save_kernels
save_logs
echo "== all: $((SECONDS - begun)) of $seconds s"
