#!/bin/bash
# Makes sure that a container engine answers here, and that compose and debootstrap exist.
#
#   engine.sh           install and start what is missing (says what it does); silent when nothing is
#   engine.sh --check   change nothing; exit 0 when everything is there, 1 with the reason when not
#
# Idempotent, and safe to call from several processes at once. It changes the machine only as root
# or with passwordless sudo, and only through apt. dockerd is started directly because the machine
# may have no systemd (a container, a CI runner); it outlives this script.
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly check_only=$([[ ${1:-} == --check ]] && echo yes || echo no)

say() { echo "engine: $*" >&2; }
fail() {
    say "$1"
    say "remedy: $2"
    exit 1
}

answers() { command -v docker >/dev/null && timeout 20 docker info >/dev/null 2>&1; }
has_compose() { "$here/compose.sh" version >/dev/null 2>&1; }
has_debootstrap() {
    { command -v debootstrap >/dev/null || [[ -x /usr/sbin/debootstrap ]]; } &&
        [[ -r /usr/share/keyrings/debian-archive-keyring.gpg || -r /usr/share/keyrings/debian-archive-keyring.pgp ]]
}

if answers && has_compose && has_debootstrap; then
    exit 0
fi
if [[ $check_only == yes ]]; then
    answers || { say "no container engine answers"; exit 1; }
    has_compose || { say "no compose (neither 'docker compose' nor docker-compose)"; exit 1; }
    say "no debootstrap, or no keys of the Debian archive"
    exit 1
fi

if [[ $(id -u) == 0 ]]; then
    as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    fail "no container engine answers this user, and neither root nor passwordless sudo is available to install or start one" \
        "as root run: apt-get install docker.io docker-compose debootstrap; systemctl start docker; usermod -aG docker $(id -un)"
fi

# One at a time: two apt runs, or two dockerd, would each spoil the other.
readonly lock=${TMPDIR:-/tmp}/rltuned-testbed-engine.$(id -u).lock
exec 9>"$lock"
flock 9

# grep reads to the end (no -q): under pipefail an early exit would count as a failure of apt-cache.
installable() { apt-cache policy "$1" 2>/dev/null | grep 'Candidate: [^(]' >/dev/null; }
updated=no
install() {
    # install PURPOSE PACKAGE...: installs the first of the packages that this distribution has.
    local purpose=$1 package
    shift
    command -v apt-get >/dev/null || fail "$purpose is missing and this machine has no apt" \
        "install $purpose with this system's package manager and run this again"
    if [[ $updated == no ]]; then
        "${as_root[@]}" apt-get update -qq || say "apt-get update failed; trying with the lists at hand"
        updated=yes
    fi
    for package in "$@"; do
        if installable "$package"; then
            say "installing the package $package ($purpose)"
            "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
                apt-get install -qq -y --no-install-recommends "$package" >/dev/null 9>&- ||
                fail "apt-get could not install $package" "run 'apt-get install $package' and read what it says"
            return
        fi
    done
    fail "none of the packages $* is known to apt ($purpose)" "install $purpose by hand"
}

start_dockerd() {
    # Not started twice: a dockerd that is still coming up answers a little later.
    if ! pgrep -x dockerd >/dev/null; then
        if [[ -d /run/systemd/system ]] && "${as_root[@]}" systemctl start docker 2>/dev/null; then
            say "started docker.service"
        else
            say "starting dockerd in the background (log: /var/log/dockerd.log)"
            # descriptor 9 is the lock: a daemon that inherited it would keep it for ever.
            "${as_root[@]}" bash -c 'rm -f /var/run/docker.pid
                nohup setsid dockerd >>/var/log/dockerd.log 2>&1 </dev/null 9>&- &'
        fi
    fi
    local deadline=$((SECONDS + 60))
    until "${as_root[@]}" docker info >/dev/null 2>&1; do
        ((SECONDS < deadline)) || fail "dockerd does not answer" "read /var/log/dockerd.log or 'journalctl -u docker'"
        sleep 0.3
    done
    answers || fail "the container engine runs, but this user may not use it" \
        "as root: usermod -aG docker $(id -un), then log in again"
}

if ! answers; then
    if ! command -v dockerd >/dev/null && [[ ! -x /usr/sbin/dockerd ]]; then
        # A remote or rootless engine is not ours to replace.
        [[ -z ${DOCKER_HOST:-} ]] || fail "DOCKER_HOST=$DOCKER_HOST does not answer" "start that engine or unset DOCKER_HOST"
        install "the container engine" docker.io
    fi
    # Debian 13 keeps the client apart.
    command -v docker >/dev/null || install "the engine's client" docker-cli docker.io
    start_dockerd
fi
# v2 (the plugin) where there is one; bookworm's docker-compose is v1, which serves as well.
has_compose || install "compose" docker-compose-v2 docker-compose-plugin docker-compose
has_compose || fail "compose is installed but does not run" "try: $here/compose.sh version"
if ! has_debootstrap; then
    install "base images without a registry" debootstrap
    # Ubuntu's debootstrap does not bring Debian's keys.
    install "keys of the Debian archive" debian-archive-keyring
fi
say "ready: $(docker version --format '{{.Server.Version}}'), $("$here/compose.sh" version --short 2>/dev/null | head -1)"
