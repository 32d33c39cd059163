"""The few facts about jobs that are re-read right before and right after a write. Imports no NumPy (see package)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rltuned.cluster.changes import JobStatus, OverSubscribe
from rltuned.errors import SlurmParseError
from rltuned.slurm import parse
from rltuned.slurm.commands import EXCLUSIVE, EXCLUSIVE_SINCE, JOB_FIELDS, SITE_FIELDS, STATUS_FIELDS
from rltuned.slurm.process import Answer, Runner, failure


def release(runner: Runner) -> tuple[int, int]:
    """Release of the installed commands, (24, 11)."""
    return parse.version(runner.ask("version"))[1]


def job_columns(runner: Runner, of_release: tuple[int, int], *, brief: bool) -> dict[str, list[str]]:
    """The columns of squeue by field name; `brief`: only those of `STATUS_FIELDS`."""
    name = "status" if brief else "jobs"
    fields = STATUS_FIELDS if brief else JOB_FIELDS
    if of_release >= EXCLUSIVE_SINCE:
        name, fields = f"{name}-exclusive", (*fields, EXCLUSIVE)
    table = parse.columns(runner.ask(name), fields, f"squeue ({name})")
    return dict(zip(fields, table, strict=True))


def record_ids(table: Mapping[str, list[str]]) -> list[int]:
    """The id that scontrol takes for each row: the array's for its pending tasks, else the job's own.

    squeue prints the pending tasks of an array as one row, even when some of them have records of their own; an update
    of the array's id reaches them all, and splits nothing.
    """
    ids = _ids(table["JobID"])
    states, arrays = table["StateCompact"], table["ArrayJobID"]
    for row, tasks in enumerate(table["ArrayTaskID"]):
        if tasks not in parse.NOTHING and states[row] == parse.PENDING:
            ids[row] = parse.job_id(arrays[row]) or ids[row]
    if 0 in ids:
        raise SlurmParseError(f"squeue, row {ids.index(0) + 1}: a job without an id")
    return ids


def _ids(values: list[str]) -> list[int]:
    plain = parse.plain_integers(values)
    return [parse.job_id(value) for value in values] if plain is None else plain


def excluded_nodes(runner: Runner) -> dict[int, str]:
    """Excluded nodes by job (or array) id; jobs that exclude none are left out."""
    fields = ("id", "array", "tasks", "excluded")
    ids, arrays, tasks, excluded = parse.columns(runner.ask("excluded"), fields, "squeue (excluded)")
    found: dict[int, str] = {}
    for row, value in enumerate(excluded):
        if nodes := parse.text(value):
            key = arrays[row] if tasks[row] not in parse.NOTHING else ids[row]
            # Own id as well: a running task of an array is a row of its own.
            found.setdefault(parse.job_id(key), nodes)
            found.setdefault(parse.job_id(ids[row]), nodes)
    return found


class Factors(NamedTuple):
    """What priority/multifactor adds up for one job."""

    site: int
    """Site factor."""
    base: int
    """The other terms together: what the job has without its site factor. Slurm shows 1 where it is less.

    Of a job of several partitions, the highest of them: their weights and TRES differ, the site factor moves them all.
    """
    least: int
    """The same, of the partition that has the least."""


def multifactor(runner: Runner) -> dict[int, Factors]:
    """Factors of each job that is under multifactor: pending, eligible, not held, no explicit priority.

    sprio lists a job with an explicit priority too, with every term 0 and nothing for TRES (measured on all releases,
    whatever its stored site factor); such a job is left out. So is one under multifactor whose every term is 0: the two
    look the same when the explicit priority is 1, and who set it must not be overruled. Empty where the priority plugin
    has no factors (priority/basic): then nothing is known, and `facts` says why.
    """
    answer = runner.run("site-factors")
    if answer.code != 0:
        if _has_no_factors(answer):
            return {}
        raise failure(answer)
    ids, sites, shown, tres, *terms = parse.columns(answer.stdout, SITE_FIELDS, "sprio")
    site_of = {site: parse.integer(site) for site in set(sites)}
    nothing = ("0",) * (len(terms) + 1)
    found: dict[int, Factors] = {}
    for job, site, priority, of_tres, *others in zip(_ids(ids), sites, shown, tres, *terms, strict=True):
        if not of_tres and (site, *others) == nothing:
            continue
        factor = site_of[site]
        base = _base(parse.integer(priority), factor, of_tres, others)
        known = found.get(job)
        found[job] = (
            Factors(factor, base, base)
            if known is None
            else Factors(factor, max(base, known.base), min(base, known.least))
        )
    return found


def _base(shown: int, site: int, tres: str, terms: Sequence[str]) -> int:
    """Slurm's sum without the site factor, fractions dropped.

    Both numbers are of one row of sprio, so of one moment. squeue's priority is of another one, and of a job of several
    partitions it is that of any of them (measured).
    """
    base = shown - site
    if shown > 1:
        return base
    # Slurm shows 1 for every sum below 2, so only the terms tell. Each is rounded, and the sum is no more than `base`.
    nice, *others = (parse.integer(term) for term in terms)
    return min(
        base, sum(others) - nice + sum(parse.integer(part.rpartition("=")[2]) for part in tres.split(",") if part)
    )


def site_factors(runner: Runner) -> dict[int, int]:
    """Site factor of each job that `multifactor` lists."""
    return {job: factors.site for job, factors in multifactor(runner).items()}


def _has_no_factors(answer: Answer) -> bool:
    said = answer.stderr.lower()
    return "unable to find jobs" in said or "priority plugin" in said or "multifactor" in said


def oversubscribe(shown: str, exclusive: str | None) -> OverSubscribe:
    """The value of a job from squeue's columns OverSubscribe and, since 26.05, Exclusive (None: no such column).

    Since 26.05 a job that asked for nothing and one that was set to NO both show NO: that is `UNKNOWN` here. What the
    user asked for is told by Exclusive: NODE shows as NO, USER, MCS and TOPO as themselves. A word that is not known
    counts as NO, the value that is never touched.
    """
    try:
        value = OverSubscribe(shown.upper())
    except ValueError:
        return OverSubscribe.NO
    if exclusive is None or exclusive in parse.NOTHING:
        return value
    if exclusive == "NO":
        return OverSubscribe.UNKNOWN if value is OverSubscribe.NO else value
    if exclusive == "NODE":
        return OverSubscribe.NO
    try:
        return OverSubscribe(exclusive.upper())
    except ValueError:
        return OverSubscribe.NO


def asked_exclusive(value: OverSubscribe, exclusive: str | None) -> bool:
    """Whether a job asked for nodes of its own (or its user's). Before 26.05 a NO that rltuned wrote looks the same."""
    if exclusive is None or exclusive in parse.NOTHING:
        return value in {OverSubscribe.NO, OverSubscribe.USER, OverSubscribe.MCS, OverSubscribe.TOPO}
    return exclusive != "NO"


def read_status(runner: Runner, job_ids: Sequence[int] | None) -> dict[int, JobStatus]:
    """Status of these jobs, None: of every pending one. Four commands whatever the number of jobs.

    Raises:
        SlurmUnavailableError, SlurmParseError: no, late, cut-short or strange answer.
    """
    table = job_columns(runner, release(runner), brief=True)
    excluded = excluded_nodes(runner)
    factors = site_factors(runner)
    wanted = None if job_ids is None else set(job_ids)
    exclusive = table.get(EXCLUSIVE)
    found: dict[int, JobStatus] = {}
    for row, job in enumerate(record_ids(table)):
        pending = table["StateCompact"][row] == parse.PENDING
        if (not pending if wanted is None else job not in wanted) or (job in found and found[job].pending):
            # The first task of an array may run under the array's own id while others wait: the waiting record counts.
            continue
        try:
            priority = parse.integer(table["PriorityLong"][row])
            nice = parse.integer(table["Nice"][row])
            submitted = parse.epoch(table["SubmitTime"][row])
        except SlurmParseError as error:
            raise SlurmParseError(f"squeue (status), job {job}: {error}") from None
        reason = table["Reason"][row]
        found[job] = JobStatus(
            job_id=job,
            submit_time=int(submitted) if submitted == submitted else 0,  # noqa: PLR0124 - NaN: not submitted yet
            pending=pending,
            held=pending and (priority == 0 or reason.startswith("JobHeld")),
            priority=priority,
            nice=nice,
            site_factor=factors.get(job),
            oversubscribe=oversubscribe(table["OverSubscribe"][row], exclusive[row] if exclusive else None),
            exc_nodes=excluded.get(job, ""),
            reason=parse.text(reason),
        )
    return found
