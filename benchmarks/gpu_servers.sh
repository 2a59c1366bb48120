# Sourced by gpu_session.sh: whole servers under load over HTTP. Each function starts what it measures and stops it.
port=${PORT:-30800}
export CORYMB_CACHE=${CORYMB_CACHE:-/tmp/corymb-cache}

# shape NAME: the one that is meant, or what tries the script on a CPU.
shape() { echo "${SHAPES:-$1}"; }

folder() { $python benchmarks/gpu_shapes.py "$1" "/tmp/corymb-shapes/$1"; }

# ask PATH [BODY]: prints the answer.
ask() {
  $python - "http://127.0.0.1:$port/$1" "${@:2}" <<'PYTHON'
import sys, urllib.request

address, *body = sys.argv[1:]
request = urllib.request.Request(address, *(text.encode() for text in body), headers={"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).read().decode())
PYTHON
}

# ready_s NAME SHAPE KERNELS: keeps the seconds of a start-up and of its stages.
ready_s() {
  grep -E '^  [a-z-]+ +[0-9.]+ s' "$logs/server-$1.log" | sed '/^  ready/q' | while read -r stage value _; do
    $python benchmarks/record.py gpu_serving startup_s "$value" s "stage=$stage" "shape=$2" "kernels=$3"
  done
}

# tokens_of NAME SHAPE DTYPE: keeps how many tokens the pools hold.
tokens_of() {
  local tokens
  tokens=$(ask server_info | $python -c 'import json, sys; print(json.load(sys.stdin)["max_total_num_tokens"])') &&
    $python benchmarks/record.py gpu_serving kv_tokens "$tokens" tokens "shape=$2" "kv_cache_dtype=$3"
}

load() { run "$1" "$2" $python benchmarks/serving.py --port "$port" --record gpu_serving --step-metrics "${@:3}"; }

# serve_and_load SHAPE KERNELS: six loads, and the steps beside them. KERNELS: "compiled" starts it twice, so that the
# second start finds them; "maybe" once.
serve_and_load() {
  local name clients
  name=$(shape "$1")
  if [ "$2" = compiled ]; then
    serve "$name-first" "$(folder "$name")" --load-format dummy && ready_s "$name-first" "$name" maybe
    stop
  fi
  if serve "$name" "$(folder "$name")" --load-format dummy; then
    ready_s "$name" "$name" "$2"
    tokens_of "$name" "$name" auto
    for clients in ${CLIENTS:-256 64 128 1 8 32}; do
      load "load-$name" 100 --concurrency "$clients" --input-tokens "${INPUT:-1024}" --output-tokens "${OUTPUT:-256}" --label "$name"
    done
  fi
  stop
  [ "$device" = cuda ] || return
  # As the server computes them, for its rows' mean context: 1,024 + 128 tokens.
  run "offline-$name" 100 $python benchmarks/gpu_decode.py --shapes "$name" --batches 64 128 256 1 8 32 --context 1080 \
    --prompts 64 1024 --prefill-graphs 8192 --skip floor profile --seconds 85
  run "share-$name" 20 $python benchmarks/serving_share.py "$name"
}

# shared_prefix LABEL: 64 requests at once, whose first 3,000 tokens are the same.
shared_prefix() {
  load prefix 60 --dataset shared-prefix --concurrency 64 --num-requests 64 --prefix-tokens "${PREFIX:-3000}" \
    --input-tokens $((${PREFIX:-3000} + 100)) --output-tokens "${OUTPUT:-64}" --label "$1"
}

serve_prefix() {
  local name
  name=$(shape "$1")
  serve with-cache "$(folder "$name")" --load-format dummy && shared_prefix "$name, shared prefix, cache"
  stop
  serve no-cache "$(folder "$name")" --load-format dummy --disable-radix-cache && shared_prefix "$name, shared prefix, no cache"
  stop
}

serve_fp8() {
  local name
  name=$(shape "$1")
  if serve fp8 "$(folder "$name")" --load-format dummy --kv-cache-dtype fp8_e4m3; then
    tokens_of fp8 "$name" fp8_e4m3
    load fp8 100 --concurrency ${CLIENTS:-256 64} --input-tokens "${INPUT:-1024}" --output-tokens "${OUTPUT:-256}" \
      --label "$name, fp8_e4m3 KV cache"
  fi
  stop
}

serve_small() {
  local name
  name=$(shape "$1")
  if serve small "$(folder "$name")" --load-format dummy; then
    ready_s small "$name" compiled
    load small 60 --concurrency ${CLIENTS:-1 64 256} --input-tokens "${INPUT:-1024}" --output-tokens "${OUTPUT:-256}" --label "$name"
  fi
  stop
}

serve_models() {
  local model
  for model in corymb/hash corymb/tape ${MODELS:-}; do
    serve "$(basename "$model")" "$model" &&
      ask v1/completions '{"prompt": "TAPE \"abc\" The capital of France is", "max_tokens": 24, "temperature": 0}'
    stop
  done
}
