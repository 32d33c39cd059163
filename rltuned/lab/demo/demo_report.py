"""The report of a demonstration."""

from typing import Any

from rltuned.lab.demo.demo_clusters import EPOCH, Demo
from rltuned.lab.report import replay
from rltuned.lab.report.build import assemble
from rltuned.lab.report.period import read
from rltuned.records import decisions


def demo_report(demo: Demo, made_at: float) -> dict[str, Any]:
    """The report of a demonstration that is over and still open (docs/try.md): both orders have really run.

    Raises:
        EvaluationError: no job has run in both clusters.
    """
    since, until = float(EPOCH), demo.steered.clock.time() + 1.0
    (plain_start, plain_end), (start, end) = demo.times(demo.plain), demo.times(demo.steered)
    policy = "rltuned"  # not the policy's name: that may be Slurm's own order
    found = replay.of_times(
        demo.jobs,
        {replay.REAL: start, policy: start, replay.SLURM: plain_start},
        {replay.REAL: end, policy: end, replay.SLURM: plain_end},
        capacity=float(demo.shape.gpus),
        zero=since,
        policy=policy,
        reference=policy,
        in_period=len(demo.jobs),
        seed=demo.settings.seed,
        exact=True,
    )
    return assemble(
        read(decisions.entries(demo.directory, since, until), since, until),
        found,
        missing=[],
        made_at=made_at,
        cluster=f"{demo.shape.text} (simulated)",
        names=True,
    )
