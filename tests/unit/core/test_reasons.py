"""What a pending job waits for, as Slurm says it: a closed set, known in one place."""

import re
from pathlib import Path

import pytest

from rltuned.core.reasons import Waits, parse
from rltuned.slurm.commands import JOB_FIELDS, SEPARATOR

RECORDED = Path(__file__).parents[2] / "recorded"


def test_every_reason_that_a_real_cluster_has_given_is_in_the_table():
    column = JOB_FIELDS.index("Reason")
    seen = set()
    for path in RECORDED.glob("*/jobs*.txt"):
        if "hostile" in path.name or "separator" in path.name:
            continue
        for line in path.read_text().splitlines():
            seen.add(line.split(SEPARATOR)[column])
    seen -= {"x"}  # what an admin typed
    assert len(seen) > 10
    assert not [reason for reason in seen if parse(reason).waits is Waits.UNKNOWN]


def test_every_name_of_slurms_list_is_known():
    """Those that slurmctld puts together of them, too (job_reason_codes.html)."""
    names = (RECORDED / "reasons.txt").read_text().split()
    assert len(names) > 200
    assert [name for name in names if parse(name).waits is Waits.UNKNOWN] == []
    assert {name for name in names if parse(name).waits is Waits.ROOM} == {"None", "Priority", "Resources"}


WAITS = {
    Waits.ROOM: (
        *("No suitable topology unit found", "No suitable topology unit found for segment"),
        *("Insufficient resources in topology unit", "No available nodes in topology"),
        *("Required nodes do not fit topology", "Required nodes lack available resources"),
        "Weight-based selection could not satisfy request within topology unit",
        "Exceeded maximum node limit during topology allocation",
        "No_suitable_topology_unit_found",
    ),
    # Those of an array's tasks are understood one by one.
    Waits.SOME: (
        *("Priority,Resources", "Resources,Priority,BeginTime", "None,JobHeldUser", "QOSMaxCpuPerUserLimit,Priority"),
    ),
    Waits.OTHER: ("BeginTime,JobHeldUser",),
    # What is not of the list is no wait for room.
    Waits.UNKNOWN: (
        *("Priority,", "Priority,Soon", "Priority, says carol", "Resources, but not today"),
        *("No suitable reason", "PriorityOf2031", "priority"),
    ),
}


@pytest.mark.parametrize(("waits", "reason"), [(waits, reason) for waits, of in WAITS.items() for reason in of])
def test_what_a_job_waits_for(waits, reason):
    assert parse(reason).waits is waits


@pytest.mark.parametrize(
    ("reason", "meaning", "help_"),
    [
        ("QOSMaxGRESPerUser", r"Your jobs use as much \(GPUs", "own running jobs"),
        ("QOSMaxJobsPerUserLimit", r"Your jobs use as much \(running jobs", "own running jobs"),
        ("AssocMaxJobsLimit", r"running jobs\) as one user may have under this account", "own running jobs"),
        ("MaxGRESPerAccount", r"All jobs of the account together use as much \(GPUs", "jobs of the account end"),
        ("AssocGrpGRES", r"All jobs of the account together use as much \(GPUs", "jobs of the account end"),
        ("QOSGrpCpuLimit", r"All jobs of the QOS together use as much \(CPUs", "jobs of the QOS end"),
        ("AssocGrpGRESRunMinutes", r"time that the account may use of GPUs", "shorter time limit"),
        ("QOSGrpCPUMinutesLimit", r"time that the QOS may use of CPUs", "shorter time limit"),
        ("QOSMaxGRESPerJob", r"The job alone asks for more \(GPUs", "Ask for less"),
        ("AssocMaxWallDurationPerJobLimit", r"The job alone asks for more \(run time", "Ask for less"),
        ("QOSMaxGRESMinutesPerJob", r"The job alone asks for more \(GPUs", "Ask for less"),
        ("MaxGRESRunMinsPerUser", "time that a user may use of GPUs", "shorter time limit"),
        ("MaxMemoryRunMinsPerAccount", "time that an account may use of memory", "shorter time limit"),
        ("MaxMemPerLimit", "more memory on a node", "less memory"),
        ("BurstBufferStageIn", "burst buffer", "wait"),
        ("No suitable topology unit found", "near enough", "shorter time limit"),
        ("QOSMinGRES", r"less \(GPUs", "Ask for more"),
        ("QOSMaxMemoryPerUser", "memory", "own running jobs"),
        ("ReqNodeNotAvail, UnavailableNodes:gpu[1-4]", "reserved", "before the reservation"),
        ("ReqNodeNotAvail, May be reserved for other job", "reserved", "before the reservation"),
        ("PartitionTimeLimit", "never starts", "shorter"),
        ("JobHeldAdmin", "admin", "Only they"),
        ("BeginTime", "begin time", "StartTime=now"),
        ("Resources", "its turn", "shorter time limit"),
        ("Priority", "higher priority", "shorter time limit"),
        ("SomethingOf2031", "Slurm says: SomethingOf2031", "admins"),
        ("GRES is out of order, says carol", "Slurm says: GRES", "admins"),
    ],
)
def test_a_reason_in_plain_words_and_what_helps(reason, meaning, help_):
    words = parse(reason)
    assert re.search(meaning, words.meaning)
    assert help_ in words.help
