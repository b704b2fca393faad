# Sourced by the scripts beside it: a virtual environment with exactly the locked packages and this project.
#
#   ensure_venv [spark|notebook]   creates it or brings it up to date, only when a lock or the project's metadata changed;
#                         with `spark` also the packages of the Spark engine, with `notebook` those of Jupyter too
#   $VENV                 its folder (.venv, or REPLICATOR_VENV)

PROJECT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
VENV="${REPLICATOR_VENV:-$PROJECT/.venv}"

die() {
    echo "$1" >&2
    exit "${2:-3}"
}

find_python() {
    local name
    for name in python3.11 python3.12 python3.13 python3.14 python3 python; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    return 1
}

stamp() { # of the files named
    "$VENV/bin/python" -c 'import hashlib, pathlib, sys
print(hashlib.sha256(b"".join(pathlib.Path(f).read_bytes() for f in sys.argv[1:])).hexdigest())' "$@"
}

install_lock() { # of the file named, unless exactly it was installed before
    local lock="$PROJECT/$1" wanted
    wanted="$(stamp "$lock" "$PROJECT/pyproject.toml")"
    [ "$(cat "$VENV/.installed-$1" 2>/dev/null)" != "$wanted" ] || return 0
    echo "Installing the locked packages of $1 into $VENV" >&2
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock" >&2 ||
        die "The locked packages cannot be installed: see the message of pip above."
    # By the locked build backend, which isolation would fetch without its hash.
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        --editable "$PROJECT" >&2 ||
        die "The project cannot be installed: see the message of pip above."
    echo "$wanted" >"$VENV/.installed-$1"
}

ensure_venv() {
    local python
    if [ ! -x "$VENV/bin/python" ]; then
        python="$(find_python)" || die "Python 3.11 or newer is not on the PATH. Install it, and repeat."
        echo "Creating $VENV with $python" >&2
        "$python" -m venv "$VENV" || die "$VENV cannot be created. On Debian and Ubuntu, install the package python3-venv."
    fi
    install_lock requirements.lock
    case "${1:-}" in
        spark | notebook) install_lock requirements-spark.lock ;;
    esac
    [ "${1:-}" != notebook ] || install_lock requirements-notebook.lock
}
