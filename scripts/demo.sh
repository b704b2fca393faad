#!/usr/bin/env bash
# Installs the project, and runs `replicator demo` with the same arguments.
#   scripts/demo.sh [--spark] [--keep]
# Needs Python 3.11 and bash; no Docker. Servers listen on free ports; without --keep nothing is left behind.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"

packages=()
case " $* " in
    *" --spark "*) packages=(spark) ;;
esac
ensure_venv ${packages[@]+"${packages[@]}"}
exec "$VENV/bin/replicator" demo "$@"
