#!/usr/bin/env bash
# A model that two GPUs of one host share, against one GPU: sums over the ranks, decode steps and their floor, prefill,
# a 70B shape, equal texts, and the server's host overhead. A part that fails costs only itself.
#   benchmarks/gpu_tp.sh SECONDS OUT [PART …]      parts: sums 8b 70b equal serve deterministic
# TP sets the number of GPUs; DEVICE=cpu tries the script itself with tiny shapes over gloo.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds in all}
out=$(mkdir -p "${2:?where results go}" && cd "$2" && pwd)
parts=${*:3}
parts=${parts:-sums 8b 70b equal serve}
. benchmarks/gpu_environment.sh
# NVLink's multicast is switched off on the machines that this was written for: asking for it ends in an error.
export TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NCCL_NVLS_ENABLE=0 CORYMB_CACHE=${CORYMB_CACHE:-/tmp/corymb-cache}
tp=${TP:-2}
device=${DEVICE:-cuda}
port=${PORT:-30900}

if [ "$device" = cpu ]; then
  small=tiny large=tiny batches="1 4" large_batches="1 4" clients="1 4" dtype="--dtype float32"
  sizes="--context 32 --prompts 2 64 --chunk 64" input=32 output=8
else
  small=llama-3.1-8b large=llama-3.1-70b batches="1 8 64 256" large_batches="1 8 32 64 128" clients="1 64" dtype=
  sizes= input=1024 output=256
fi

# steps NAME LIMIT TP SHAPE ARGUMENT…
steps() {
  # shellcheck disable=SC2086  # several flags
  run "$1" "$2" $python benchmarks/gpu_tp.py --tp "$3" --shape "$4" --device "$device" --seconds "$2" $sizes "${@:5}"
}

folder() { $python benchmarks/gpu_shapes.py "$1" "/tmp/corymb-shapes/$1"; }

# answers FILE: greedy token ids for a few prompts, one after another and then all at once.
answers() {
  $python - "$port" >"$1" <<'PYTHON'
import concurrent.futures, json, random, sys, urllib.request

def ask(prompt):
    body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}}
    url = f"http://127.0.0.1:{sys.argv[1]}/generate"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request, timeout=60).read())["output_ids"]

numbers = random.Random(1)
prompts = [[numbers.randrange(3, 40000) for _ in range(5 + 37 * i)] for i in range(12)]
alone = [ask(prompt) for prompt in prompts]
with concurrent.futures.ThreadPoolExecutor(12) as pool:
    together = list(pool.map(ask, prompts))
for name, found in (("alone", alone), ("together", together)):
    for ids in found:
        print(name, *ids)
PYTHON
}

for part in $parts; do
  case $part in
    sums) run sums 150 $python -m pytest tests/gpu/test_ranks.py -q --tb=short -p no:cacheprovider ;;
    8b)
      # shellcheck disable=SC2086  # several numbers
      for count in $tp 1; do steps "steps-$count" 170 "$count" "$small" --batches $batches; done ;;
    70b)
      # shellcheck disable=SC2086
      steps steps-large 280 "$tp" "$large" --batches $large_batches ;;
    deterministic)
      # shellcheck disable=SC2086
      steps steps-deterministic 120 "$tp" "$small" --batches $batches --deterministic --skip floor prefill ;;
    equal) # in float32 with well separated scores, one GPU and several say the same
      for count in 1 "$tp"; do
        serve "equal-$count" "$(folder tiny)" --load-format dummy --dtype float32 --tp-size "$count" --check-plans \
          --max-total-tokens 20000 --enable-deterministic-inference && answers "$out/answers-$count.txt"
        stop
      done
      if cmp "$out/answers-1.txt" "$out/answers-$tp.txt"; then echo "== equal: the same"; else echo "== equal: DIFFERENT"; fi ;;
    serve)
      for count in "$tp" 1; do
        # shellcheck disable=SC2086
        if serve "serve-$count" "$(folder "$small")" --load-format dummy --tp-size "$count" $dtype; then
          for number in $clients; do
            run "load-$count" 60 $python benchmarks/serving.py --port "$port" --record gpu_tp --step-metrics \
              --concurrency "$number" --input-tokens "$input" --output-tokens "$output" --label "$small, tp=$count"
          done
        fi
        stop
      done ;;
    *) echo "unknown part $part" ;;
  esac
done
cp benchmarks/results/gpu_tp.jsonl "$out/" 2>/dev/null
save_kernels
save_logs
echo "== all: $((SECONDS - begun)) of $seconds s"
