#!/usr/bin/env bash
# Prints the state of the connector and its task. If one does not run: the head of its trace, the next step, and exit code 3.
#   scripts/check-connector.sh [NAME]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"

[ $# -le 1 ] || die "usage: scripts/check-connector.sh [NAME]" 2
ensure_venv
cd "$PROJECT"
exec "$VENV/bin/python" -m adapters.stack check "$@"
