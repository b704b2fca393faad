#!/usr/bin/env bash
# Inserts new@example.com into the source, updates it to updated@example.com, deletes it, and waits for each step in every target.
# The services and the daemon must be running.
#   scripts/test-cdc.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
source "$PROJECT/scripts/lib/ports.sh"

[ $# -eq 0 ] || die "usage: scripts/test-cdc.sh" 2
ensure_venv
cd "$PROJECT"
follow_ports
PATH="$VENV/bin:$PATH" exec "$VENV/bin/python" scripts/lib/follow_customer.py
