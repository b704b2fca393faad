#!/usr/bin/env bash
# Everything from nothing: installs, starts the services, changes rows in the source, replicates them, shows every target, stops.
#   scripts/demo.sh [--spark] [--keep]
# Needs Python 3.11 and bash; no Docker. --keep leaves the services running. May be run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
source "$PROJECT/scripts/lib/ports.sh"

keep=no packages=() engine=()
for argument in "$@"; do
    case "$argument" in
        --keep) keep=yes ;;
        --spark)
            packages=(spark)
            engine=(--engine spark)
            ;;
        *) die "usage: scripts/demo.sh [--spark] [--keep]" 2 ;;
    esac
done

started=$SECONDS
ensure_venv ${packages[@]+"${packages[@]}"}
cd "$PROJECT"
follow_ports

running_before=$("$VENV/bin/python" -m adapters.stack status 2>/dev/null | grep -c healthy || true)
stop_services() {
    if [ "$keep" = no ] && [ "$running_before" -lt 5 ]; then
        "$VENV/bin/python" -m adapters.stack down
    fi
}
trap stop_services EXIT

echo "== The services: PostgreSQL (source, data lake, target), Kafka, Kafka Connect with Debezium"
"$VENV/bin/python" -m adapters.stack up
PATH="$VENV/bin:$PATH" "$VENV/bin/python" scripts/lib/demo.py ${engine[@]+"${engine[@]}"}
echo "== Done in $((SECONDS - started)) s"
