"""`rltuned when`: when does a job start?"""

import contextlib
import os
from pathlib import Path
from typing import Any

import click

from rltuned.cli.common import (
    NUMBER,
    config_option,
    console,
    emit,
    given,
    job_number,
    json_option,
    load,
    of_daemon,
)
from rltuned.core.errors import ExitCode, SlurmError


def _time_limit(value: str) -> float:
    """Seconds of a time as for sbatch(1) --time."""
    from rltuned.core.notation import seconds_of

    seconds = seconds_of(value)
    if not 0.0 < seconds < float("inf"):
        raise click.BadParameter(f"{value!r} is no time limit; write it as for sbatch: 90, 8:00:00 or 1-12")
    return seconds


def _memory(value: str) -> float:
    """MiB of an amount as for sbatch(1) --mem."""
    from rltuned.slurm.notation import memory

    with contextlib.suppress(SlurmError):
        if (amount := memory(value)) >= 0.0:
            return amount
    raise click.BadParameter(f"{value!r} is no amount of memory; write it as for sbatch: 64G, 500M")


@click.command()
@click.argument("job_id", metavar="[JOBID]", required=False, type=job_number)
@config_option
@click.option("--gpus", type=click.IntRange(min=0), help="Of all nodes together.")
@click.option("--time", "limit", type=_time_limit, metavar="TIME", help="Time limit, as for sbatch: 8:00:00.")
@click.option("--nodes", type=NUMBER, help="[default: 1]")
@click.option("--cpus", type=NUMBER, help="Of all nodes together. [default: 1]")
@click.option("--mem", type=_memory, metavar="MEMORY", help="Memory per node, as for sbatch: 64G.")
@click.option("--partition", help="[default: the one in which it starts first]")
@json_option
def when(
    job_id: int | None,
    config_path: Path | None,
    limit: float | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """When does a job start?

    \b
      rltuned when                             your pending jobs, and what your last jobs took of their time limits
      rltuned when 4711                        a pending job: between which times, with 80 %
      rltuned when 4711 --time 2:00:00         the same, if its time limit were two hours
      rltuned when --gpus 4 --time 8:00:00     a job that is not submitted, and smaller ones that start sooner
      rltuned when --gpus 4                    the same with each time limit that was simulated

    Admins may ask about any job. Everybody else gets what concerns their own pending jobs, as far as `[users]` in the
    configuration allows. Slurm is not asked, and nothing is changed: the daemon's last forecast answers at once
    (docs/start-times.md). Exit code 16: nothing is forecast of this job.
    """
    asked = given(options)
    if job_id is not None and asked:
        raise click.UsageError(f"{', '.join(map('--{}'.format, asked))}: of a job that is not submitted, without JOBID")
    from rltuned.cli import show
    from rltuned.controller.health.clock import SystemClock
    from rltuned.controller.shown import once
    from rltuned.records import published
    from rltuned.simulate.forecast.start_offer import Asked

    config, now = load(config_path, for_everybody=True).config, SystemClock().time()
    if job_id is None and limit is None and not asked:
        own = published.fetch(config.users, os.geteuid())
        if as_json:
            emit(own.as_dict())
        else:
            show.own_starts(console(), own, now)
        return
    if not published.only_own(config):
        of_daemon(config)
    if job_id is None:
        usual: dict[str, Any] = {"partition": "", "nodes": 1, "gpus": 0, "cpus": 1, "mem": 0.0}
        wanted = Asked(**usual | asked, time_limit=0.0 if limit is None else limit)
        offers = once.start_offers(config, wanted) if limit is None else [once.start_offer(config, wanted)]
        if as_json:
            emit([offer.as_dict() for offer in offers] if limit is None else offers[0].as_dict())
        elif len(offers) > 1:
            show.offers(console(), offers, now)
        else:
            show.offer(console(), offers[0], now)
        return
    if limit is None:
        answer = once.start_of_job(config, job_id)
        known = answer.start is not None
        if as_json:
            emit(answer._asdict())
        else:
            show.start_answer(console(), answer, now)
    else:
        other = once.start_with_limit(config, job_id, limit)
        known = other.found is not None or other.job.start is not None
        if as_json:
            emit(other.as_dict())
        else:
            show.limit_answer(console(), other, now)
    if not known:
        raise click.exceptions.Exit(ExitCode.ABSENT)
