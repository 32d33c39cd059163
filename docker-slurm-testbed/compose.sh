#!/bin/bash
# Runs the compose that this machine has, with its arguments: the v2 plugin ("docker compose") or
# the standalone program (Debian bookworm's is v1, 1.29). The compose.yaml here is valid for both.
set -euo pipefail
if docker compose version >/dev/null 2>&1; then
    exec docker compose "$@"
elif command -v docker-compose >/dev/null; then
    export COMPOSE_HTTP_TIMEOUT=${COMPOSE_HTTP_TIMEOUT:-120}
    exec docker-compose "$@"
elif [[ -x /usr/libexec/docker/cli-plugins/docker-compose ]]; then
    # The plugin is there but this docker client looks for plugins elsewhere.
    exec /usr/libexec/docker/cli-plugins/docker-compose "$@"
fi
echo "compose.sh: neither 'docker compose' nor docker-compose is installed (run engine.sh)" >&2
exit 127
