#!/usr/bin/env bash
# Starts Jupyter on 127.0.0.1:8888 in notebooks/, with the project importable. Installs missing packages first.
#   scripts/start-notebook.sh [ARGUMENT ...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
source "$PROJECT/scripts/lib/ports.sh"

ensure_venv notebook
cd "$PROJECT"
follow_ports
[ "$(id -u)" -ne 0 ] || set -- --allow-root "$@" # Jupyter refuses root otherwise, as in a container
exec "$VENV/bin/jupyter-lab" --ip=127.0.0.1 --port=8888 --notebook-dir="$PROJECT/notebooks" "$@"
