"""The frontier as a picture: what is gained over who is worse off. The only module here that needs matplotlib."""

from math import isfinite
from pathlib import Path
from typing import Final

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rltuned.core.errors import EvaluationError
from rltuned.lab.evaluate.gate import Verdict
from rltuned.lab.evaluate.harm import ACCOUNTS

GAINS: Final = {"wait_mean": "mean wait", "bsld_mean": "slowdown"}


def draw(made: Verdict, path: Path) -> None:
    """The points of a verdict: wait and slowdown, over accounts worse off and over the worst tenth of accounts.

    `path`: ends in .svg or .png. EvaluationError: it cannot be written.
    """
    rows, chance = made.points, made.chance
    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    FigureCanvasAgg(figure)
    for line, (metric, gain) in zip(figure.subplots(len(GAINS), len(ACCOUNTS)), GAINS.items(), strict=True):
        for axes, bound in zip(line, ACCOUNTS, strict=True):
            for policy in dict.fromkeys(row.policy for row in rows):
                seen = [
                    (row.share, row.means[bound.metric], row.ratios[metric])
                    for row in rows
                    if row.policy == policy and isfinite(row.means[bound.metric])
                ]
                known = [(share, x, of.ratio, of) for share, x, of in seen if of.ratio is not None]
                x, y = [x for _, x, _, _ in known], [y for _, _, y, _ in known]
                below = [max(y - (of.lo or 0.0), 0.0) for _, _, y, of in known]
                above = [max((of.hi or y) - y, 0.0) for _, _, y, of in known]
                axes.errorbar(x, y, (below, above), marker="o", linewidth=1.2, elinewidth=0.5, label=policy)
                for share, *at, _ in known:
                    axes.annotate(f"{share:g}", at, (4, 4), textcoords="offset points", fontsize=8)
            if isfinite(usual := chance.means[bound.metric]):
                axes.axvline(usual, color="grey", linewidth=0.8)
                axes.axvline(bound.times * usual + bound.plus, color="grey", linewidth=0.8, linestyle="--")
            axes.set_xlabel(bound.words)
            axes.set_ylabel(f"{gain} over Slurm's own order")
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8, loc="upper right")
    title = "a waiting job lends this part of its wait; grey: chance, dashed: what is allowed"
    meta = made.evaluation.meta
    figure.suptitle(f"{meta['trace']['name']} on {meta['cluster']['text']}: {title}", fontsize=10)
    try:
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rltuned"}):  # the same numbers make the same bytes
            figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path}: cannot be written: {error}") from error
