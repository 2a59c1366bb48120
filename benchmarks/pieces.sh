#!/usr/bin/env bash
# Takes a large file to a machine that accepts little at a time.
#   benchmarks/pieces.sh split FILE FOLDER    FOLDER/NAME.00, FOLDER/NAME.01 … get a piece of 40 MB each, and NAME.sha256
#   benchmarks/pieces.sh keep FOLDER KEPT     there: puts aside the piece that has come
#   benchmarks/pieces.sh join KEPT NAME FILE  there: makes the file of all of them and checks it
set -euo pipefail
case ${1:?split, keep or join} in
  split)
    name=$(basename "$2")
    mkdir -p "$3"
    split -b 40MB -d "$2" "$3/$name.piece"
    for piece in "$3/$name".piece*; do
      folder=$3/$name.${piece##*piece}
      rm -rf "$folder" && mkdir "$folder" && mv "$piece" "$folder/$(basename "$folder")"
      sha256sum <"$2" >"$folder/$name.sha256"
    done
    ls -d "$3/$name".[0-9][0-9] ;;
  keep)
    mkdir -p "$3"
    cp "$2"/* "$3"/
    ls "$3" ;;
  join)
    mkdir -p "$(dirname "$4")"
    cat "$2/$3".[0-9][0-9] >"$4"
    sha256sum --check --status "$2/$3.sha256" <"$4" && echo "$4 is whole" ;;
esac
