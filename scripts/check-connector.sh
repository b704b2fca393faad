#!/usr/bin/env bash
# Shows whether the connector and its task run; when not, the head of the trace and the next step. 0 when RUNNING, 3 otherwise.
#   scripts/check-connector.sh [NAME]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"

[ $# -le 1 ] || die "usage: scripts/check-connector.sh [NAME]" 2
ensure_venv
cd "$PROJECT"
exec "$VENV/bin/python" -m adapters.stack check "$@"
