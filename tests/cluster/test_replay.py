"""The simulator beside a real Slurm: the same 200 jobs wait as long in both, in all and in each class."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cluster.conftest import Clusters
from cluster.support import WANTED, Cluster, run_testbed
from fidelity import Fidelity, compare

from rltuned.core.config import DEFAULT_MODEL
from rltuned.records import model_files as files

STEERED = "24.11"
JOBS = 200
SEED, STEERED_SEED = "37", "16"
"""Mixtures whose classes depend least on milliseconds, as found by simulation
(docs/decisions/0080-replays-in-seconds.md)."""
ALL, STEERED_ALL, CLASS, SMALL_CLASS = 0.05, 0.10, 0.10, 0.15
"""What the mean wait may differ by: of all, of all where a daemon steers, of a class, of one with fewer than `MANY`.
Classes of 20 jobs differ by up to 12 % where something else keeps the processors busy: Slurm's passes come late
then. On a quiet machine it is half of that (docs/simulator.md)."""
ENOUGH, MANY = 12, 30
"""Jobs from which on a class is compared (the mean wait of fewer is as much luck as rule), and from which on as
strictly."""
FEW = JOBS / 10
"""Jobs that backfill must have started at least, on Slurm and simulated: what is compared is a queue in which it
matters."""


def replayed(cluster: Cluster, folder: Path, *options: str) -> dict[str, Any]:
    """What `testbed replay` writes."""
    out = folder / f"replay-{cluster.release}.json"
    run_testbed("replay", "--project", cluster.project, "--out", str(out), *options)
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def assert_alike(replay: dict[str, Any], within: float, classes: bool = True) -> Fidelity:
    """The mean wait is long enough to be compared, backfill matters, and the simulator's wait is near Slurm's.

    `within`: what the mean wait of all may differ by; `classes`: whether those of the classes are compared, too.
    """
    found = compare(replay, files.load(DEFAULT_MODEL))
    assert found.total.jobs == JOBS
    assert found.total.real > 20.0, "the queue must be long against the seconds of Slurm's passes"
    shown = {"all": found.total, **found.classes}
    text = "; ".join(f"{name}: {w.jobs} jobs {w.real:.1f} s, {100 * w.difference:+.1f} %" for name, w in shown.items())
    backfilled = found.backfilled_real, found.backfilled_simulated
    text += f"; backfilled: {backfilled[0]}, simulated {backfilled[1]:.0f}; Slurm's passes: {replay['meta']['passes']}"
    assert min(backfilled) >= FEW, text
    assert found.backfilled_real < JOBS, text
    assert abs(found.total.difference) <= within, text
    assert len(found.classes) >= 5, text
    if classes:
        for waits in found.classes.values():
            bound = SMALL_CLASS if waits.jobs < MANY else CLASS
            assert waits.jobs < ENOUGH or abs(waits.difference) <= bound, text
    return found


# One replay of two minutes on each release: plain Slurm here; 24.11, which makes its passes as 26.05 does, under the
# daemon below.
@pytest.mark.parametrize("cluster", [of for of in WANTED if of != STEERED] or [STEERED], indirect=True)
def test_200_jobs_wait_as_long_as_in_the_simulator(cluster: Cluster, tmp_path: Path):
    replay = replayed(cluster, tmp_path, "--jobs", str(JOBS), "--seed", SEED)
    jobs, meta = replay["jobs"], replay["meta"]
    assert meta["slurm"].startswith(cluster.release)
    assert {job["state"] for job in jobs} == {"COMPLETED"}
    # The simulator takes them as submitted; this only finds a submission that does not keep up at all.
    assert max(job["submit"] - job["intended"] for job in jobs) < 10.0
    assert_alike(replay, ALL)
    # Slurm is again what it was.
    assert cluster.read_file("/etc/slurm/slurm.conf") == cluster.read_file("/etc/slurm/slurm.conf.testbed")
    assert re.search(r"PriorityWeightAge\s+= 10000\n", cluster.sh("scontrol show config").stdout)


def test_a_daemon_that_steers_by_the_shipped_model_shortens_the_wait_as_in_the_simulator(
    clusters: Clusters, tmp_path: Path
):
    """One release is enough for what the daemon does; its order is the same on all (test_order)."""
    cluster = clusters.get(STEERED)
    cluster.reset()
    replay = replayed(cluster, tmp_path, "--jobs", str(JOBS), "--seed", STEERED_SEED, "--policy", "daemon:model")
    assert replay["meta"]["daemon"]["cycles"] > 20
    assert replay["meta"]["daemon"]["changes"] > JOBS / 2
    # The daemon's cycles come every 1 to 3 s: what a class waits hangs on what one of them meets (the same 40 jobs have
    # waited 4 % longer than simulated and 22 % shorter).
    steered = assert_alike(replay, STEERED_ALL, classes=False)
    # The same jobs in order of submission, simulated (the test above shows that Slurm does so): 42 s, for 27 s.
    first_come = compare({**replay, "meta": {**replay["meta"], "policy": "fifo", "interval": None}})
    assert steered.total.real < 0.8 * first_come.total.simulated
