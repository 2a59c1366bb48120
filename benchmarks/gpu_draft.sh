#!/usr/bin/env bash
# Trains, calibrates and judges the draft of the demo model, over several commands of bounded length.
#   benchmarks/gpu_draft.sh SECONDS OUT [PART …]     parts: train calibrate evaluate (all three, unless named)
# Run it again until it says "the draft is done": each run goes on where the one before it was. On the machine itself
# everything stays in WORK (/tmp/corymb-draft). For another machine OUT gets the state of the training in parts
# (state.tgz.*, 55 MB in all); put them into .draft, and a fresh WORK begins with them: conversations and features are
# made again. When the training is done OUT gets the draft instead.
# The model: MODEL, or a GGUF file that came in pieces (benchmarks/pieces.sh keep … /tmp/corymb-pieces).
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds in all}
out=$(mkdir -p "${2:?where results go}" && cd "$2" && pwd)
parts=${*:3}
parts=${parts:-train calibrate evaluate}
. benchmarks/gpu_environment.sh
work=${WORK:-/tmp/corymb-draft}
draft=$work/draft
device=${DEVICE:-cuda}
pieces=${PIECES:-/tmp/corymb-pieces}
model=${MODEL:-/tmp/corymb-models/SmolLM2-135M-Instruct.Q4_1.gguf}
limit=16777216 # bytes that a file of a draft may have
# shellcheck disable=SC2206  # several flags
train_args=(${TRAIN_ARGS:---num-drafts 7 --num-steps 12000})
# shellcheck disable=SC2206
trial_args=(${TRIAL_ARGS:-})

trial_device=${TRIAL_DEVICE:-cpu} # the loop that calibrates and evaluates speculates on CPUs so far

draft() { "$python" -P -c 'from corymb.serve.cli import corymb; corymb()' draft "$@" "$model" --offline; }

# limited NAME ARGUMENT…: `corymb draft ARGUMENT…`, with a log. Its own --stop-after bounds the training.
limited() {
  local name=$1
  shift
  echo "== $name ($(left) s left)"
  local from=$SECONDS
  draft "$@" 2>&1 | tee -a "$logs/$name.log"
  local status=${PIPESTATUS[0]}
  echo "== $name: $((SECONDS - from)) s, exit $status" | tee -a "$logs/$name.log"
  return "$status"
}

[ -e "$model" ] || benchmarks/pieces.sh join "$pieces" "$(basename "$model")" "$model" || { rm -f "$model"; exit 1; }
if [ ! -d "$work/work/state" ] && compgen -G ".draft/state.tgz.*" >/dev/null; then
  mkdir -p "$work/work" && cat .draft/state.tgz.* | tar -xz -C "$work/work" && echo "== goes on from .draft"
fi

finished=yes
for part in $parts; do
  case $part in
    train)
      # What is left when it stops pays for the copies below.
      if [ "$(left)" -lt 60 ]; then echo "== no time left"; finished=; break; fi
      limited train train --device "$device" --out "$draft" --work "$work/work" --stop-after $(($(left) - 30)) "${train_args[@]}"
      case $? in 0) ;; 75) finished=; break ;; *) finished=failed; break ;; esac ;;
    calibrate | evaluate)
      if [ "$(left)" -lt 120 ]; then echo "== no time left for $part"; finished=; break; fi
      limited "$part" "$part" --device "$trial_device" --draft "$draft" "${trial_args[@]}" || { finished=failed; break; } ;;
    *) echo "unknown part $part"; finished=failed; break ;;
  esac
done

if [ -f "$draft/model.safetensors" ]; then
  for file in "$draft"/*; do
    [ -f "$file" ] || continue
    if [ "$(stat -c %s "$file")" -ge $limit ]; then echo "== $file is too large"; finished=failed; fi
    cp "$file" "$out/"
  done
elif [ -d "$work/work/state" ]; then
  tar -cz -C "$work/work" state | split -b 15m - "$out/state.tgz."
fi
save_logs
case $finished in
  yes) echo "== the draft is done: $((SECONDS - begun)) of $seconds s" ;;
  failed) echo "== failed after $((SECONDS - begun)) s"; exit 1 ;;
  *) echo "== work is left after $((SECONDS - begun)) of $seconds s: run it again" ;;
esac
