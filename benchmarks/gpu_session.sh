#!/usr/bin/env bash
# Everything that needs one GPU, in steps. A step that fails or overruns costs only itself; figures and logs: see
# gpu_environment.sh.
#   benchmarks/gpu_session.sh SECONDS OUT STEP …
# steps, with the seconds that they take on an H200:
#   qwen llama small fp8      decode steps over their floor, by VARIANTS of the runner (gpu_decode.py)        90 70 60 40
#   prefill                   prompts of an 8B and of a small model                                               70
#   serve-llama serve-qwen    a server's start-ups, its load by concurrency, and what that is of its steps   190 170
#   serve-prefix              a shared prefix with and without the cache                                          50
#   serve-fp8 serve-small     the same server with 8-bit keys; a small model's                                 90 45
#   models                    the models made for tests, and MODELS, say a sentence                               45
#   attention linear recurrent experts    variants of kernels; the best belong in kernels/triton_*.py     170 110 220 230
# and, beside each other, since they measure nothing; a step from above waits for all of them before it:
#   compile                   FlashInfer's kernels, as servers want them                                         100
#   tests                     tests/gpu, whose last_run.txt this leaves in OUT                                   150
#   sanitize                  the kernels' tests under compute-sanitizer                                         240
#   flashinfer                FlashInfer behind our contract                                                      90
#   parity                    models whose pieces came, against transformers and themselves                   70 110
#   unwritten                 what first gives NaN where outputs were poisoned                                    60
# SERVE_ARGS adds flags to every server. DEVICE=cpu SHAPES=tiny tries the serving steps without a GPU.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds in all}
out=$(mkdir -p "${2:?where results go}" && cd "$2" && pwd)
steps=${*:3}
: "${steps:?which steps}"
. benchmarks/gpu_environment.sh
. benchmarks/gpu_servers.sh
decode="$python benchmarks/gpu_decode.py"
read -ra variants <<<"${VARIANTS:-base}"

{
  nvidia-smi
  $python -c 'import torch, triton, numpy; print(torch.__version__, triton.__version__, numpy.__version__)'
  $python -c 'import flashinfer; print("flashinfer", flashinfer.__version__)'
} >"$logs/machine.log" 2>&1
tail -3 "$logs/machine.log"

# ours SHAPE LIMIT ARGUMENT…: decode steps with our attention.
ours() { run "decode-$1" "$2" $decode --shapes "$1" --seconds $(($2 - 15)) --attention triton --variants "${variants[@]}" "${@:3}"; }

# sanitized TOOL FILE: one file of the kernels' tests. Every allocation on its own, or an access past one would hit its
# neighbour unseen.
sanitized() {
  local name=$1-$(basename "$2" .py) status
  run "$name" "${SANITIZE_SECONDS:-280}" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$1" --error-exitcode 9 \
    $python -P -m pytest "$2" -q --tb=short -p no:cacheprovider -m "not gpu" -k "not hopper" >/dev/null
  status=$?
  [ $status = 5 ] && return # no tests
  $python benchmarks/record.py gpu sanitizer_status $status "" "tool=$1" "tests=$2" \
    "said=$(grep -hoE 'ERROR SUMMARY: .*|RACECHECK SUMMARY: .*|[0-9]+ passed.*' "$logs/$name.log" | tr '\n' ';' | tr '=' ' ')"
}

beside_sanitize() {
  local file tool
  for file in tests/gpu/test_*.py; do
    case $file in *hopper* | *runner* | *backends* | *ranks* | *full_pool* | *speculation* | *own_slots* | *second_tier* | *pieces*) continue ;; esac
    for tool in memcheck racecheck; do
      while [ "$(jobs -rp | wc -l)" -ge "${SANITIZE_PROCESSES:-8}" ]; do wait -n; done
      sanitized "$tool" "$file" &
    done
  done
  wait
}

beside_compile() {
  local what
  for what in llama-3.1-8b smollm2-135m "llama-3.1-8b --kv-cache-dtype fp8_e4m3"; do
    # shellcheck disable=SC2086  # several words
    run "compile-${what// /}" 280 $decode --batches 1 --skip floor decode prefill profile --shapes $what &
  done
  wait
}

# Kernels compile on one core each: several processes share the GPU.
beside_tests() {
  {
    echo "$(date -u +%F) · commit $(cat .commit 2>/dev/null || git rev-parse --short=10 HEAD) · $(nvidia-smi -L | head -1 | sed 's/ (UUID.*//')"
    $python -c 'import torch, triton; print("torch", torch.__version__, "· triton", triton.__version__)'
  } >"$out/last_run.txt"
  run tests "${TESTS_SECONDS:-400}" $python -P -m pytest tests/gpu -q -rs --tb=short --durations=12 -p no:cacheprovider --timeout=250 \
    -n "${TESTS_PROCESSES:-5}" --dist worksteal --deselect tests/gpu/test_compiles_for_hopper.py \
    --deselect tests/gpu/test_backends.py::test_flashinfer_attends_as_defined
  cat "$logs/tests.log" >>"$out/last_run.txt"
}

beside_flashinfer() {
  run flashinfer 250 $python -P -m pytest tests/gpu/test_backends.py -q --tb=short -p no:cacheprovider -k "flashinfer_attends and llama"
}

# One process a model: what one leaves behind does not touch the next.
beside_parity() {
  local sum model attention
  for sum in "$pieces"/*.sha256; do
    model=$(whole_model "$(basename "$sum" .sha256)") || continue
    # FlashInfer would compile kernels for Gemma's heads for minutes.
    attention=auto
    [[ $model == *gemma* ]] && attention=triton
    # shellcheck disable=SC2086  # several flags
    run "parity-$(basename "$model")" 280 $python benchmarks/gpu_parity.py "$model" --attention $attention --device "$device" ${PARITY:-} &
  done
  wait
}

beside_unwritten() { run unwritten 150 $python -P tests/gpu/first_unwritten.py mamba llama --rounds 15; }

# together: waits for what goes on beside, and says how it ended.
together() {
  local name
  wait
  for name in "${beside[@]}"; do
    echo "== $name:"
    grep -hE '^== |WRONG|right,|passed|failed|^FAILED|gave NaN' "$logs"/${name/sanitize/?*check}*.log | tail -40
  done
  beside=()
}
beside=()

for step in $steps; do
  case $step in
    compile | tests | sanitize | flashinfer | parity | unwritten)
      beside+=("$step")
      "beside_$step" >/dev/null 2>&1 &
      continue ;;
  esac
  together
  case $step in
    qwen) ours qwen3-8b "${LIMIT:-180}" --skip prefill profile ;;
    llama) ours llama-3.1-8b "${LIMIT:-150}" --skip prefill --trace "$logs" --batches 64 1 8 32 128 256 ;;
    small) ours smollm2-135m "${LIMIT:-100}" --skip prefill --trace "$logs" --batches 256 64 1 ;;
    fp8) ours llama-3.1-8b 80 --batches 64 256 --kv-cache-dtype fp8_e4m3 --skip prefill profile ;;
    prefill)
      run prefill-llama 150 $decode --shapes llama-3.1-8b --batches 16 --seconds 130 --skip floor decode --prefill-graphs 8192
      run prefill-small 90 $decode --shapes smollm2-135m --batches 16 --seconds 70 --skip floor decode --prefill-graphs 8192 ;;
    serve-llama) serve_and_load llama-3.1-8b compiled ;;
    serve-qwen) serve_and_load qwen3-8b maybe ;;
    serve-prefix) serve_prefix llama-3.1-8b ;;
    serve-fp8) serve_fp8 llama-3.1-8b ;;
    serve-small) serve_small smollm2-135m ;;
    models) serve_models ;;
    attention) run attention 170 $python benchmarks/gpu_attention.py --seconds 150 ;;
    recurrent) run recurrent 220 $python benchmarks/gpu_recurrent.py --seconds 200 ;;
    experts) run experts 230 $python benchmarks/gpu_experts.py --seconds 200 ;;
    linear) run linear 110 $python benchmarks/gpu_linear.py --seconds 95 ;;
    *) echo "unknown step $step" ;;
  esac
done
together
save_kernels
save_logs
echo "== all: $((SECONDS - begun)) of $seconds s"
