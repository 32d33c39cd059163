"""The report of a demonstration (docs/demo.md): both orders have really run, side by side, on simulated clusters."""

from typing import Any

import numpy as np

from rltuned import revision
from rltuned.daemon import decisions
from rltuned.demo_clusters import EPOCH, Demo
from rltuned.report import build, replay
from rltuned.report.period import read


def of_demo(demo: Demo, made_at: float) -> dict[str, Any]:
    """As `build.assemble`, of a demonstration that is over.

    Args:
        demo: still open.
        made_at: epoch seconds.

    Raises:
        EvaluationError: no job has run in both clusters.
    """
    since, until = float(EPOCH), demo.steered.clock.time() + 1.0
    period = read(decisions.entries(demo.directory, since, until), since, until)
    (plain_start, plain_end), (start, end) = demo.times(demo.plain), demo.times(demo.steered)
    policy = "rltuned"  # not the policy's name: that may be Slurm's own order
    found = replay.of_times(
        demo.jobs,
        {replay.REAL: start, policy: start, replay.SLURM: plain_start},
        {replay.REAL: end, policy: end, replay.SLURM: plain_end},
        chosen=np.ones(len(demo.jobs), dtype=np.bool_),
        capacity=float(demo.shape.gpus),
        zero=since,
        policy=policy,
        reference=policy,
        in_period=len(demo.jobs),
        seed=demo.settings.seed,
        exact=True,
    )
    return build.assemble(
        period,
        found,
        bound=demo.config.decide.age_bound,
        missing=[],
        made_at=made_at,
        revision=revision(),
        cluster=f"{demo.shape.text} (simulated)",
        names=True,
    )
