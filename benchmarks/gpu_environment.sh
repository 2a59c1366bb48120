# Sourced by scripts that run on a GPU machine without a package index: installs wheels from .whl, makes the layers
# importable, and takes compiled kernels from .kernels, where an earlier run on such a machine left them.
# Every figure is in OUT/figures.tsv as soon as it is known (`record.py take` merges it), and every step's log in OUT/logs:
# a command that is cut off loses nothing. Pieces of models that came in .pieces are put aside in /tmp/corymb-pieces.
# Wants seconds and out, and port for servers; sets python, device, site, begun and logs; gives left, run, serve, stop,
# save_kernels, save_logs.
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
logs=$out/logs
mkdir -p "$logs"
begun=$SECONDS
server=
pieces=${PIECES:-/tmp/corymb-pieces}
export CORYMB_FIGURES=$out/figures.tsv PATH=$PATH:/usr/local/cuda/bin
site=${SITE:-/tmp/corymb-site} # always the same: FlashInfer compiles anew where its path differs

left() { echo $((seconds - (SECONDS - begun))); }

# run NAME LIMIT COMMAND…: at most LIMIT seconds, and never past the end. A failure costs only itself.
run() {
  local name=$1 limit=$2
  shift 2
  local most=$(($(left) < limit ? $(left) : limit))
  if [ "$most" -lt 10 ]; then echo "== $name: no time left"; return 1; fi
  echo "== $name (at most $most s)"
  local from=$SECONDS status
  timeout --signal=INT --kill-after=10 "$most" "$@" 2>&1 | tee -a "$logs/$name.log"
  status=${PIPESTATUS[0]}
  echo "== $name: $((SECONDS - from)) s, exit $status" | tee -a "$logs/$name.log"
  return "$status"
}

# serve NAME ARGUMENT…: starts a server on $device and $port and waits until it is ready; prints its start-up.
serve() {
  local name=$1 log=$logs/server-$1.log from=$SECONDS
  shift
  # shellcheck disable=SC2086  # several flags
  $python -P -m corymb.serve "$@" --device "$device" --port "$port" --offline ${SERVE_ARGS:-} >"$log" 2>&1 &
  server=$!
  touch "$log"
  until grep -q '^  ready' "$log"; do
    if ! kill -0 $server 2>/dev/null || [ "$(left)" -lt 10 ]; then
      echo "== $name did not start after $((SECONDS - from)) s:"
      tail -25 "$log"
      stop
      return 1
    fi
    sleep 0.1
  done
  echo "== $name serves:"
  sed '/^  ready/q' "$log"
}

# stop: ends it.
stop() {
  [ -n "$server" ] && kill -INT $server 2>/dev/null && wait $server
  server=
}
trap stop EXIT

# save_kernels: with KERNELS=1, leaves what was compiled in OUT, in parts that another machine's run finds in .kernels.
save_kernels() {
  [ "${KERNELS:-0}" = 1 ] || return 0
  (cd "$HOME" && mkdir -p .cache/flashinfer .triton/cache && tar -cz .cache/flashinfer .triton/cache 2>/dev/null) | split -b 15m - "$out/kernels.tgz."
}

# save_logs: as one file, since few come back from such a machine.
save_logs() { tar -czf "$out/logs.tgz" -C "$out" logs && rm -r "$logs"; }

# whole_model NAME: joins the pieces of a model, unless that was done; prints its path.
whole_model() {
  local model=/tmp/corymb-models/$1
  [ -f "$model" ] || benchmarks/pieces.sh join "$pieces" "$1" "$model" >&2 || { rm -f "$model"; echo "== $1 is not whole" >&2; return 1; }
  echo "$model"
}

for folder in .pieces/*/; do
  [ -d "$folder" ] && [ "$device" = cuda ] && benchmarks/pieces.sh keep "$folder" "$pieces"
done

if compgen -G ".whl/*.whl" >/dev/null && [ ! -d "$site/msgspec" ]; then
  $python -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" .whl/*.whl
fi
if compgen -G ".kernels/kernels.tgz.*" >/dev/null; then
  # Headers must not look newer than what was compiled from them.
  find "$site/flashinfer" -exec touch -d 2020-01-01 {} + 2>/dev/null
  cat .kernels/kernels.tgz.* | tar -xz -C "$HOME"
fi
mkdir -p "$site/corymb"
for layer in cache kernels models scheduler serve speculative; do ln -sfn "$PWD/$layer" "$site/corymb/$layer"; done
export PYTHONPATH="$site" PYTHONUNBUFFERED=1 FLASHINFER_CUDA_ARCH_LIST=${FLASHINFER_CUDA_ARCH_LIST:-9.0a}
