#!/usr/bin/env bash
# Starts the services, waits until they are healthy, and registers the connector. You can repeat it.
#   scripts/start.sh [--spark] [--embedded]
# Uses Docker Compose if a Docker engine answers. Otherwise, or with --embedded, it starts local processes on the same ports.
# REPLICATOR_STACK_PORTS changes the ports of local processes. --spark also starts a Spark master and a worker.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
source "$PROJECT/scripts/lib/compose.sh"

spark=no embedded=no
[ -z "${REPLICATOR_STACK_PORTS:-}" ] || embedded=yes
for argument in "$@"; do
    case "$argument" in
        --spark) spark=yes ;;
        --embedded) embedded=yes ;;
        *) die "usage: scripts/start.sh [--spark] [--embedded]" 2 ;;
    esac
done

packages=() servers=()
[ "$spark" = no ] || { packages=(spark) servers=(--spark); }
trap 'echo "Interrupted. Some services may still run: stop them with scripts/stop.sh." >&2; exit 130' INT
ensure_venv ${packages[@]+"${packages[@]}"}
cd "$PROJECT"
if [ "$embedded" = no ] && docker_answers; then
    profile=()
    [ "$spark" = no ] || profile=(--profile spark)
    compose ${profile[@]+"${profile[@]}"} up --detach --wait
    "$VENV/bin/python" -m adapters.stack register
else
    "$VENV/bin/python" -m adapters.stack up ${servers[@]+"${servers[@]}"}
fi
next="${REPLICATOR_STACK_PORTS:+REPLICATOR_STACK_PORTS=$REPLICATOR_STACK_PORTS }scripts/run-consumer.sh"
if [ "$spark" = yes ]; then
    port="$("$VENV/bin/python" -c 'from adapters.stack.layout import StackPorts; print(StackPorts.from_environment().spark)')"
    next="$next --spark --set spark='{spark.master: spark://127.0.0.1:$port}'"
fi
echo "The services are up. Next: $next"
