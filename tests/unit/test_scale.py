"""Whole cycles beside a long queue: a daemon understands all of it, and issues no more commands than beside a short
one."""

import subprocess

import pytest
from measures.printing_slurm import PrintingSlurm
from measures.scale import Heard, growth, of_size

from rltuned.controller.tell.metrics import PHASES
from rltuned.core.config import DEFAULT_MODEL, Config
from rltuned.decide.plan import plan
from rltuned.decide.scope import Veto
from rltuned.lab.benchmarks import NOW, Canned, answers, load, snapshot
from rltuned.slurm.cli import CliReader
from rltuned.slurm.process import Runner
from rltuned.slurm.snapshot import read_snapshot

JOBS, NODES = 400, 40


@pytest.fixture
def printing(tmp_path):
    """A small one."""
    return PrintingSlurm(tmp_path, JOBS, NODES, 1, limited=False)


def test_the_printed_queue_is_what_was_made_up(printing):
    jobs, made = CliReader(Runner(printing.directory)).snapshot(NOW).jobs, snapshot(JOBS, NODES, 1).jobs
    assert len(jobs.pending) == JOBS
    assert jobs.job_id.tolist() == made.job_id.tolist() == [row.job_id for row in printing.rows]
    assert jobs.gpus.tolist() == made.gpus.tolist()
    assert jobs.state.tolist() == made.state.tolist()
    assert jobs.site_factor.tolist() == printing.factor.tolist()
    assert jobs.site_known.tolist() == [row.listed > 0 for row in printing.rows]
    assert set(jobs.reason.names) > {"Priority", "Dependency", "JobHeldUser"}
    assert len(printing.left_behind()) == (printing.factor != 0).sum() > JOBS / 10


def test_a_cycle_of_the_benchmark_plans_all_jobs_that_wait_but_those_that_fit_nowhere():
    found = plan(read_snapshot(Canned(answers(snapshot(JOBS, NODES, 1))), NOW), load(DEFAULT_MODEL), Config())
    assert set(found.scope.vetoed()) == {Veto.NEVER_RUNS}
    assert found.raised.raises


def test_what_scontrol_gets_is_on_the_queue_when_it_ends(printing):
    job = next(row for row in printing.rows if row.listed)
    reader = CliReader(Runner(printing.directory))
    before = reader.status([job.job_id])[job.job_id]
    with printing.answering():
        given = f"update JobId={job.job_id} SiteFactor=77\n"
        subprocess.run([printing.directory / "scontrol"], input=given, text=True, check=True, timeout=60)
        after = reader.status([job.job_id])[job.job_id]
    assert after.site_factor == 77
    assert after.priority - before.priority == 77 - (before.site_factor or 0)


@pytest.mark.parametrize("limited", [False, True])
def test_cycles_write_and_take_as_many_commands_as_with_half_of_the_jobs(limited):
    long = of_size(JOBS, NODES, 1, 2, limited=limited)
    assert long["applied"] > JOBS / 10, "what an earlier daemon raised is given back"
    assert long["journal_entries"] > 0
    assert {len(values) for values in long["ms"].values()} == {2}
    if not limited:
        assert long["commands"] == of_size(JOBS // 2, NODES, 1, 2)["commands"]
    else:
        assert long["commands"] > 17, "several batches, each read before and after"


def test_each_cycle_is_heard_also_one_that_says_what_was_said_lately():
    heard = Heard()
    heard.info("cycle.done", seconds={"read": 1.0})
    heard.debug("cycle.done", seconds={"read": 2.0})
    assert heard.done["seconds"] == {"read": 2.0}


def test_growth_is_the_exponent_of_the_size():
    sizes = [{"jobs": jobs, "ms": {phase: [jobs**2.0, 1e12] for phase in PHASES}} for jobs in (10, 30, 100)]
    assert set(growth(sizes).values()) == {2.0}
