#!/usr/bin/env bash
# A whole server on a GPU under load over HTTP: start-up, throughput and latency by concurrency, the server's own step
# figures, a shared prefix with and without the cache, a small model's shape. A part that fails costs only itself.
#   benchmarks/gpu_serving.sh SECONDS OUT [PART …]      parts: tests models llama load prefix small qwen fp8
# SERVE_ARGS adds flags to every server, DEVICE=cpu and SHAPE=smollm2-135m try the script itself without a GPU.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds in all}
out=$(mkdir -p "${2:?where results go}" && cd "$2" && pwd)
parts=${*:3}
parts=${parts:-models llama load prefix small}
. benchmarks/gpu_environment.sh
port=${PORT:-30800}
device=${DEVICE:-cuda}
shape=${SHAPE:-llama-3.1-8b}
export CORYMB_CACHE=${CORYMB_CACHE:-/tmp/corymb-cache}

# start NAME ARGUMENT…: starts a server and waits until it is ready; prints its start-up. Where it does not start with
# captured prompts, it is tried without, and so are those after it.
start() {
  serve "$@" && return 0
  [[ " ${SERVE_ARGS:-} " == *prefill\ disabled* ]] && return 1
  cp "$logs/server-$1.log" "$logs/failed-$1.log"
  SERVE_ARGS="${SERVE_ARGS:-} --cuda-graph-backend-prefill disabled"
  echo "== FAILED with captured prompts; once more without"
  serve "$@"
}

# ready_s NAME: keeps the seconds of a start-up and of its stages.
ready_s() {
  grep -E '^  [a-z-]+ +[0-9.]+ s' "$logs/server-$1.log" | sed '/^  ready/q' | while read -r stage value _; do
    $python benchmarks/record.py gpu_serving startup_s "$value" s "stage=$stage" "shape=$2" "kernels=$3"
  done
}

ask() {
  curl -sS -m 60 "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' -d "$1"
  echo
}

load() { run "$1" "$2" $python benchmarks/serving.py --port "$port" --record gpu_serving --step-metrics "${@:3}"; }

folder() { $python benchmarks/gpu_shapes.py "$1" "/tmp/corymb-shapes/$1"; }

for part in $parts; do
  case $part in
    tests) run tests 150 $python -m pytest tests/gpu/test_prefill_pieces.py tests/gpu/test_full_pool.py -q --tb=short \
      -p no:cacheprovider ;;
    models)
      for model in corymb/hash corymb/tape corymb/uniform; do
        start "${model#corymb/}" "$model" && ask '{"prompt": "TAPE \"abc\"", "max_tokens": 12, "temperature": 0}'
        stop
      done
      for model in ${MODELS:-}; do
        start "$(basename "$model")" "$model" && ask '{"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0}'
        stop
      done ;;
    llama) # the first start compiles kernels, unless .kernels had them
      start first "$(folder "$shape")" --load-format dummy && ready_s first "$shape" maybe
      stop ;;
    load)
      if start "$shape" "$(folder "$shape")" --load-format dummy; then
        ready_s "$shape" "$shape" compiled
        for clients in ${CLIENTS:-1 8 32 64 128 256}; do
          load load 100 --concurrency "$clients" --input-tokens "${INPUT:-1024}" --output-tokens "${OUTPUT:-256}" --label "$shape"
        done
        load prefix 60 --dataset shared-prefix --concurrency 64 --num-requests 64 --prefix-tokens "${PREFIX:-3000}" \
          --input-tokens $((${PREFIX:-3000} + 100)) --output-tokens 64 --label "$shape, shared prefix, cache"
      fi
      stop ;;
    prefix)
      if start no-cache "$(folder "$shape")" --load-format dummy --disable-radix-cache; then
        load prefix 60 --dataset shared-prefix --concurrency 64 --num-requests 64 --prefix-tokens "${PREFIX:-3000}" \
          --input-tokens $((${PREFIX:-3000} + 100)) --output-tokens 64 --label "$shape, shared prefix, no cache"
      fi
      stop ;;
    small)
      if start small "$(folder smollm2-135m)" --load-format dummy; then
        ready_s small smollm2-135m compiled
        load small 90 --concurrency 1 64 256 --input-tokens 1024 --output-tokens 256 --label smollm2-135m
      fi
      stop ;;
    qwen)
      if start qwen "$(folder qwen3-8b)" --load-format dummy; then
        ready_s qwen qwen3-8b compiled
        load qwen 100 --concurrency 1 64 256 --input-tokens 1024 --output-tokens 256 --label qwen3-8b
      fi
      stop ;;
    fp8)
      if start fp8 "$(folder "$shape")" --load-format dummy --kv-cache-dtype fp8_e4m3; then
        grep pools "$logs/server-fp8.log"
        load fp8 100 --concurrency 64 256 --input-tokens 1024 --output-tokens 256 --label "$shape, fp8_e4m3 KV cache"
      fi
      stop ;;
    *) echo "unknown part $part" ;;
  esac
done
cp benchmarks/results/gpu_serving.jsonl "$out/" 2>/dev/null
save_kernels
save_logs
echo "== all: $((SECONDS - begun)) of $seconds s"
