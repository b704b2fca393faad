# Sourced by the scripts beside it, after venv.sh: the shipped config follows REPLICATOR_STACK_PORTS.
#
#   follow_ports          sets KAFKA_BOOTSTRAP_SERVERS, SOURCE_DSN, DATALAKE_DSN, TARGET_DSN and CONNECT_URL, unless they are set

follow_ports() {
    local variables
    [ -n "${REPLICATOR_STACK_PORTS:-}" ] || return 0
    variables="$("$VENV/bin/python" -m adapters.stack environment)" || exit
    eval "$variables"
}
