"""What a cluster must have to be steered: asked by the daemon of each new reading, and by ``rltuned doctor``."""

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltuned.controller.health.rpc_budget import LEAST_BURST, LOOK_RPCS, SHARE, SNAPSHOT_RPCS, STATUS_RPCS, Budget
from rltuned.core.changes import Outcome
from rltuned.core.config import Config
from rltuned.slurm.port import ClusterFacts, Privilege

if TYPE_CHECKING:  # needs NumPy
    from rltuned.decide.entry import CycleEntry

TRIED = ((22, 5), (24, 11), (26, 5))  # releases of the clusters that the tests have
READ = ((25, 5), (25, 11))  # releases whose answers, as their sources print them, the tests have


class Severity(enum.StrEnum):
    """How bad."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"  # works, but not as well as it could
    ERROR = "error"  # the daemon stays in shadow mode


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `doctor` says."""

    severity: Severity
    subject: str
    cause: str
    remedy: str = ""


def prerequisites(facts: ClusterFacts, config: Config, cycles: "Sequence[CycleEntry]" = ()) -> list[Finding]:
    """What the cluster's configuration means for rltuned. An ERROR keeps the daemon in shadow mode.

    `cycles`: the last ones, where there are any.
    """
    first = [_release(facts), _privilege(facts), _priorities(facts), _scheduler(facts)]
    return [*first, *_others(facts), _accounting(facts), _limiter(facts, config, cycles)]


def blocking(findings: Sequence[Finding]) -> list[Finding]:
    """Those that forbid writing."""
    return [finding for finding in findings if finding.severity is _ERROR]


_OK, _NOTE, _WARNING, _ERROR = Severity
_WATCH = "watch it in stage shadow first"
_RECONFIGURE = "and run `scontrol reconfigure`"
# Of `ClusterFacts.priority_weights`.
_NO_WEIGHTS = {"max_age", "half_life", "favor_small", "small_relative_to_time", "max_tres"}


def _release(facts: ClusterFacts) -> Finding:
    name = f"Slurm {facts.version} ({facts.cluster_name})"
    on_clusters, on_answers = (", ".join(f"{major}.{minor:02}" for major, minor in of) for of in (TRIED, READ))
    if facts.release in TRIED:
        return Finding(_OK, "release", f"{name}, tested on clusters")
    if facts.release in READ:
        cause = f"{name}, tested on its answers only; clusters were of {on_clusters}"
        return Finding(_NOTE, "release", cause, _WATCH)
    cause = f"{name} was not tested; tested are {on_clusters} on clusters, {on_answers} on their answers"
    return Finding(_WARNING, "release", cause, _WATCH)


def _privilege(facts: ClusterFacts) -> Finding:
    if facts.privilege is not Privilege.NONE:
        return Finding(_OK, "privilege", f"{facts.user} is {facts.privilege}")
    remedy = f"sacctmgr modify user {facts.user} set AdminLevel=Operator (or `add user` first)"
    if not facts.accounting:
        remedy = "without slurmdbd only root and SlurmUser may; run rltuned as SlurmUser"
    elif not facts.accounting_reachable:
        remedy = "slurmdbd does not answer, so the privilege is unknown: start it, or run rltuned as SlurmUser"
    return Finding(_ERROR, "privilege", f"{facts.user} may not change other users' jobs", remedy)


def _priorities(facts: ClusterFacts) -> Finding:
    if facts.priority_type != "priority/multifactor":
        cause = f"PriorityType is {facts.priority_type or 'unset'}: there are no priorities to hand out"
        remedy = "set PriorityType=priority/multifactor in slurm.conf and restart slurmctld"
        return Finding(_ERROR, "priority plugin", cause, remedy)
    if facts.site_factor_plugin:
        cause = f"PrioritySiteFactorPlugin={facts.site_factor_plugin} overwrites the site factors that rltuned sets"
        return Finding(_ERROR, "site factor plugin", cause, "remove it from slurm.conf")
    if "INCR_ONLY" in facts.priority_flags:
        cause = (
            "PriorityFlags=INCR_ONLY: a job keeps the highest priority that it ever had, until somebody changes it;"
            " what rltuned changes could not be given back"
        )
        return Finding(_ERROR, "priority flags", cause, f"remove INCR_ONLY from PriorityFlags {_RECONFIGURE}")
    if not facts.priority_weights.keys() - _NO_WEIGHTS:
        cause = (
            "each PriorityWeight is 0, as by default: every term of every job's priority is 0, which looks like an"
            " explicit priority (no-priority), so rltuned can raise no job"
        )
        remedy = f"set PriorityWeightAge=1000 (or others) in slurm.conf {_RECONFIGURE}"
        return Finding(_WARNING, "priority weights", cause, remedy)
    return Finding(_OK, "priority plugin", facts.priority_type)


def _scheduler(facts: ClusterFacts) -> Finding:
    if facts.scheduler_type != "sched/backfill":
        cause = f"SchedulerType is {facts.scheduler_type or 'unset'}: jobs behind a large one wait although they fit"
        return Finding(_WARNING, "scheduler", cause, "set SchedulerType=sched/backfill")
    if "bf_continue" not in facts.scheduler_parameters:
        cause = "SchedulerParameters lacks bf_continue: each update of a job makes backfill start over"
        return Finding(_ERROR, "backfill", cause, f"add bf_continue to SchedulerParameters {_RECONFIGURE}")
    return Finding(_OK, "backfill", "sched/backfill with bf_continue")


def _others(facts: ClusterFacts) -> Iterator[Finding]:
    """What lets others change what rltuned writes, or with it; what else follows priority than the order of starts."""
    if "enable_user_top" in facts.scheduler_parameters:
        cause = (
            "SchedulerParameters=enable_user_top: with `scontrol top` a user moves any job to the place of their own"
            " best one, also where rltuned has lent that place to a small job"
        )
        remedy = f"remove enable_user_top from SchedulerParameters {_RECONFIGURE}"
        yield Finding(_ERROR, "scontrol top", cause, remedy)
    if facts.preempts_by:
        cause = (
            f"{facts.preempts_by}: a job stops running ones of lower priority, so one that rltuned has raised would"
            " stop others"
        )
        remedy = (
            "take PRIORITY and WITHIN out of each PreemptMode: slurm.conf, `scontrol show partition`,"
            " `sacctmgr show qos format=name,preemptmode`"
        )
        yield Finding(_ERROR, "preemption", cause, remedy)
    if facts.job_submit_plugins:
        cause = (
            f"JobSubmitPlugins={facts.job_submit_plugins}: they run on each of rltuned's writes; the first one after a"
            " start is of one job, which is compared before and after"
        )
        yield Finding(_NOTE, "job_submit plugins", cause, "let them pass updates by this user as is")
    if facts.federation:
        cause = f"the cluster is in the federation '{facts.federation}': its jobs have siblings in other clusters"
        remedy = "rltuned stays in stage shadow here: it was never tried with siblings"
        yield Finding(_ERROR, "federation", cause, remedy)


def _accounting(facts: ClusterFacts) -> Finding:
    if not facts.accounting:
        cause = "there is no slurmdbd: no operators, no fair share, and Slurm does not count GPUs as TRES"
        remedy = "set AccountingStorageType=accounting_storage/slurmdbd and AccountingStorageTRES=gres/gpu"
        return Finding(_ERROR, "accounting", cause, remedy)
    if not facts.accounting_reachable:
        return Finding(_WARNING, "accounting", "slurmdbd does not answer", "look at slurmdbd's log")
    if facts.free_accounts:
        cause = "users may give jobs any account: each is charged and compared by what it says"
        return Finding(_WARNING, "accounting", cause, "set AccountingStorageEnforce=associations")
    if not any(tres.startswith("gres/gpu") for tres in facts.accounting_tres):
        cause = "AccountingStorageTRES has no gres/gpu: GPUs are read from each job's request, which is less exact"
        return Finding(_WARNING, "accounting", cause, "add gres/gpu to AccountingStorageTRES")
    return Finding(_OK, "accounting", "slurmdbd answers, GPUs are TRES")


def _limiter(facts: ClusterFacts, config: Config, cycles: "Sequence[CycleEntry]") -> Finding:
    subject = "RPC limiter"
    if not facts.rate_limiter:
        return Finding(_OK, subject, "off")
    if facts.privilege is Privilege.SLURM_USER:
        return Finding(_OK, subject, "on, but SlurmUser and root are exempt")
    on = f"on (bucket {facts.rate_bucket}, {facts.rate_refill:g}/s)"
    budget = Budget.of(config.write, facts)
    if budget.burst < LEAST_BURST:
        cause = f"{on}: so small that rltuned writes one change at a time"
        remedy = f"raise rl_bucket_size to at least {math.ceil(LEAST_BURST / SHARE)}"
        return Finding(_WARNING, subject, cause, remedy)
    cause = f"{on}: rltuned stays below it with at most {budget.burst:.0f} RPCs at once and {budget.rate:g}/s"
    wanted = max((entry.wanted.changes + entry.restored for entry in cycles if entry.wanted is not None), default=0)
    if not cycles:
        return Finding(_NOTE, subject, cause, "after some cycles doctor says which rl_bucket_size would fit")
    if not wanted:
        return Finding(_OK, subject, f"{cause}; in the last hour nothing was to be written")
    cause += f"; in the last hour a cycle wanted at most {wanted} changes"
    least = wanted + SNAPSHOT_RPCS + 2 * (LOOK_RPCS + STATUS_RPCS)  # what is given back has a batch of its own
    remedy = f"rl_bucket_size={math.ceil(least / SHARE)} lets so many into one cycle"
    written = [entry.results for entry in cycles if entry.results]
    if written:
        worst = max(written, key=lambda results: results.get(Outcome.THROTTLED, 0))
        left = worst.get(Outcome.THROTTLED, 0)
        if not left:
            return Finding(_OK, subject, f"{cause}, and all of each cycle fitted")
        cause += f"; of {sum(worst.values())} changes {sum(worst.values()) - left} fitted, the head of the queue first"
    elif budget.burst >= least:
        return Finding(_OK, subject, cause)
    return Finding(_NOTE, subject, cause, remedy)
