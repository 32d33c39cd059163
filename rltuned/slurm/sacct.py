"""What slurmdbd remembers: jobs that have ended, from sacct, and nodes that were out of use, from sacctmgr."""

import math
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

from rltuned.core.ended import EndedJob, Past, only_waited
from rltuned.core.errors import AnswerTooLongError, SlurmParseError
from rltuned.slurm import notation, separated
from rltuned.slurm.commands import ENDED_FIELDS, TRACE_FIELDS
from rltuned.slurm.process import Runner

SHORTEST: Final = 60.0  # seconds of the past of which all that sacct tells is not too long


def read_ended(runner: Runner, start: float, end: float) -> Past:
    """Jobs that ended in [start, end), epoch seconds; see `port.HistoryReader`."""
    found = Past([], [], [])
    for first, last, answer in answers(runner, "history", start, end):
        past = ended_jobs(answer)
        found.jobs.extend(job for job in past.jobs if first <= job.end < last)
        found.left_out.extend(past.left_out)
        found.cancelled.extend(past.cancelled)
    return found


def ended_jobs(answer: str) -> Past:
    """The jobs of an answer of ``sacct`` with the columns of `ENDED_FIELDS`, without those that never ran."""
    table, misfits = separated.table(answer, ENDED_FIELDS, "sacct")
    left_out = [misfit.reason for misfit in misfits]
    requests: dict[tuple[str, str], tuple[int, int]] = {}
    jobs = []
    never_ran: list[int] = []
    for job, user, account, partition, state, stamp, elapsed, limit, asked, got in zip(*table, strict=True):
        column = "JobIDRaw"
        try:
            number = notation.job_id(job)
            column = "ElapsedRaw"
            seconds = notation.count(elapsed)
            column = "End"
            end = notation.epoch(stamp)
            if math.isnan(end) or only_waited(state, seconds):
                never_ran.append(number)
                continue
            column = "TimelimitRaw"
            most = _limit(limit)
            column = "AllocTRES"
            if (got, asked) not in requests:
                # By what it asked for, its like is found while it waits: where it had nodes to itself, it got all that
                # these have. Where the site tracks no gres/gpu, neither has any.
                allocated, wanted = notation.tres(got), notation.tres(asked)
                known = wanted if wanted.cpu else allocated
                requests[got, asked] = known.gpus or 0, known.cpu
        except SlurmParseError as error:
            left_out.append(f"sacct, job {job[:20]!r}, column {column}: {error}")
            continue
        gpus, cpus = requests[got, asked]
        names = notation.text(user), notation.text(account), notation.text(partition)
        jobs.append(EndedJob(number, *names, gpus, most, float(seconds), end, cpus))
    if left_out and not (jobs or never_ran):
        raise SlurmParseError(left_out[0])
    separated.refuse_unknown(left_out, len(table[0]) + len(misfits))
    jobs.sort(key=lambda one: (one.end, one.job_id))
    return Past(jobs, left_out, never_ran)


class TraceRows(NamedTuple):
    """Jobs that have ended, as lines of ``sacct -P`` with the columns of `TRACE_FIELDS`; times are epoch seconds."""

    lines: list[str]
    left_out: list[str]


def read_trace(runner: Runner, start: float, end: float) -> TraceRows:
    """Jobs that ended in [start, end), epoch seconds, for `simulate.workload.readers.read`."""
    found = TraceRows([], [])
    for first, last, answer in answers(runner, "trace", start, end):
        rows = trace_lines(answer, first, last)
        found.lines.extend(rows.lines)
        found.left_out.extend(rows.left_out)
    return found


def trace_header() -> str:
    """The line above the lines of `read_trace`."""
    return "|".join(TRACE_FIELDS)


def trace_lines(answer: str, start: float, end: float) -> TraceRows:
    """The rows of `read_trace` from an answer of ``sacct``, without those that cannot be understood."""
    table, misfits = separated.table(answer, TRACE_FIELDS, "sacct")
    left_out = [misfit.reason for misfit in misfits]
    at = TRACE_FIELDS.index("End")
    lines = []
    for row in zip(*table, strict=True):
        if any("|" in value for value in row):
            left_out.append(f"sacct, job {row[0][:20]!r}: a value holds '|', which separates columns of a trace")
            continue
        try:
            ended = notation.epoch(row[at])
        except SlurmParseError as error:
            left_out.append(f"sacct, job {row[0][:20]!r}, column End: {error}")
            continue
        if start <= ended < end:
            lines.append("|".join(row))
    return TraceRows(lines, left_out)


def _limit(value: str) -> float:
    """Seconds of TimelimitRaw, which is minutes; infinite for UNLIMITED, NaN for Partition_Limit and nothing."""
    if value.isascii() and value.isdigit():
        return notation.integer(value) * 60.0
    return notation.slurm_seconds(value)


class Outage(NamedTuple):
    """A node took no new job: it was down, drained or failed. Epoch seconds."""

    node: str
    start: float
    end: float  # infinite: it has not ended


def read_outages(runner: Runner, start: float) -> list[Outage]:
    """What nodes went through since then, epoch seconds. A row that cannot be understood is left out."""
    found = []
    for line in runner.ask("events", f"Start={_moment(start)}").splitlines():
        with suppress(SlurmParseError, ValueError):
            node, _, began, over = line.split("|")
            times = notation.known_epoch(began), notation.epoch(over)
            if node:  # else: of the whole cluster
                found.append(Outage(node, times[0], math.inf if math.isnan(times[1]) else times[1]))
    return found


def answers(
    runner: Runner, command: str, start: float, end: float, *more: str, leaves: bool = False
) -> Iterator[tuple[float, float, str]]:
    """What sacct tells of [start, end): in one answer, or where that is too long in several of shorter stretches.
    `more`: words of the command's behind those of the time. `leaves`: of what is too long as the shortest, nothing.
    """
    # A second of grace on either side: sacct takes whole seconds, and the callers drop what is outside.
    words = f"--starttime={_moment(math.floor(start) - 1)}", f"--endtime={_moment(math.ceil(end) + 1)}"
    try:
        yield start, end, runner.ask(command, *words, *more)
    except AnswerTooLongError:
        if end - start <= SHORTEST:
            if leaves:
                return
            raise
        middle = (start + end) / 2.0
        yield from answers(runner, command, start, middle, *more, leaves=leaves)
        yield from answers(runner, command, middle, end, *more, leaves=leaves)


def _moment(seconds: float) -> str:
    """As Slurm takes it; in UTC, as `commands.environment`."""
    return datetime.fromtimestamp(max(seconds, 0.0), tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
