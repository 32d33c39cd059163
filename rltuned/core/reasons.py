"""Slurm's Reason of a pending job: what it waits for, in plain words, and what its owner can do.

The names are those of job_reason_codes.html of Slurm's documentation. There are more than a hundred limits; their names
are put together of a few parts, and so are the sentences here. This is the only place that knows them: what is not
here is `Waits.UNKNOWN`, which is counted, named by `doctor`, and treated as a job that cannot start.
"""

import enum
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple


class Waits(enum.Enum):
    """What a pending job waits for."""

    ROOM = enum.auto()  # or its turn, and nothing else
    SOME = enum.auto()  # of an array, some tasks for room; others, which have records of their own, for something else
    ELIGIBILITY = enum.auto()  # another job or its begin time: sprio(1) leaves it out, although it is multifactor's
    RELEASE = enum.auto()  # it is held
    OTHER = enum.auto()  # a limit, a licence, nodes that are down, …: whatever its priority, it does not start
    UNKNOWN = enum.auto()


class Reason(NamedTuple):
    """A reason in plain words."""

    meaning: str
    help: str
    waits: Waits = Waits.OTHER


_ADMINS: Final = "Ask the admins of the cluster."
_SHORTER: Final = (
    "A shorter time limit or fewer GPUs bring it forward, and let it start in gaps. Ask only for what it needs."
)
_RELEASE: Final = "Look for the cause in the job's output, then `scontrol release JOBID`."
_NEW: Final = Reason("Slurm has not looked at it yet.", "Nothing: wait for the next look of the scheduler.", Waits.ROOM)
_ITS_TURN: Final = "It is its turn, and it waits until enough nodes, GPUs or memory are free"
_TOPOLOGY: Final = Reason(f"{_ITS_TURN} that are near enough to each other in the network.", _SHORTER, Waits.ROOM)
_FAILED: Final = Reason("Slurm could not start it.", "Look for the cause in the job's output.")

_EXACT: Final[Mapping[str, Reason]] = {
    "": _NEW,
    "None": _NEW,
    "Priority": Reason("Jobs of higher priority are before it.", _SHORTER, Waits.ROOM),
    "Resources": Reason(f"{_ITS_TURN}.", _SHORTER, Waits.ROOM),
    # Slurm's words for Resources where a job of another partition waits for the same nodes (measured on all releases).
    # Whether the nodes are down is asked of the nodes.
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": Reason(
        "The nodes that it needs are down, drained, or kept for jobs of a partition with precedence.",
        _SHORTER,
        Waits.ROOM,
    ),
    # And, since 26.05, where a topology plugin finds no room now (slurm_strerror of its ESLURM_TOPO codes).
    **dict.fromkeys(
        (
            "Required nodes lack available resources",
            "Required nodes do not fit topology",
            "No suitable topology unit found",
            "No suitable topology unit found for segment",
            "Insufficient resources in topology unit",
            "Weight-based selection could not satisfy request within topology unit",
            "Exceeded maximum node limit during topology allocation",
            "No available nodes in topology",
        ),
        _TOPOLOGY,
    ),
    "Dependency": Reason(
        "It waits for another job, as its --dependency asks.",
        "Nothing, if the other job is as you want it.",
        Waits.ELIGIBILITY,
    ),
    "DependencyNeverSatisfied": Reason(
        "The job that it waits for ended in another way than its --dependency asks. It never starts.",
        "`scancel JOBID` and submit it again, or `scontrol update JobId=JOBID Dependency=`.",
        Waits.ELIGIBILITY,
    ),
    "BeginTime": Reason(
        "Its begin time lies in the future. Slurm sets one also after a requeue.",
        "Nothing, or `scontrol update JobId=JOBID StartTime=now`.",
        Waits.ELIGIBILITY,
    ),
    "JobHeldUser": Reason("You, or a program in your name, hold it.", "`scontrol release JOBID`.", Waits.RELEASE),
    "JobHeldAdmin": Reason(
        "An admin holds it.", "Ask the admins of the cluster why. Only they can release it.", Waits.RELEASE
    ),
    "JobHoldMaxRequeue": Reason("Slurm requeued it too often, and holds it.", _RELEASE),
    "JobArrayTaskLimit": Reason(
        "As many tasks of the array run as its limit (% in --array) allows.",
        "Wait, or `scontrol update JobId=JOBID ArrayTaskThrottle=N`.",
    ),
    "PartitionTimeLimit": Reason(
        "Its time limit is longer than its partition allows. It never starts like this.",
        "`scontrol update JobId=JOBID TimeLimit=…` with a shorter one, or choose another partition.",
    ),
    "PartitionNodeLimit": Reason(
        "It asks for more or fewer nodes than its partition allows, or than are up.",
        "Ask for another number of nodes, or choose another partition.",
    ),
    "PartitionDown": Reason("Its partition starts no jobs now.", "Wait, or choose another partition."),
    "PartitionInactive": Reason("Its partition takes no jobs now.", "Choose another partition, or ask the admins."),
    "PartitionConfig": Reason("Its partition does not allow such a job.", "Choose another partition."),
    "ReqNodeNotAvail": Reason(
        "Nodes that it needs are down, drained, or reserved (for instance for a maintenance).",
        "A time limit that ends before the reservation lets it start now. Without --nodelist it can use other nodes.",
    ),
    "Reservation": Reason("Its reservation has not begun, or has no room.", "Nothing: wait for the reservation."),
    "ReservationDeleted": Reason(
        "The reservation that it asks for is gone.", "`scontrol update JobId=JOBID ReservationName=`."
    ),
    "Licenses": Reason("A licence that it needs is in use.", "Nothing: wait until one is free."),
    "BadConstraints": Reason(
        "No node can ever give what it asks for. Slurm holds it.",
        "Look at --constraint, --gres, --mem and --nodelist, then `scancel JOBID` and submit it again.",
    ),
    "NodeDown": Reason("A node that it needs is down.", "Without --nodelist it can use other nodes."),
    "Cleaning": Reason("It was requeued, and its last run is still being cleaned up.", "Nothing: wait."),
    "Prolog": Reason("The node's preparation (prolog) still runs.", "Nothing: wait."),
    "InvalidAccount": Reason("Its account does not exist any more.", _ADMINS),
    "InvalidQOS": Reason("Its QOS does not exist any more.", _ADMINS),
    "AccountNotAllowed": Reason("Its account may not use this partition.", "Choose another partition or account."),
    "QOSNotAllowed": Reason("Its QOS may not be used here.", "Choose another QOS or partition."),
    "QOSUsageThreshold": Reason(
        "Your share of the cluster is used up for this QOS.",
        "Wait until your recent use counts less, or use another QOS.",
    ),
    "AccountingPolicy": Reason("A limit of your account or QOS is reached.", "Wait until other jobs end."),
    "MaxMemPerLimit": Reason(
        "It asks for more memory on a node than is allowed (MaxMemPerNode, MaxMemPerCPU).", "Ask for less memory."
    ),
    "BurstBufferResources": Reason("It waits until enough of the burst buffer is free.", "Nothing: wait."),
    "BurstBufferStageIn": Reason("Its data is being copied into the burst buffer.", "Nothing: wait."),
    "BurstBufferOperation": Reason("Its burst buffer failed, and Slurm holds it.", _ADMINS),
    **dict.fromkeys(
        ("MpiPortsBusy", "NvidiaImexChannels", "MaxPoweredUpNodes", "PowerNotAvail", "PowerReserved"),
        Reason("Something that it needs beside nodes is in use, or limited.", "Nothing: wait until it is free."),
    ),
    "Constraints": Reason("No node fulfils its --extra now.", "Wait, or look at --extra."),
    "SchedDefer": Reason("Slurm starts no job at once here.", "Nothing: wait for the next look of the scheduler."),
    "FedJobLock": Reason("Another cluster of the federation may start it.", "Nothing: wait."),
    "FrontEndDown": Reason("The front-end node that it needs is down.", _ADMINS),
    "ReservationInvalid": Reason(
        "The reservation that it asks for does not fit it.", "`scontrol update JobId=JOBID ReservationName=`."
    ),
    "DeadLine": Reason("It cannot end before its --deadline any more.", "Submit it again with a later one."),
    **dict.fromkeys(("JobLaunchFailure", "SystemFailure"), _FAILED),
    "launch failed requeued held": Reason("It could not be started on its node, and Slurm holds it.", _RELEASE),
    "job requeued in held state": Reason("It was requeued and is held.", _RELEASE),
}

_LIMIT: Final = re.compile(
    r"(?P<whose>QOS|Assoc(?:iation)?)?(?P<kind>Grp|Max|Min)?(?P<what>CPU|Cpu|GRES|Mem(?:ory)?|Node|Billing|Bill|BB|Energy|Lic(?:ense)?|"
    r"Jobs?|SubmitJobs?|Wall(?:Duration)?|Time|Resource|Unknown)(?P<time>(?:Run)?Min(?:ute)?s)?"
    r"(?P<per>Per(?:Job|Node|User|Account)|PU|PA)?(?:Limit|NotSatisfied)?\Z"
)
_WHAT: Final = {
    "cpu": "CPUs",
    "gres": "GPUs or other GRES",
    "node": "nodes",
    "bb": "burst buffer",
    "energy": "energy",
    **dict.fromkeys(("mem", "memory"), "memory"),
    **dict.fromkeys(("billing", "bill"), "billing units"),
    **dict.fromkeys(("lic", "license"), "licences"),
    **dict.fromkeys(("job", "jobs"), "running jobs"),
    **dict.fromkeys(("submitjob", "submitjobs"), "submitted jobs"),
    **dict.fromkeys(("wall", "wallduration", "time"), "run time"),
    **dict.fromkeys(("resource", "unknown"), "resources"),
}


@lru_cache(maxsize=1024)
def parse(reason: str) -> Reason:
    """The reason as squeue (or, with underscores, scontrol) prints it; details after a comma do not matter."""
    text = reason.replace("_", " ")
    if text in _EXACT:
        return _EXACT[text]
    of_tasks = [_EXACT.get(part) or _limit(part) for part in text.split(",") if part]
    if len(of_tasks) > 1 and (known := [one for one in of_tasks if one]) == of_tasks:
        # squeue shows the reasons of all of an array's waiting tasks (print.c, _merge_job_reason).
        waits = Waits.SOME if any(one.waits is Waits.ROOM for one in known) else Waits.OTHER
        return Reason(f"Of its tasks: {' Or: '.join(one.meaning for one in known)}", known[0].help, waits)
    name = text.partition(",")[0].strip().strip("()")
    found = _EXACT.get(name) or _limit(name)
    if found is None or found.waits is Waits.ROOM:  # to these Slurm adds nothing: somebody wrote it
        return Reason(f"Slurm says: {reason}.", _ADMINS, Waits.UNKNOWN)
    return found


def _limit(name: str) -> Reason | None:
    found = _LIMIT.match(name)
    if found is None or not (found["whose"] or found["per"]):
        return None
    whose = "account" if found["whose"] in {"Assoc", "Association"} else "QOS"
    what = _WHAT[found["what"].lower()]
    of_its_own = found["per"] in {"PerJob", "PerNode"}
    if found["kind"] == "Min":
        return Reason(f"It asks for less ({what}) than its QOS demands.", "Ask for more, or use another QOS.")
    if found["time"] and not of_its_own:
        who = {"PerUser": "a user", "PerAccount": "an account"}.get(found["per"], f"the {whose}")
        return Reason(
            f"The time that {who} may use of {what} is used up, or is promised to running jobs.",
            "A shorter time limit may fit. Else wait, or ask the admins.",
        )
    if of_its_own or (what == "run time" and found["kind"] == "Max"):
        return Reason(
            f"The job alone asks for more ({what}) than the {whose} allows one job. It never starts like this.",
            f"Ask for less, or use another {whose}.",
        )
    if found["kind"] == "Grp" or found["per"] in {"PerAccount", "PA"}:
        who = "account" if found["per"] else whose
        return Reason(
            f"All jobs of the {who} together use as much ({what}) as is allowed.",
            f"Wait until jobs of the {who} end, or use another QOS or account.",
        )
    return Reason(
        f"Your jobs use as much ({what}) as one user may have under this {whose}.",
        "Wait until your own running jobs end, or cancel what you do not need. Priority does not matter until then.",
    )
