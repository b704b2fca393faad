#!/usr/bin/env bash
# Jupyter on 127.0.0.1:8888 with the project importable; installed into the virtual environment when it is missing.
#   scripts/start-notebook.sh [ARGUMENT ...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"

ensure_venv
cd "$PROJECT"
if [ ! -x "$VENV/bin/jupyter-lab" ]; then
    echo "Installing JupyterLab into $VENV" >&2
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check 'jupyterlab>=4,<5' >&2 ||
        die "JupyterLab could not be installed."
fi
mkdir -p notebooks
exec "$VENV/bin/jupyter-lab" --ip=127.0.0.1 --port=8888 --notebook-dir="$PROJECT/notebooks" "$@"
