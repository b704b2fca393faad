# Sourced by the scripts beside it: whether Docker Compose can be used here.

docker_answers() {
    command -v docker >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1
}

compose() {
    docker compose --project-directory "$PROJECT" "$@"
}
