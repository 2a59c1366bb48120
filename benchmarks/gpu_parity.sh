#!/usr/bin/env bash
# Joins the models that came in pieces (benchmarks/pieces.sh keep … /tmp/corymb-pieces) and compares the GPU's answers.
#   benchmarks/gpu_parity.sh SECONDS OUT [ARGUMENT of gpu_parity.py …]
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds in all}
out=$(mkdir -p "${2:?where results go}" && cd "$2" && pwd)
. benchmarks/gpu_environment.sh
pieces=${PIECES:-/tmp/corymb-pieces}
for sum in "$pieces"/*.sha256; do
  name=$(basename "$sum" .sha256)
  model=/tmp/corymb-models/$name
  [ -f "$model" ] || benchmarks/pieces.sh join "$pieces" "$name" "$model" || { rm -f "$model"; echo "== $name is not whole"; continue; }
  # One process a model: what one leaves behind does not touch the next.
  run "parity-$name" 400 $python benchmarks/gpu_parity.py "$model" "${@:3}"
done
cp benchmarks/results/gpu_parity.jsonl "$out/" 2>/dev/null
save_kernels
save_logs
echo "== all: $((SECONDS - begun)) of $seconds s"
