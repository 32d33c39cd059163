"""The optional pyslurm adapter, against a stand-in with the real names and the behaviour recorded of pyslurm 25.11.2:
pyslurm builds only where the headers of Slurm 25.11 are.
"""

import sys
import types

import pytest
from unit.slurm.standin import job as row

from rltuned.core.changes import Change, Field, Outcome, SiteFactor
from rltuned.core.config import SlurmSection
from rltuned.core.errors import PrerequisiteError, SlurmUnavailableError
from rltuned.slurm.connect import open_reader, open_writer


class RPCError(Exception):
    def __init__(self, errno=0, msg=""):
        super().__init__(msg)
        self.errno = errno


class FakeSlurm(types.ModuleType):
    """pyslurm's names over a dictionary of jobs."""

    def __init__(self):
        super().__init__("pyslurm")
        self.__version__ = "25.11.2"
        self.RPCError = RPCError
        self.jobs = {7: {}, 8: {}}
        self.down = False
        module = self

        class JobSubmitDescription:
            KNOWN = ("site_factor", "nice", "resource_sharing")

            def __init__(self, **wanted):
                for name, value in wanted.items():
                    if name not in self.KNOWN:
                        raise AttributeError(name)
                    setattr(self, name, value)

            def sent(self):
                """What reaches Slurm: a site factor or nice of 0, and an empty list, silently do not (pyslurm's
                bug)."""
                wanted = {name: getattr(self, name, None) for name in self.KNOWN}
                if wanted["resource_sharing"] not in {None, "yes", "no", "user", "mcs", "oversubscribe", "exclusive"}:
                    raise ValueError("Invalid resource_sharing type")
                return {name: value for name, value in wanted.items() if value}

        class Job:
            def __init__(self, job_id):
                self.id = job_id

            def _reach(self):
                if module.down:
                    raise RPCError(1702, "Unable to contact slurm controller (connect failure)")
                if self.id not in module.jobs:
                    raise RPCError(2017, "Invalid job id specified")
                if "error" in module.jobs[self.id]:
                    raise RPCError(*module.jobs[self.id]["error"])

            def modify(self, description):
                self._reach()
                module.jobs[self.id].setdefault("sent", []).append(description.sent())

        self.JobSubmitDescription = JobSubmitDescription
        self.Job = Job


@pytest.fixture
def pyslurm(monkeypatch):
    module = FakeSlurm()
    monkeypatch.setitem(sys.modules, "pyslurm", module)
    return module


@pytest.fixture
def section(slurm):
    return SlurmSection(backend="pyslurm", bin_dir=slurm.bin_dir)


def change(field, after, job=7, before=0):
    return Change(job, 1, field, before, SiteFactor(after) if type(after) is int else after, position=0)


OLD = types.ModuleType("pyslurm")
OLD.__version__ = "17.11.0"


@pytest.mark.parametrize("opens", [open_reader, open_writer])
@pytest.mark.parametrize(
    ("module", "said"),
    [
        (None, r"25\.11: install the extra \[pyslurm\] .*slurm\.backend"),
        (OLD, r"pyslurm 17\.11\.0 has no Job, JobSubmitDescription"),  # of before 2023
    ],
)
def test_without_a_pyslurm_that_can_be_used_the_error_names_the_remedy(monkeypatch, section, opens, module, said):
    monkeypatch.setitem(sys.modules, "pyslurm", module)
    with pytest.raises(PrerequisiteError, match=said):
        opens(section)


def test_the_command_line_backend_never_loads_pyslurm(monkeypatch, slurm):
    monkeypatch.setitem(sys.modules, "pyslurm", None)
    open_reader(SlurmSection(bin_dir=slurm.bin_dir)).ping()
    open_writer(SlurmSection(bin_dir=slurm.bin_dir)).write([])


def test_changes_become_one_update_per_job_in_pyslurms_names(pyslurm, section, slurm):
    results = open_writer(section).write(
        [
            change(Field.SITE_FACTOR, 5),
            change(Field.SITE_FACTOR, 4000, job=8),
            change(Field.OVERSUBSCRIBE, "NO"),
        ]
    )
    assert pyslurm.jobs[7]["sent"] == [{"site_factor": 5, "resource_sharing": "no"}]
    assert pyslurm.jobs[8]["sent"] == [{"site_factor": 4000}]
    assert all(result.sent and result.outcome is None for result in results)
    assert slurm.stdin is None


def test_what_pyslurm_would_silently_drop_goes_through_scontrol(pyslurm, section, slurm):
    changes = [
        change(Field.SITE_FACTOR, 0, before=9),
        change(Field.SITE_FACTOR, 3, job=8),
        change(Field.OVERSUBSCRIBE, "YES"),
        change(Field.SITE_FACTOR, 0, job=9, before=4),
    ]
    results = open_writer(section).write(changes)
    assert slurm.stdin == "update JobId=7 SiteFactor=0 OverSubscribe=YES\nupdate JobId=9 SiteFactor=0\n"
    assert pyslurm.jobs[8]["sent"] == [{"site_factor": 3}]
    assert "sent" not in pyslurm.jobs[7]
    assert [result.change for result in results] == changes
    assert all(result.sent for result in results)


def test_the_same_values_are_refused_as_by_the_command_line_adapter(pyslurm, section, slurm):
    results = open_writer(section).write([change(Field.SITE_FACTOR, True), change(Field.OVERSUBSCRIBE, "user")])
    assert [(result.sent, result.outcome) for result in results] == [(False, Outcome.FAILED)] * 2
    assert "sent" not in pyslurm.jobs[7]
    assert slurm.stdin is None


def test_what_slurm_says_settles_what_became_of_a_job(pyslurm, section):
    said = {
        *((2017, "Invalid job id specified", Outcome.GONE), (2021, "Job has already finished", Outcome.GONE)),
        *((2042, "Job is in held state, pending scheduler release", Outcome.HELD), (1, "something new", None)),
        *(
            (2002, "Access/permission denied", Outcome.DENIED),
            (2056, "Job is no longer pending execution", Outcome.GONE),
        ),
    }
    for errno, message, outcome in said:
        pyslurm.jobs[7] = {"error": (errno, message)}
        (result,) = open_writer(section).write([change(Field.SITE_FACTOR, 1)])
        assert (result.sent, result.outcome, result.message) == (True, outcome, message)


def test_losing_slurmctld_is_an_error(pyslurm, section):
    writer = open_writer(section)
    pyslurm.down = True
    with pytest.raises(SlurmUnavailableError):
        writer.write([change(Field.SITE_FACTOR, 1)])


def test_a_request_that_changes_under_a_loan_is_seen(pyslurm, section, slurm):
    reader = open_reader(section)
    seen = []
    for nodes in (1, 1, 4):
        slurm.queue([row(7, NumNodes=nodes)], factors={7: 12})
        status, jobs = reader.status([7])[7], reader.snapshot(1.0).jobs
        assert status.request == jobs.request.value(0) != ""
        assert status.site_factor == 12
        seen.append(status.request)
    assert seen[0] == seen[1] != seen[2]
