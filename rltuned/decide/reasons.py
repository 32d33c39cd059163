"""Slurm's Reason of a pending job in plain words: what it means, and what its owner can do.

The names are those of job_reason_codes.html of Slurm's documentation. There are more than a hundred limits; their names
are put together of a few parts, and so are the sentences here.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple


class ReasonWords(NamedTuple):
    """A reason in plain words."""

    meaning: str
    help: str


_ADMINS: Final = "Ask the admins of the cluster."
_SHORTER: Final = (
    "A shorter time limit or fewer GPUs bring it forward, and let it start in gaps. Ask only for what it needs."
)
_RELEASE: Final = "Look for the cause in the job's output, then `scontrol release JOBID`."

_EXACT: Final[Mapping[str, ReasonWords]] = {
    "": ReasonWords("Slurm has not looked at it yet.", "Nothing: wait for the next look of the scheduler."),
    "None": ReasonWords("Slurm has not looked at it yet.", "Nothing: wait for the next look of the scheduler."),
    "Priority": ReasonWords("Jobs of higher priority are before it.", _SHORTER),
    "Resources": ReasonWords("It is its turn, and it waits until enough nodes, GPUs or memory are free.", _SHORTER),
    "Dependency": ReasonWords(
        "It waits for another job, as its --dependency asks.", "Nothing, if the other job is as you want it."
    ),
    "DependencyNeverSatisfied": ReasonWords(
        "The job that it waits for ended in another way than its --dependency asks. It never starts.",
        "`scancel JOBID` and submit it again, or `scontrol update JobId=JOBID Dependency=`.",
    ),
    "BeginTime": ReasonWords(
        "Its begin time lies in the future. Slurm sets one also after a requeue.",
        "Nothing, or `scontrol update JobId=JOBID StartTime=now`.",
    ),
    "JobHeldUser": ReasonWords("You, or a program in your name, hold it.", "`scontrol release JOBID`."),
    "JobHeldAdmin": ReasonWords("An admin holds it.", "Ask the admins of the cluster why. Only they can release it."),
    "JobHoldMaxRequeue": ReasonWords("Slurm requeued it too often, and holds it.", _RELEASE),
    "JobArrayTaskLimit": ReasonWords(
        "As many tasks of the array run as its limit (% in --array) allows.",
        "Wait, or `scontrol update JobId=JOBID ArrayTaskThrottle=N`.",
    ),
    "PartitionTimeLimit": ReasonWords(
        "Its time limit is longer than its partition allows. It never starts like this.",
        "`scontrol update JobId=JOBID TimeLimit=…` with a shorter one, or choose another partition.",
    ),
    "PartitionNodeLimit": ReasonWords(
        "It asks for more or fewer nodes than its partition allows, or than are up.",
        "Ask for another number of nodes, or choose another partition.",
    ),
    "PartitionDown": ReasonWords("Its partition starts no jobs now.", "Wait, or choose another partition."),
    "PartitionInactive": ReasonWords(
        "Its partition takes no jobs now.", "Choose another partition, or ask the admins."
    ),
    "PartitionConfig": ReasonWords("Its partition does not allow such a job.", "Choose another partition."),
    "ReqNodeNotAvail": ReasonWords(
        "Nodes that it needs are down, drained, or reserved (for instance for a maintenance).",
        "A time limit that ends before the reservation lets it start now. Without --nodelist it can use other nodes.",
    ),
    "Reservation": ReasonWords("Its reservation has not begun, or has no room.", "Nothing: wait for the reservation."),
    "ReservationDeleted": ReasonWords(
        "The reservation that it asks for is gone.", "`scontrol update JobId=JOBID ReservationName=`."
    ),
    "Licenses": ReasonWords("A licence that it needs is in use.", "Nothing: wait until one is free."),
    "BadConstraints": ReasonWords(
        "No node can ever give what it asks for. Slurm holds it.",
        "Look at --constraint, --gres, --mem and --nodelist, then `scancel JOBID` and submit it again.",
    ),
    "NodeDown": ReasonWords("A node that it needs is down.", "Without --nodelist it can use other nodes."),
    "Cleaning": ReasonWords("It was requeued, and its last run is still being cleaned up.", "Nothing: wait."),
    "Prolog": ReasonWords("The node's preparation (prolog) still runs.", "Nothing: wait."),
    "InvalidAccount": ReasonWords("Its account does not exist any more.", _ADMINS),
    "InvalidQOS": ReasonWords("Its QOS does not exist any more.", _ADMINS),
    "AccountNotAllowed": ReasonWords("Its account may not use this partition.", "Choose another partition or account."),
    "QOSNotAllowed": ReasonWords("Its QOS may not be used here.", "Choose another QOS or partition."),
    "QOSUsageThreshold": ReasonWords(
        "Your share of the cluster is used up for this QOS.",
        "Wait until your recent use counts less, or use another QOS.",
    ),
    "AccountingPolicy": ReasonWords("A limit of your account or QOS is reached.", "Wait until other jobs end."),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": ReasonWords(
        "The nodes that it needs are down, drained, or kept for jobs of a partition with precedence.", _SHORTER
    ),
    "launch failed requeued held": ReasonWords("It could not be started on its node, and Slurm holds it.", _RELEASE),
    "job requeued in held state": ReasonWords("It was requeued and is held.", _RELEASE),
}

_LIMIT: Final = re.compile(
    r"(?P<whose>QOS|Assoc)?(?P<kind>Grp|Max|Min)?(?P<what>CPU|Cpu|GRES|Mem(?:ory)?|Node|Billing|Bill|BB|Energy|Lic(?:ense)?|"
    r"Jobs?|SubmitJobs?|Wall(?:Duration)?|Unknown)(?P<time>(?:Run)?Minutes)?"
    r"(?P<per>Per(?:Job|Node|User|Account)|PU|PA)?(?:Limit|NotSatisfied)?\Z"
)
_WHAT: Final = {
    "cpu": "CPUs",
    "gres": "GPUs or other GRES",
    "mem": "memory",
    "memory": "memory",
    "node": "nodes",
    "billing": "billing units",
    "bill": "billing units",
    "bb": "burst buffer",
    "energy": "energy",
    "lic": "licences",
    "license": "licences",
    "job": "running jobs",
    "jobs": "running jobs",
    "submitjob": "submitted jobs",
    "submitjobs": "submitted jobs",
    "wall": "run time",
    "wallduration": "run time",
    "unknown": "resources",
}


@lru_cache(maxsize=1024)
def in_words(reason: str) -> ReasonWords:
    """What the reason means and what helps. `reason` is as squeue prints it; details after a comma do not matter."""
    if reason in _EXACT:
        return _EXACT[reason]
    name = reason.partition(",")[0].strip().strip("()")
    if name in _EXACT:
        return _EXACT[name]
    return _limit(name) or ReasonWords(f"Slurm says: {reason}.", _ADMINS)


def _limit(name: str) -> ReasonWords | None:
    found = _LIMIT.match(name)
    if found is None or not (found["whose"] or found["per"]):
        return None
    whose = "account" if found["whose"] == "Assoc" else "QOS"
    what = _WHAT[found["what"].lower()]
    of_its_own = found["per"] in {"PerJob", "PerNode"}
    if found["kind"] == "Min":
        return ReasonWords(f"It asks for less ({what}) than its QOS demands.", "Ask for more, or use another QOS.")
    if found["time"] and not of_its_own:
        return ReasonWords(
            f"The time that the {whose} may use of {what} is used up, or is promised to running jobs.",
            "A shorter time limit may fit. Else wait, or ask the admins.",
        )
    if of_its_own or (what == "run time" and found["kind"] == "Max"):
        return ReasonWords(
            f"The job alone asks for more ({what}) than the {whose} allows one job. It never starts like this.",
            f"Ask for less, or use another {whose}.",
        )
    if found["kind"] == "Grp" or found["per"] in {"PerAccount", "PA"}:
        who = "account" if found["per"] else whose
        return ReasonWords(
            f"All jobs of the {who} together use as much ({what}) as is allowed.",
            f"Wait until jobs of the {who} end, or use another QOS or account.",
        )
    return ReasonWords(
        f"Your jobs use as much ({what}) as one user may have under this {whose}.",
        "Wait until your own running jobs end, or cancel what you do not need. Priority does not matter until then.",
    )
