"""The report as one JSON value."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rltuned import __version__, revision
from rltuned.lab.evaluate.bootstrap import Comparison
from rltuned.lab.evaluate.evaluation_settings import AGAIN, served
from rltuned.lab.report.advice import CERTAINLY, NEAR, advise, in_words
from rltuned.lab.report.period import POINTS, Period

if TYPE_CHECKING:  # needs the simulator
    from rltuned.lab.report.replay import Replay

FORMAT: Final = 2


def assemble(
    period: Period,
    replayed: "Replay | None",
    *,
    missing: list[str],
    made_at: float,
    cluster: str,
    names: bool,
) -> dict[str, Any]:
    """The report of a period, and of the replay of its jobs where it could be made.

    `missing` are sentences: what is not in it, and why. `cluster` is what it is about, "" where not known. `names`:
    with the tables of accounts and of single jobs that lose, and with sentences of faults.
    """
    replay = None if replayed is None else _replay(replayed, period, names=names)
    replayed_as, share = ("", None) if replayed is None else served(replayed.policy)
    policy = period.policy or replayed_as
    return {
        "format": FORMAT,
        "program": {"name": "rltuned", "version": __version__, "revision": revision()},
        "made_at": made_at,
        "since": period.since,
        "until": period.until,
        "cluster": cluster,
        "mode": period.mode.value,
        "policy": policy,
        "replayed_as": policy if replayed is None or replayed.exact else replayed_as,
        "share": period.share if share is None else share,
        "log": period.to_json(names=names) if period.total else None,
        "replay": replay,
        **advise(period if period.total else None, replay, period.mode.value),
        "missing": missing,
    }


def _replay(found: "Replay", period: Period, *, names: bool) -> dict[str, Any]:
    from rltuned.lab.report import gains  # noqa: PLC0415 - needs the simulator; whoever has a `Replay` has it

    groups, values, against_real = gains.by_group(found), found.values(), found.compared(found.reference, "real")
    near, sentence = nearness(found, against_real)
    if not names:
        del groups["account"]
    return {
        "policy": found.policy,
        "jobs": len(found),
        "jobs_in_period": found.in_period,
        "blocks": found.blocks,
        "gpus": found.gpus,
        "means": {of: values[name] for of, name in found.names.items()},
        "effect": {name: asdict(one) for name, one in found.compared(found.policy, found.names["slurm"]).items()},
        "over_chance": asdict(found.compared(found.policy, AGAIN)["wait_mean"]) if AGAIN in found.wait else None,
        "nearness": {
            "near": near,
            "of": found.reference,
            "wait": asdict(against_real["wait_mean"]),
            "utilization": asdict(against_real["utilization"]),
            "sentence": sentence,
        },
        "groups": groups,
        "losses": gains.losses(found) if names else [],
        "fairness": gains.fairness(found),
        "lending": gains.lending(found, period.lent, period.loans, names=names),
        "series": gains.over_time(found, period.since, period.until, POINTS // 2),
        "predictions": gains.prediction_quality(found.jobs.job_id, found.jobs.run_time, period.predictions),
        "canary": gains.canary(found.jobs, period.canary, period.others, found.seed),
    }


def nearness(found: "Replay", compared: Mapping[str, Comparison]) -> tuple[bool, str]:
    """Whether the replay of the order that really ruled is near to what really happened, and how near."""
    if found.exact:
        return True, "reality is a simulation here, the very one."
    wait = compared["wait_mean"]
    near = wait.ratio is not None and abs(wait.ratio - 1.0) <= NEAR
    near = near and all(end is None or abs(end - 1.0) <= CERTAINLY for end in (wait.lo, wait.hi))
    order = "Slurm's order" if found.reference != found.policy else "rltuned's order"
    return near, (
        f"the replay of {order} has {in_words(wait)} times the real mean wait, and {in_words(compared['utilization'])} "
        f"times the GPUs in use. Near is a wait from {1 - NEAR:g} to {1 + NEAR:g} times the real one, with an interval "
        f"within {1 - CERTAINLY:g} to {1 + CERTAINLY:g}."
    )
