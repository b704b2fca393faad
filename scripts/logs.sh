#!/usr/bin/env bash
# Prints the logs of the services until Ctrl-C.
#   scripts/logs.sh [SERVICE]      postgres-source postgres-datalake postgres-target kafka debezium
#                                  in Docker also kafka-ui and, with the profile daemon, replicator
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
source "$PROJECT/scripts/lib/compose.sh"

[ $# -le 1 ] || die "usage: scripts/logs.sh [SERVICE]" 2
cd "$PROJECT"
if docker_answers && [ -n "$(compose ps --quiet 2>/dev/null)" ]; then
    exec docker compose --project-directory "$PROJECT" logs --follow --tail 50 "$@"
fi
ensure_venv
exec "$VENV/bin/python" -m adapters.stack logs --follow "$@"
