#!/usr/bin/env bash
# Runs one of Kafka's own command-line tools against the stack's broker, in Docker or embedded.
#   scripts/kafka.sh TOOL [ARGUMENT ...]     TOOL: kafka-topics, kafka-console-consumer or kafka-consumer-groups
#   scripts/kafka.sh kafka-topics --list
#   scripts/kafka.sh kafka-console-consumer --topic cdc.public.customers --from-beginning --max-messages 3
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"
source "$PROJECT/scripts/lib/compose.sh"

[ $# -ge 1 ] || die "usage: scripts/kafka.sh kafka-topics|kafka-console-consumer|kafka-consumer-groups [ARGUMENT ...]" 2
cd "$PROJECT"
if docker_answers && [ -n "$(compose ps --quiet 2>/dev/null)" ]; then
    tool="$1"
    shift
    exec docker compose --project-directory "$PROJECT" exec kafka "$tool" --bootstrap-server kafka:9092 "$@"
fi
ensure_venv
exec "$VENV/bin/python" -m adapters.stack kafka "$@"
