#!/usr/bin/env bash
# Starts the services, waits until they are healthy, and registers the connector. May be repeated.
#   scripts/start.sh [--spark] [--embedded]
# Docker Compose where a Docker engine answers, otherwise (or with --embedded) local processes on the same ports.
# --spark also starts a Spark master and a worker (Docker only).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
source "$PROJECT/scripts/lib/compose.sh"

spark=no embedded=no
for argument in "$@"; do
    case "$argument" in
        --spark) spark=yes ;;
        --embedded) embedded=yes ;;
        *) die "usage: scripts/start.sh [--spark] [--embedded]" 2 ;;
    esac
done

ensure_venv
cd "$PROJECT"
if [ "$embedded" = no ] && docker_answers; then
    profile=()
    [ "$spark" = no ] || profile=(--profile spark)
    compose ${profile[@]+"${profile[@]}"} up --detach --wait
    "$VENV/bin/python" -m adapters.stack register
else
    [ "$spark" = no ] || die "Spark servers need a Docker engine with Compose; without one, start.sh starts the others only."
    "$VENV/bin/python" -m adapters.stack up
fi
echo "The services are up. Next: scripts/run-consumer.sh"
