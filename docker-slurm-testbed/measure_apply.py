#!/usr/bin/env python3
"""How long it takes to apply 256 changes and read them back, as SlurmUser, on a cluster that is up.

    docker-slurm-testbed/testbed up --slurm 24.11 --project mine
    docker-slurm-testbed/measure_apply.py --project mine [--rounds 5]
    docker-slurm-testbed/testbed down --project mine

256 pending jobs of one class are turned round by one cycle of the installed daemon and given back
by `rltuned restore`, so many times; printed is what the daemon's own log says (`seconds.apply`: reading before, the
journal's fsync, one scontrol, reading back). It empties the cluster's queue and wipes rltuned's state in `ctl`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

from testbed import Project, discover

JOBS = 256
RLTUNED = "/opt/rltuned/venv/bin/rltuned"
QUEUE = """
set -e
chown slurm:slurm /var/lib/rltuned /run/rltuned
scancel --state=PENDING; scancel -s KILL -f --state=RUNNING; scancel --state=RUNNING
while [ -n "$(squeue -h)" ]; do sleep 0.2; done
cd /tmp
filler=$(sbatch --parsable -o /dev/null --uid=dave -p urgent -N5 --exclusive -t 1-0 --wrap='sleep 86400')
for attempt in $(seq 60); do [ "$(squeue -h -j $filler -o %T)" = RUNNING ] && break; sleep 0.5; done
[ "$(squeue -h -j $filler -o %T)" = RUNNING ]
for n in $(seq 256); do
    sbatch -o /dev/null --uid=alice --gres=gpu:1 --nice=$((10 * n)) -t $((1000 - n)) --wrap='sleep 60' >/dev/null
done
sleep 3
"""
CONFIGURATION = """
[cycle]
stage = "active"
[policy]
name = "sjf"
[placement]
apply = "off"
[log]
format = "json"
"""


def rounds(project: Project, count: int) -> list[float]:
    """Seconds of each round."""
    project.execute("cat >/tmp/measure.toml", text_input=CONFIGURATION)
    as_slurm = f"runuser -u slurm -- {RLTUNED}"
    measured = []
    for _ in range(count):
        log = project.execute(f"{as_slurm} run --once --config /tmp/measure.toml 2>&1").stdout
        done = next(json.loads(line) for line in log.splitlines() if '"cycle.done"' in line)
        if done["changes"] != {"applied": JOBS}:
            sys.exit(f"not {JOBS} changes: {done['sentence']}")
        measured.append(done["seconds"]["apply"])
        project.execute(f"{as_slurm} restore --config /tmp/measure.toml")
    return measured


def main() -> None:
    """Prints one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", required=True, help="a cluster of five nodes that is up")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    project = discover(options.project)
    project.install_rltuned()
    project.execute(QUEUE)
    measured = rounds(project, options.rounds)
    middle, worst = statistics.median(measured), max(measured)
    print(f"Slurm {project.release} {JOBS} changes: p50 {middle:.2f} s, max {worst:.2f} s, n {len(measured)}")


if __name__ == "__main__":
    main()
