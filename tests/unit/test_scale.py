"""Whole cycles beside a long queue: a daemon understands all of it, and issues no more commands than beside a short
one."""

import subprocess

import pytest
from measures.printing_slurm import RELEASES, PrintingSlurm
from measures.scale import growth, of_size

from rltuned.cluster.tables import JobState
from rltuned.daemon.metrics import PHASES
from rltuned.slurm.cli import CliReader
from rltuned.slurm.process import Runner

JOBS, NODES = 400, 40


@pytest.fixture(params=RELEASES)
def printing(request, tmp_path):
    """A small one."""
    return PrintingSlurm(tmp_path, JOBS, NODES, request.param, 1, limited=False)


def test_the_printed_queue_is_what_was_made_up_in_the_form_of_each_release(printing):
    jobs = CliReader(Runner(printing.directory)).snapshot(float(printing.now)).jobs
    assert len(jobs.pending) == JOBS
    assert sum(job.waits for job in printing.jobs) == JOBS
    assert jobs.job_id.tolist() == [job.job_id for job in printing.jobs]
    assert jobs.gpus.tolist() == [job.gpus for job in printing.jobs]
    assert jobs.gpu_type.texts() == [job.kind for job in printing.jobs]
    assert (jobs.state == JobState.RUNNING).tolist() == [not job.waits for job in printing.jobs]
    assert jobs.site_factor.tolist() == printing.factor.tolist()
    assert jobs.site_known.tolist() == [job.under_multifactor for job in printing.jobs]
    assert {job.reason for job in printing.jobs if job.waits} > {"Priority", "Dependency", "JobHeldUser"}
    assert len(printing.left_behind()) == (printing.factor != 0).sum() > JOBS / 10


def test_running_jobs_hold_what_the_nodes_say_is_taken(printing):
    snapshot = CliReader(Runner(printing.directory)).snapshot(float(printing.now))
    held = sum(int(snapshot.jobs.gpus[row]) for row in snapshot.jobs.running)
    assert held == snapshot.nodes.gpus_alloc.sum() > snapshot.nodes.gpus.sum() / 2
    names = {name for part in snapshot.partitions for name in snapshot.nodes.names if len(part.nodes)}
    assert names == set(snapshot.nodes.names)


def test_what_scontrol_gets_is_on_the_queue_when_it_ends(printing):
    job = next(job for job in printing.jobs if job.under_multifactor)
    reader = CliReader(Runner(printing.directory))
    before = reader.status([job.job_id])[job.job_id]
    with printing.answering():
        given = f"update JobId={job.job_id} SiteFactor=77\n"
        subprocess.run([printing.directory / "scontrol"], input=given, text=True, check=True, timeout=60)
        after = reader.status([job.job_id])[job.job_id]
    assert after.site_factor == 77
    assert after.priority - before.priority == 77 - (before.site_factor or 0)


@pytest.mark.parametrize("limited", [False, True])
def test_cycles_write_and_take_as_many_commands_as_with_ten_jobs(limited):
    long = of_size(JOBS, NODES, "24.11", 1, 2, limited=limited)
    assert long["applied"] > 0
    assert long["journal_entries"] > JOBS / 10
    assert {len(values) for values in long["ms"].values()} == {2}
    if not limited:
        assert long["commands"] == of_size(10, NODES, "24.11", 1, 1)["commands"]
    else:
        assert long["commands"] > 13, "several batches, each read before and after"


def test_growth_is_the_exponent_of_the_size():
    sizes = [{"jobs": jobs, "ms": {phase: [jobs**2.0, 1e12] for phase in PHASES}} for jobs in (10, 30, 100)]
    assert set(growth(sizes).values()) == {2.0}
