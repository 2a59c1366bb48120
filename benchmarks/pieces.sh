#!/usr/bin/env bash
# Takes a large file to a machine that accepts little at a time.
#   benchmarks/pieces.sh split FILE FOLDER    FOLDER gets NAME.00, NAME.01 … of 58 MB, and NAME.sha256
#   benchmarks/pieces.sh keep FOLDER KEPT     there: puts aside the pieces that have come
#   benchmarks/pieces.sh join KEPT NAME FILE  there: makes the file of all of them and checks it
set -euo pipefail
case ${1:?split, keep or join} in
  split)
    mkdir -p "$3"
    split -b 58MB -d "$2" "$3/$(basename "$2")."
    sha256sum <"$2" >"$3/$(basename "$2").sha256"
    ls -l "$3" ;;
  keep)
    mkdir -p "$3"
    cp "$2"/* "$3"/
    ls -l "$3" ;;
  join)
    mkdir -p "$(dirname "$4")"
    cat "$2/$3".[0-9][0-9] >"$4"
    sha256sum --check --status "$2/$3.sha256" <"$4" && echo "$4 is whole" ;;
esac
