#!/usr/bin/env bash
# Installs the packages and runs the tests, against real servers that it starts. Needs Python 3.11 and bash.
#   scripts/test.sh              all tests but the long ones
#   scripts/test.sh --fast       ruff, the import rules, and tests in memory and temporary folders: a minute, without Spark
#   scripts/test.sh --long       all tests, with all kills, six random histories of each property, more of them for 5
#                                seconds, and the planted faults
#   scripts/test.sh ARGUMENTS    pytest with these arguments
# Variables: REPLICATOR_EXAMPLES (random histories per property), REPLICATOR_SECONDS (continue with more for so long),
# REPLICATOR_SEED (of the histories), REPLICATOR_KILLS (kills of real processes per test), REPLICATOR_INPUTS (mutated records
# per decoder), REPLICATOR_LONG=1 (also run the long tests).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
cd "$PROJECT"
unset PYTHONDONTWRITEBYTECODE # Each worker would compile all modules again.

run() {
    echo "== pytest $*"
    "$VENV/bin/python" -m pytest "$@"
}

few() { # fewer random histories, kills and mutated records, except in a long run
    [ -n "${REPLICATOR_LONG:-}" ] ||
        export REPLICATOR_EXAMPLES="${REPLICATOR_EXAMPLES:-2}" REPLICATOR_SECONDS="${REPLICATOR_SECONDS:-0.1}" \
            REPLICATOR_KILLS="${REPLICATOR_KILLS:-2}" REPLICATOR_INPUTS="${REPLICATOR_INPUTS:-1000}"
}

static_checks() {
    "$VENV/bin/ruff" check . && "$VENV/bin/ruff" format --check . && "$VENV/bin/lint-imports"
}

everything() {
    local failed=0
    ensure_venv spark
    # One worker runs Spark; many other tests wait for servers.
    run tests --ignore tests/end_to_end -n 3 -q || failed=$?
    # Each worker starts its own system.
    run tests/end_to_end -n 3 -q || failed=$?
    return "$failed"
}

case "${1:-}" in
    "")
        few
        everything
        ;;
    --fast)
        shift
        few
        ensure_venv
        said=$(mktemp)
        trap 'rm -f "$said"' EXIT
        static_checks >"$said" 2>&1 &
        failed=0
        # Three, since some wait for a clock or a file.
        run tests/pure tests/golden -n 3 -q -m "not slow" "$@" || failed=$?
        wait $! || failed=$?
        cat "$said"
        exit "$failed"
        ;;
    --long)
        shift
        export REPLICATOR_LONG=1 REPLICATOR_EXAMPLES="${REPLICATOR_EXAMPLES:-6}" REPLICATOR_SECONDS="${REPLICATOR_SECONDS:-5}"
        everything
        "$VENV/bin/python" -m tests.planted_faults
        ;;
    *)
        ensure_venv spark
        run "$@"
        ;;
esac
