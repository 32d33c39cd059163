"""The few facts about jobs that are re-read right before and right after a write. Imports no NumPy (see package).

A row that cannot be understood is given to a `Collector` and costs the job that it is about, no other: see `separated`.
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rltuned.cluster.changes import JobStatus, OverSubscribe
from rltuned.cluster.unread import Collector, RowKind, Skipped
from rltuned.errors import SlurmParseError
from rltuned.slurm import controller, notation, separated
from rltuned.slurm.commands import EXCLUSIVE, EXCLUSIVE_SINCE, JOB_FIELDS, SEPARATOR, SITE_FIELDS, STATUS_FIELDS
from rltuned.slurm.process import Answer, Runner, failure


def release(runner: Runner) -> tuple[int, int]:
    """Release of the installed commands, (24, 11)."""
    return controller.version(runner.ask("version"))[1]


def job_columns(runner: Runner, of_release: tuple[int, int], unread: Collector, *, brief: bool) -> dict[str, list[str]]:
    """The columns of squeue by field name; `brief`: only those of `STATUS_FIELDS`."""
    name = "status" if brief else "jobs"
    fields = STATUS_FIELDS if brief else JOB_FIELDS
    if of_release >= EXCLUSIVE_SINCE:
        name, fields = f"{name}-exclusive", (*fields, EXCLUSIVE)
    table, misfits = separated.table(runner.ask(name), fields, f"squeue ({name})")
    columns = dict(zip(fields, table, strict=True))
    if misfits:
        _skip_misfits(misfits, RowKind.JOB, 2, len(fields), unread)
        if RowKind.JOB in unread.listed:
            unread.listed[RowKind.JOB] = _all_ids(columns) | unread.jobs.keys()
    return columns


def _skip_misfits(
    misfits: Sequence[separated.Misfit], kind: RowKind, id_columns: int, width: int, unread: Collector
) -> None:
    """Note the lines with too few or too many fields; the first `id_columns` of each are ids."""
    open_at = 0
    for number, line, fields, reason in misfits:
        front = line.split(SEPARATOR, id_columns)[:id_columns]
        ids = _ids_in(front)
        if len(ids) < len(set(front)):
            ids = []
        if not ids and number == open_at:
            open_at = number + 1  # a name with a newline in it: the row goes on
            continue
        unread.skip(Skipped(kind, str(ids[0]) if ids else "", reason), ids)
        if not ids:
            unread.listed[kind] = ()
        open_at = number + 1 if fields < width else 0


def _ids_in(values: Sequence[str]) -> list[int]:
    """The job ids among these values, each once."""
    found: dict[int, None] = {}
    for value in values:
        try:
            number = notation.job_id(value)
        except SlurmParseError:
            continue
        if number:
            found[number] = None
    return list(found)


def _all_ids(table: Mapping[str, list[str]]) -> set[int]:
    """Every id that a row may be known by. The array's is that of its pending tasks: a row of a task that runs says
    nothing about them.
    """
    pending = [array for array, state in zip(table["ArrayJobID"], table["StateCompact"], strict=True) if state == "PD"]
    return {*_ids_in(table["JobID"]), *_ids_in(pending)}


def record_ids(table: Mapping[str, list[str]], strange: dict[int, str]) -> list[int]:
    """The id that scontrol takes for each row: the array's for its pending tasks, else the job's own.

    squeue prints the pending tasks of an array as one row, even when some of them have records of their own; an update
    of the array's id reaches them all, and splits nothing. A task that was requeued keeps the record, and the row, that
    it has had since it started; the array's id reaches it too. A row whose id or state cannot be understood goes into
    `strange`, with the reason; its id is 0 if it cannot be told.
    """
    ids = notation.plain_integers(table["JobID"])
    if ids is None or (ids and (min(ids) < 1 or max(ids) >= 2**32)):
        ids = [_id(value, row, strange) for row, value in enumerate(table["JobID"])]
    states, arrays = table["StateCompact"], table["ArrayJobID"]
    for row, tasks in enumerate(table["ArrayTaskID"]):
        if tasks not in notation.NOTHING and states[row] == notation.PENDING:
            ids[row] = _id(arrays[row], row, strange) or ids[row]
    if unknown := set(states) - notation.KNOWN_STATES:
        for row, state in enumerate(states):
            if state in unknown:
                strange.setdefault(row, f"column StateCompact: job state: cannot understand {state[:80]!r}")
    return ids


def spokesmen(table: Mapping[str, list[str]], ids: Sequence[int]) -> dict[int, int]:
    """The row that tells about each id, `record_ids` of the table.

    The first task of an array may run under the array's own id while others wait: the waiting ones count. Of these the
    record with the array's own number, then the oldest: each requeued task has a submit time of its own.
    """
    states, own = table["StateCompact"], table["JobID"]
    rows: dict[int, int] = {}
    for row, job in enumerate(ids):
        known = rows.setdefault(job, row)
        if known != row:
            rows[job] = min(known, row, key=lambda at: (states[at] != notation.PENDING, len(own[at]), own[at]))
    return rows


def number_in_sprio(listed: Collection[int], job: int, own: str) -> int:
    """Under which number sprio lists a row of squeue that goes by the id `job` and has `own` as JobID.

    A requeued task has its own. `listed`: all numbers that sprio lists.
    """
    return job if job in listed or not (own.isascii() and own.isdigit() and len(own) <= 10) else int(own)


def started_arrays(table: Mapping[str, list[str]]) -> dict[int, int]:
    """As `Snapshot.arrays`. Rows that cannot be understood are passed over."""
    found: dict[int, int] = {}
    columns = (table["ArrayTaskID"], table["StateCompact"], table["ArrayJobID"], table["SubmitTime"])
    for tasks, state, array, submitted in zip(*columns, strict=True):
        if tasks not in notation.NOTHING and state != notation.PENDING:
            with contextlib.suppress(SlurmParseError):
                found.setdefault(notation.named_job(array), int(notation.moment(submitted)))
    return found


def arrays_of_tasks(table: Mapping[str, list[str]]) -> dict[int, int]:
    """As `Snapshot.array_of`. Rows that cannot be understood are passed over."""
    found: dict[int, int] = {}
    columns = (table["ArrayTaskID"], table["StateCompact"], table["JobID"], table["ArrayJobID"])
    for tasks, state, own, array in zip(*columns, strict=True):
        if tasks not in notation.NOTHING and state != notation.PENDING:
            with contextlib.suppress(SlurmParseError):
                found[notation.named_job(own)] = notation.named_job(array)
    return found


def _id(value: str, row: int, strange: dict[int, str]) -> int:
    """A job's id; 0 where there is none, which is noted."""
    try:
        return notation.named_job(value)
    except SlurmParseError as error:
        strange.setdefault(row, str(error))
    return 0


def note_twins(table: Mapping[str, list[str]], ids: Sequence[int], strange: dict[int, str]) -> None:
    """Put the rows into `strange` that have the id of another one; tasks of one array may have."""
    if len(set(ids)) == len(ids):
        return
    tasks = table["ArrayTaskID"]
    rows_of: dict[int, list[int]] = {}
    for row, job in enumerate(ids):
        rows_of.setdefault(job, []).append(row)
    for job, rows in rows_of.items():
        if job and len(rows) > 1 and any(tasks[row] in notation.NOTHING for row in rows):
            for row in rows:
                strange.setdefault(row, f"job {job} appears twice")


def skip_jobs(
    table: Mapping[str, list[str]], ids: Sequence[int], strange: Mapping[int, str], unread: Collector, command: str
) -> None:
    """Note the rows of squeue that are `strange`: their jobs are left alone. `ids`: `record_ids` of the table.

    Raises:
        SlurmParseError: so many are strange that the format is not known (`separated.refuse_unknown`).
    """
    reasons = []
    for row, reason in sorted(strange.items()):
        own, array = _ids_in([table["JobID"][row]]), _ids_in([table["ArrayJobID"][row]])
        certain = own and array and table["StateCompact"][row] in notation.KNOWN_STATES
        about = [ids[row]] if certain else [*own, *array]
        name = str(about[0]) if about else ""
        reasons.append(f"{command}, job {name or '?'}, {reason}")
        unread.skip(Skipped(RowKind.JOB, name, reasons[-1]), about)
        if not (own and array):
            unread.listed[RowKind.JOB] = ()
    if reasons:
        separated.refuse_unknown(reasons, len(ids))
    if RowKind.JOB in unread.listed:
        unread.listed[RowKind.JOB] = {*_all_ids(table), *unread.jobs}


EXCLUDED_FIELDS: Final = ("id", "array", "tasks", "excluded")


def excluded_nodes(runner: Runner, unread: Collector) -> dict[int, str]:
    """Excluded nodes by job (or array) id; jobs that exclude none are left out."""
    table, misfits = separated.table(runner.ask("excluded"), EXCLUDED_FIELDS, "squeue (excluded)")
    found, wrong = separated.row_by_row(table, _excluded)
    _skip_misfits(misfits, RowKind.EXCLUDED_NODES, 2, len(EXCLUDED_FIELDS), unread)
    _skip_rows(wrong, RowKind.EXCLUDED_NODES, "squeue (excluded)", 2, len(table[0]), unread)
    if RowKind.EXCLUDED_NODES in unread.listed:
        unread.listed[RowKind.EXCLUDED_NODES] = {*_ids_in(table[0]), *_ids_in(table[1])}
    return found


def _excluded(table: Sequence[Sequence[str]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for own, array, tasks, value in zip(*table, strict=True):
        if nodes := notation.text(value):
            key = array if tasks not in notation.NOTHING else own
            # Own id as well: a running task of an array is a row of its own.
            found.setdefault(notation.named_job(key), nodes)
            found.setdefault(notation.named_job(own), nodes)
    return found


def _skip_rows(
    wrong: Sequence[tuple[list[str], SlurmParseError]],
    kind: RowKind,
    command: str,
    id_columns: int,
    rows: int,
    unread: Collector,
) -> None:
    """Note rows of a table whose first columns are ids."""
    reasons = []
    for values, error in wrong:
        ids = _ids_in(values[:id_columns])
        reasons.append(f"{command}, job {ids[0] if ids else '?'}: {error}")
        unread.skip(Skipped(kind, str(ids[0]) if ids else "", reasons[-1]), ids)
        if len(ids) < len(set(values[:id_columns])):
            unread.listed[kind] = ()
    separated.refuse_unknown(reasons, rows)


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


def multifactor(runner: Runner, unread: Collector) -> dict[int, Factors]:
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
    table, misfits = separated.table(answer.stdout, SITE_FIELDS, "sprio")
    found, wrong = separated.row_by_row(table, _factors)
    _skip_misfits(misfits, RowKind.SITE_FACTOR, 1, len(SITE_FIELDS), unread)
    _skip_rows(wrong, RowKind.SITE_FACTOR, "sprio", 1, len(table[0]), unread)
    if RowKind.SITE_FACTOR in unread.listed:
        unread.listed[RowKind.SITE_FACTOR] = set(_ids_in(table[0]))
    return found


def _factors(table: Sequence[Sequence[str]]) -> dict[int, Factors]:
    ids, sites, shown, tres, *terms = table
    site_of = {site: notation.integer(site) for site in set(sites)}
    for column in (shown, *terms):
        for number in set(column):
            notation.integer(number)
    for weighted in set(tres):
        notation.tres_terms(weighted)
    nothing = ("0",) * (len(terms) + 1)
    found: dict[int, Factors] = {}
    for job, site, priority, of_tres, *others in zip(_ids(ids), sites, shown, tres, *terms, strict=True):
        if not of_tres and (site, *others) == nothing:
            continue
        factor = site_of[site]
        base = _base(int(priority), factor, of_tres, others)
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
    nice, *others = (int(term) for term in terms)
    return min(base, sum(others) - nice + sum(notation.tres_terms(tres).values()))


def site_factors(runner: Runner, unread: Collector) -> dict[int, int]:
    """Site factor of each job that `multifactor` lists."""
    return {job: factors.site for job, factors in multifactor(runner, unread).items()}


def _ids(values: Sequence[str]) -> list[int]:
    plain = notation.plain_integers(list(values))
    if plain and min(plain) > 0 and max(plain) < 2**32:
        return plain
    return [notation.named_job(value) for value in values]


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
    if exclusive is None or exclusive in notation.NOTHING:
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
    if exclusive is None or exclusive in notation.NOTHING:
        return value in {OverSubscribe.NO, OverSubscribe.USER, OverSubscribe.MCS, OverSubscribe.TOPO}
    return exclusive != "NO"


_ID_COLUMNS: Final[Mapping[str, tuple[int, int]]] = {
    "status": (2, len(STATUS_FIELDS)),
    "status-exclusive": (2, len(STATUS_FIELDS) + 1),
    "site-factors": (1, len(SITE_FIELDS)),
}
"""How many columns of a table, from the first on, name the jobs that a row is about; and how many there are."""


class _RowsOf(Runner):
    """Runs each command once. Of its tables only the rows of some jobs are left, unless they are all needed
    (`whole`).
    """

    def __init__(self, runner: Runner, job_ids: Iterable[int]) -> None:
        self._runner = runner
        self._ids = frozenset(map(str, job_ids))
        self._answers: dict[str, Answer] = {}
        self.whole = False

    def run(self, name: str, argument: str | None = None, stdin: str = "", second: str | None = None) -> Answer:
        """See `Runner`."""
        if name not in self._answers:
            self._answers[name] = self._runner.run(name, argument, stdin, second)
        answer, columns = self._answers[name], _ID_COLUMNS.get(name)
        if self.whole or columns is None:
            return answer
        kept = separated.rows_of(answer.stdout, self._ids, *columns)
        if columns[0] == 2:
            # sprio knows the tasks of an array by their own numbers.
            self._ids |= {row.split(SEPARATOR, 1)[0] for row in kept.splitlines()}
        return replace(answer, stdout=kept)


def read_status(runner: Runner, job_ids: Sequence[int] | None) -> dict[int, JobStatus]:
    """Status of these jobs, None: of every pending one. Three commands whatever the number of jobs.

    A job whose row cannot be understood is there as one that is not (`JobStatus.not_understood`): it is not gone.

    Raises:
        SlurmUnavailableError, SlurmParseError: no, late or cut-short answer, or one of a format that is not known.
    """
    if job_ids is None:
        return _read_status(runner, None, Collector())
    narrow, unread = _RowsOf(runner, job_ids), Collector()
    try:
        found = _read_status(narrow, job_ids, unread)
        if not unread:
            return found
    except SlurmParseError:
        pass
    # What is strange is judged by all rows.
    narrow.whole = True
    return _read_status(narrow, job_ids, Collector())


def _read_status(runner: Runner, job_ids: Sequence[int] | None, unread: Collector) -> dict[int, JobStatus]:
    table = job_columns(runner, release(runner), unread, brief=True)
    factors = site_factors(runner, unread)
    wanted = None if job_ids is None else set(job_ids)
    exclusive = table.get(EXCLUSIVE)
    found: dict[int, JobStatus] = {}
    strange: dict[int, str] = {}
    ids = record_ids(table, strange)
    note_twins(table, ids, strange)
    for job, row in spokesmen(table, ids).items():
        pending = table["StateCompact"][row] in notation.WAITING_STATES
        if row in strange or (not pending if wanted is None else job not in wanted):
            continue
        try:
            priority = notation.integer(table["PriorityLong"][row])
            nice = notation.integer(table["Nice"][row])
            submitted = notation.moment(table["SubmitTime"][row])
        except SlurmParseError as error:
            strange[row] = str(error)
            continue
        reason = table["Reason"][row]
        found[job] = JobStatus(
            job_id=job,
            submit_time=int(submitted),
            pending=pending,
            held=pending and (priority == 0 or reason.startswith("JobHeld")),
            priority=priority,
            nice=nice,
            site_factor=factors.get(number_in_sprio(factors, job, table["JobID"][row])),
            oversubscribe=oversubscribe(table["OverSubscribe"][row], exclusive[row] if exclusive else None),
            reason=notation.text(reason),
        )
    skip_jobs(table, ids, strange, unread, "squeue (status)")
    if wanted is not None:
        for array, submitted in started_arrays(table).items():
            if array in wanted and array not in found:
                found[array] = JobStatus.started(array, submitted)
    return with_strange(found, wanted, unread) if unread else found


def with_strange(found: dict[int, JobStatus], wanted: set[int] | None, unread: Collector) -> dict[int, JobStatus]:
    """What was found, and the jobs that were not understood. `wanted`: only these jobs, None: all."""
    known = dict(found)
    for job in {*found, *unread.jobs} if wanted is None else wanted:
        if job in found and not found[job].pending:
            continue  # sprio matters for pending jobs only
        if reason := unread.about(job, queued=job in found):
            known[job] = JobStatus.not_understood(job, reason)
    return known
