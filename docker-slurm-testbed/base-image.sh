#!/bin/bash
# Makes sure that the image debian:SUITE-slim exists locally.
#
#   base-image.sh SUITE        (bookworm, trixie or forky)
#
# An image that is already here is used; else one is pulled, if a registry answers within
# $RLTUNED_TESTBED_PULL_SECONDS (default 20; 0 never asks); else debootstrap makes it from the
# Debian mirror that this machine's own apt uses. Several suites may be made at once.
set -euo pipefail

readonly suite=${1:?usage: base-image.sh SUITE}
readonly image=debian:$suite-slim
readonly pull_seconds=${RLTUNED_TESTBED_PULL_SECONDS:-20}

say() { echo "base-image $suite: $*" >&2; }

exec 9>"${TMPDIR:-/tmp}/rltuned-testbed-base-$suite.$(id -u).lock"
flock 9

docker image inspect "$image" >/dev/null 2>&1 && exit 0

if ((pull_seconds > 0)) && timeout "$pull_seconds" docker pull -q "$image" >/dev/null 2>&1; then
    say "pulled"
    exit 0
fi
say "no registry gave $image; making it with debootstrap (about 40 s)"

if [[ $(id -u) == 0 ]]; then
    as_root=()
else
    sudo -n true 2>/dev/null || { say "debootstrap needs root or passwordless sudo"; exit 1; }
    as_root=(sudo -n)
fi

debian_mirror() {
    # The Debian mirror of the host's apt sources; on another distribution the public one.
    local found
    found=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
        grep -E '^(deb |URIs:)' | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -1 | tr -d ' ' || true)
    echo "${found:-http://deb.debian.org/debian}"
}

mirror=${RLTUNED_TESTBED_MIRROR:-$(debian_mirror)}
root=$("${as_root[@]}" mktemp -d "${TMPDIR:-/tmp}/rltuned-base-$suite.XXXXXX")
trap '"${as_root[@]}" rm -rf --one-file-system "$root"' EXIT

arguments=(--variant=minbase)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -r $keyring ]] || keyring=${keyring%.gpg}.pgp
if [[ -r $keyring ]]; then
    arguments+=("--keyring=$keyring")
else
    # Not Debian: without Debian's keys the signatures cannot be checked, and an unchecked base is refused.
    say "$keyring is missing; install the package debian-archive-keyring"
    exit 1
fi
script=()
# A host older than the suite has no script of that name; all current suites share sid's.
[[ -e /usr/share/debootstrap/scripts/$suite ]] || script=(/usr/share/debootstrap/scripts/sid)

PATH=$PATH:/usr/sbin:/sbin
"${as_root[@]}" env PATH="$PATH" debootstrap "${arguments[@]}" "$suite" "$root" "$mirror" "${script[@]}" \
    >"${TMPDIR:-/tmp}/rltuned-base-$suite.log" 2>&1 9>&- ||
    { say "debootstrap failed:"; tail -5 "${TMPDIR:-/tmp}/rltuned-base-$suite.log" >&2; exit 1; }

# A frozen mirror serves a Release file past its Valid-Until; apt in the image must accept what
# debootstrap accepted. Official images are pulled from fresh mirrors and do not need it.
echo 'Acquire::Check-Valid-Until "false";' | "${as_root[@]}" tee "$root/etc/apt/apt.conf.d/99valid-until" >/dev/null
"${as_root[@]}" rm -rf "$root/var/cache/apt/archives" "$root/var/lib/apt/lists"
"${as_root[@]}" mkdir -p "$root/var/cache/apt/archives/partial" "$root/var/lib/apt/lists/partial"

"${as_root[@]}" tar -C "$root" -c . | docker import \
    --change 'CMD ["bash"]' \
    --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    - "$image" >/dev/null
say "made from $mirror"
