#!/usr/bin/env bash
# Records `replicator demo` for the README: docs/images/demo.svg is its last screen, demo-recording.svg the whole.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
cd "$PROJECT"
ensure_venv
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"$VENV/bin/python" -m venv "$folder/tools"
"$folder/tools/bin/pip" install --quiet asciinema==2.4.0 termtosvg==1.1.0 'setuptools<81'
export PATH="$VENV/bin:$PATH" LC_ALL=C.UTF-8 TERM=xterm-256color
record="$folder/tools/bin/asciinema rec --quiet --idle-time-limit 1 --cols 122 --rows 34 -c 'replicator demo' $folder/demo.cast"
script --quiet --return --command "stty cols 122 rows 34; $record" /dev/null </dev/null # A terminal, also where there is none.
"$folder/tools/bin/termtosvg" render "$folder/demo.cast" docs/images/demo-recording.svg -t window_frame
mkdir "$folder/screens"
"$folder/tools/bin/termtosvg" render "$folder/demo.cast" "$folder/screens" -t window_frame -s
cp "$(find "$folder/screens" -name '*.svg' | sort -V | tail -1)" docs/images/demo.svg
