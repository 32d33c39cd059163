"""A site: a simulated Slurm that has run for days under its own order, a daemon in stage shadow (or active) beside it,
and what its accounting says of the jobs, as `sacct -P` does.
"""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from unit.controller.support import make_daemon

from rltuned.core.config import Config, CycleSection, PolicySection, Stage, StateSection
from rltuned.lab.demo.simulated_slurm import Profile, SimulatedSlurm
from rltuned.simulate.shape import read_shape
from rltuned.simulate.values import JobFate
from rltuned.simulate.workload.jobs import Estimates
from rltuned.simulate.workload.simulated_estimates import estimate
from rltuned.simulate.workload.synthetic import generate
from rltuned.slurm.sacct import trace_header

CLUSTER = "6x8:a100"
INTERVAL = 900.0
"""Seconds between two cycles."""
START = 1_790_000_000.0
"""Epoch seconds of the first submission."""
LONGEST = 6 * 3600.0


@dataclass
class Site:
    """Its files, and its first and last moment, epoch seconds."""

    config: Path
    sacct: Path
    since: float
    until: float
    jobs: int

    @property
    def words(self) -> list[str]:
        """Options of `rltuned report` for the whole of it."""
        return [
            *("--config", str(self.config), "--trace", str(self.sacct), "--cluster", CLUSTER),
            *("--since", stamp(self.since), "--until", stamp(self.until)),
        ]


def stamp(seconds: float) -> str:
    """As `--since` takes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def make_site(
    directory: Path, *, jobs: int = 600, seed: int = 7, stage: Stage = Stage.SHADOW, load: float = 1.1
) -> Site:
    """Run it. The first third of the jobs is before the period that the log has."""
    shape = read_shape(CLUSTER)
    workload = generate("helios", jobs, shape, seed, load)
    known = estimate(workload, "limit", seed)
    limit = np.minimum(known.time_limit, LONGEST)
    estimates = Estimates(limit, np.minimum(known.run_time, limit))
    slurm = SimulatedSlurm(shape, workload, estimates, profile=Profile(epoch=int(START)))
    state = directory / "state"
    config = Config(
        cycle=CycleSection(stage=stage, interval=INTERVAL),
        policy=PolicySection(name="saf"),
        state=StateSection(directory=state, mirror=None),
    )
    daemon = make_daemon(config, slurm, (lambda: slurm) if stage is Stage.ACTIVE else None, slurm.clock)
    submit = workload.submit_time
    first, last = float(submit[jobs // 3]), float(submit[-1])
    slurm.advance(first)
    while slurm.simulation.now < last or len(slurm.simulation.pending):
        now = slurm.simulation.now
        slurm.advance((math.floor(now / INTERVAL) + 1.0) * INTERVAL)
        if now <= last:
            daemon.tick()
    slurm.advance(slurm.simulation.now + 2 * LONGEST)
    result = slurm.simulation.result()
    lines = [trace_header()]
    for row in range(len(workload)):
        if result.fate[row] not in {JobFate.COMPLETED, JobFate.TIMEOUT}:
            continue
        took = result.end[row] - result.start[row]
        gpus, cpus = int(workload.gpus[row]), max(int(workload.cpus[row]), 1)
        nodes = max(math.ceil(gpus / 8), 1)
        tres = f"cpu={cpus},mem=1M,node={nodes},billing={cpus}" + (f",gres/gpu={gpus}" if gpus else "")
        moments = [START + submit[row], START + submit[row], START + result.start[row], START + result.end[row]]
        texts = [datetime.fromtimestamp(round(moment), UTC).strftime("%Y-%m-%dT%H:%M:%S") for moment in moments]
        state_name = "TIMEOUT" if result.fate[row] == JobFate.TIMEOUT else "COMPLETED"
        minutes = math.ceil(limit[row] / 60)
        user = workload.user.value(row) or "nobody"
        lines.append(
            f"{workload.job_id[row]}|{user}|{workload.account.value(row) or 'lab'}|{shape.partitions[0].name}|normal|"
            f"{'|'.join(texts)}|{round(took)}|{minutes}|{tres}|{tres}|{nodes}|{state_name}"
        )
    sacct, settings = directory / "sacct.txt", directory / "config.toml"
    sacct.write_text("\n".join(lines) + "\n")
    settings.write_text(
        f'[policy]\nname = "saf"\n[estimates]\nsource = "history"\n'
        f'[state]\ndirectory = {json.dumps(str(state))}\nmirror = ""\n'
    )
    return Site(settings, sacct, START + first, START + last + 1.0, len(lines) - 1)
