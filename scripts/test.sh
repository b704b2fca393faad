#!/usr/bin/env bash
# Installs what is needed and runs every test, against real servers it starts itself. Needs Python 3.11 and bash.
#   scripts/test.sh              everything but what is long
#   scripts/test.sh --fast       unit, contract and architecture tests only, with few random histories: a minute
#   scripts/test.sh ARGUMENTS    pytest with these arguments
# REPLICATOR_EXAMPLES: random histories per sink; REPLICATOR_KILLS: kills of real processes per test; REPLICATOR_LONG=1: also
# what takes long and other tests show in little, with as many histories and kills as each test takes by itself.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
ensure_venv spark
cd "$PROJECT"

run() {
    echo "== pytest $*"
    "$VENV/bin/python" -m pytest "$@"
}

FAST=(tests/unit tests/golden tests/contract tests/architecture -n 3 -m "not slow" -q)
case "${1:-}" in
    "")
        # The long run keeps what the tests themselves take.
        [ -n "${REPLICATOR_LONG:-}" ] ||
            export REPLICATOR_EXAMPLES="${REPLICATOR_EXAMPLES:-3}" REPLICATOR_KILLS="${REPLICATOR_KILLS:-2}"
        # Spark on one of them; much of the rest waits for servers.
        run tests/unit tests/golden tests/contract tests/architecture tests/integration -n 3 -q
        # Each worker has a whole system of its own.
        run tests/end_to_end -n 2 -q
        ;;
    --fast)
        export REPLICATOR_EXAMPLES="${REPLICATOR_EXAMPLES:-3}"
        shift
        run "${FAST[@]}" "$@"
        ;;
    *) run "$@" ;;
esac
