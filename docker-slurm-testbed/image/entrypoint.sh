#!/bin/bash
# Starts one role of the testbed: dbd, ctl, backup, login, node, scale, pair or mixed.
#
# slurmctld and slurmdbd run as daemons beside this script, which then only follows their logs: a
# test may stop, freeze or restart them, wipe their state, and the container stays.
set -euo pipefail

readonly role=$1
readonly profile=${TESTBED_PROFILE:-paper}
readonly scale_nodes=${TESTBED_SCALE_NODES:-0}
readonly scale_gpus=${TESTBED_SCALE_GPUS:-4}
version=$(slurmctld -V | grep -oE '[0-9]+\.[0-9]+' | head -1)
readonly version

write_config() {
    local conf=/etc/slurm/slurm.conf
    cp /usr/share/testbed/etc/slurm.conf $conf
    # The RPC rate limiter exists since 23.02.
    if [[ $(printf '%s\n' 23.02 "$version" | sort -V | head -1) == 23.02 ]]; then
        echo 'SlurmctldParameters=rl_enable' >>$conf
        echo 'CgroupPlugin=disabled' >/etc/slurm/cgroup.conf
    else
        printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >/etc/slurm/cgroup.conf
    fi
    if [[ $profile == scale ]]; then
        local last=$((scale_nodes - 1)) cores=$((scale_gpus * 4)) i
        for ((i = 0; i <= last; i++)); do
            echo "NodeName=n$i NodeHostname=scale NodeAddr=scale Port=$((17000 + i)) CPUs=$((2 * cores)) Sockets=2 CoresPerSocket=$cores ThreadsPerCore=1 RealMemory=256000 TmpDisk=400000 Gres=gpu:p100:$scale_gpus Feature=p100,gpu State=UNKNOWN"
        done >>$conf
        {
            echo "PartitionName=DEFAULT Nodes=n[0-$last] State=UP DefaultTime=01:00:00 MaxTime=7-00:00:00 DefMemPerCPU=1000"
            echo "PartitionName=gpu    Default=YES OverSubscribe=NO"
            echo "PartitionName=share  OverSubscribe=YES:4"
            echo "PartitionName=urgent PriorityTier=10 OverSubscribe=NO"
        } >>$conf
        echo "NodeName=n[0-$last] Name=gpu Type=p100 File=/dev/rlgpu[0-$((scale_gpus - 1))]" >/etc/slurm/gres.conf
    else
        local nodes=/usr/share/testbed/etc/nodes-$profile.conf
        # What the profile sets as well is the profile's.
        sed -i -E "/^($(grep -oE '^[A-Za-z]+=' "$nodes" | sort -u | paste -sd'|'))/d" $conf
        cat "$nodes" >>$conf
        cp "/usr/share/testbed/etc/gres-$profile.conf" /etc/slurm/gres.conf
        local topology=/usr/share/testbed/etc/topology-$profile.conf
        [[ ! -e $topology ]] || cp "$topology" /etc/slurm/topology.conf
    fi
    # What a test changes is put back from this copy.
    cp $conf /etc/slurm/slurm.conf.testbed
}

start_munge() {
    # The key is the cluster's: /etc/munge is a volume of it. The container that comes first makes the key.
    (
        flock 9
        if [[ ! -s /etc/munge/munge.key ]]; then
            head -c 1024 /dev/urandom >/etc/munge/new
            mv /etc/munge/new /etc/munge/munge.key
        fi
        # munged refuses a key that is not its own.
        chown munge:munge /etc/munge /etc/munge/munge.key
        chmod 700 /etc/munge
        chmod 400 /etc/munge/munge.key
    ) 9>/etc/munge/lock
    mkdir -p /run/munge
    chown munge:munge /run/munge
    chmod 755 /run/munge
    runuser -u munge -- munged
}

wait_for() { # HOST PORT
    until (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; do sleep 0.1; done
}

nodes_of() { # [CLOUD]: the profile's nodes that are always up, or those that Slurm switches on
    local name line
    while read -r name line; do
        case $name:$line in
        NodeName=DEFAULT:* | *State=FUTURE*) ;;
        NodeName=*State=CLOUD*) [[ -z ${1:-} ]] || scontrol show hostnames "${name#*=}" ;;
        NodeName=*) [[ ${1:-} ]] || scontrol show hostnames "${name#*=}" ;;
        esac
    done <"/usr/share/testbed/etc/nodes-$profile.conf"
}

stub_gpus() { # COUNT
    local i
    for ((i = 0; i < $1; i++)); do
        [[ -e /dev/rlgpu$i ]] || mknod -m 666 "/dev/rlgpu$i" c 1 3
    done
}

follow() { # FILE...: the container's own output, for "docker logs"
    touch "$@"
    exec tail -q -n +1 -F "$@"
}

mkdir -p /var/log/slurm /var/spool/slurmctld /var/spool/slurmd
chown slurm:slurm /var/log/slurm /var/spool/slurmctld
write_config
start_munge

case $role in
dbd)
    install -o slurm -g slurm -m 600 /usr/share/testbed/etc/slurmdbd.conf /etc/slurm/slurmdbd.conf
    mkdir -p /run/mysqld
    chown mysql:mysql /run/mysqld
    [[ -d /var/lib/mysql/mysql ]] || mariadb-install-db --user=mysql --skip-test-db >/dev/null
    # Durability is worth nothing here. Slurm wants the snapshot isolation of MariaDB 11.8 off.
    mariadbd --user=mysql --skip-networking --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 \
        --innodb-flush-log-at-trx-commit=0 --loose-innodb-snapshot-isolation=OFF &
    until mariadb -e 'select 1' >/dev/null 2>&1; do sleep 0.1; done
    mariadb -e "create database if not exists slurm_acct_db;
        create user if not exists slurm@localhost identified by 'slurm';
        grant all on slurm_acct_db.* to slurm@localhost;"
    slurmdbd
    follow /var/log/slurm/slurmdbd.log
    ;;
ctl)
    wait_for dbd 6819
    # The cluster and its users are registered before slurmctld asks for them.
    testbed-accounts
    slurmctld
    follow /var/log/slurm/slurmctld.log
    ;;
backup)
    wait_for ctl 6817
    # -i: 26.05 ends when it takes over from one that was killed before it first saved its usage (five minutes after its start).
    slurmctld -i
    follow /var/log/slurm/slurmctld.log
    ;;
login)
    exec sleep infinity
    ;;
node)
    stub_gpus "${TESTBED_GPUS:-0}"
    mkdir -p "/var/spool/slurmd/$(hostname)"
    wait_for ctl 6817
    exec slurmd -D
    ;;
scale)
    stub_gpus "$scale_gpus"
    wait_for ctl 6817
    for ((i = 0; i < scale_nodes; i++)); do
        mkdir -p "/var/spool/slurmd/n$i"
        slurmd -N "n$i"
    done
    exec sleep infinity
    ;;
mixed | pair)
    stub_gpus 4
    wait_for ctl 6817
    for node in $(nodes_of); do
        mkdir -p "/var/spool/slurmd/$node"
        slurmd -N "$node"
    done
    # The power switch of the cloud nodes: on where Slurm waits for one, unless a test keeps /run/no-power.
    clouds=$(nodes_of CLOUD | paste -sd,)
    [[ $clouds ]] || exec sleep infinity
    while sleep 1; do
        mapfile -t shown < <(scontrol -o show node "$clouds" 2>/dev/null)
        for line in "${shown[@]}"; do
            node=${line#NodeName=} node=${node%% *} state=${line#* State=} state=${state%% *} pid=
            [[ ! -e /run/slurmd-$node.pid ]] || read -r pid <"/run/slurmd-$node.pid" || true
            if [[ $state == *POWERING_UP* && ! -e /run/no-power ]]; then
                mkdir -p "/var/spool/slurmd/$node"
                [[ -d /proc/${pid:-none} ]] || slurmd -b -N "$node"
            elif [[ $state == *POWER*DOWN* && -d /proc/${pid:-none} ]]; then
                kill "$pid"
            fi
        done
    done
    ;;
*)
    echo "entrypoint: unknown role $role" >&2
    exit 2
    ;;
esac
