#!/usr/bin/env bash
# Installs what is needed and runs the tests, against real servers it starts itself. Needs Python 3.11 and bash.
#   scripts/test.sh              everything but what is long
#   scripts/test.sh --fast       ruff, the import rules and the tests of memory and temporary folders: a minute, without Spark
#   scripts/test.sh --long       everything, with as many kills as each test takes by itself, six random histories of each
#                                property and more for 5 seconds, and the planted faults
#   scripts/test.sh ARGUMENTS    pytest with these arguments
# REPLICATOR_EXAMPLES: random histories per property; REPLICATOR_SECONDS: go on with more for so long; REPLICATOR_SEED: of them;
# REPLICATOR_KILLS: kills of real processes per test; REPLICATOR_INPUTS: mutated records per decoder; REPLICATOR_LONG=1: with
# any of these, what is long too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
cd "$PROJECT"
unset PYTHONDONTWRITEBYTECODE # Each worker would compile all modules again.

run() {
    echo "== pytest $*"
    "$VENV/bin/python" -m pytest "$@"
}

few() { # random histories, kills and mutated records, but in a long run
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
    # Spark on one of them; much of the rest waits for servers.
    run tests --ignore tests/end_to_end -n 3 -q || failed=$?
    # Each worker has a whole system of its own.
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
