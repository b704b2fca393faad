#!/usr/bin/env bash
# Runs the daemon. All other arguments are those of `replicator run`.
#   scripts/run-consumer.sh [--spark] [ARGUMENT ...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
source "$PROJECT/scripts/lib/ports.sh"

arguments=() packages=()
for argument in "$@"; do
    case "$argument" in
        --spark)
            arguments+=(--engine spark)
            packages=(spark)
            ;;
        *) arguments+=("$argument") ;;
    esac
done
ensure_venv ${packages[@]+"${packages[@]}"}
cd "$PROJECT"
follow_ports
exec "$VENV/bin/replicator" run ${arguments[@]+"${arguments[@]}"}
