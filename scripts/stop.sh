#!/usr/bin/env bash
# Stops the services and keeps their data. --clean also deletes volumes, embedded data, deltalake/ and state/.
#   scripts/stop.sh [--clean]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
source "$PROJECT/scripts/lib/compose.sh"

clean=no
for argument in "$@"; do
    case "$argument" in
        --clean) clean=yes ;;
        *) die "usage: scripts/stop.sh [--clean]" 2 ;;
    esac
done

options=()
cd "$PROJECT"
if docker_answers; then
    [ "$clean" = no ] || options=(--volumes)
    compose --profile spark --profile daemon down ${options[@]+"${options[@]}"}
fi
if [ -d .embedded ]; then
    ensure_venv
    options=()
    [ "$clean" = no ] || options=(--clean)
    "$VENV/bin/python" -m adapters.stack down ${options[@]+"${options[@]}"}
fi
# The state of the pipeline (state/) refers to topics that are gone.
[ "$clean" = no ] || rm -rf deltalake state
echo "The services are stopped."
