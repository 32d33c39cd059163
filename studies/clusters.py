"""Results of `testbed ab`, the same jobs on real clusters side by side: what is kept and read of them.

``python -m studies.clusters AB.json studies/results/ab-RELEASE.json`` keeps one. The times of each job, which are
nearly all of such a file, are left out: `--pool` of `testbed ab` has put the seeds together before.
"""

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rltuned.core.errors import EvaluationError
from rltuned.lab.evaluate.bootstrap import Comparison

TUNED: Final = "ab-24.11-tuned"
"""The A/B with a tuned slurm.conf."""
PREFIX: Final = "ab-"
"""Of a kept file in the directory of results; its name without `.json` is that of the protocol."""
AGAINST: Final = "multifactor"
"""The arm that all others are compared with."""
TRACES: Final = {
    "helios-venus-users": "Venus",
    "philly-users": "Philly",
    "alibaba-pai": "PAI",
    "drac-graham": "Graham",
}
"""Names of the traces, by their files'."""
PARTS: Final = ("jobs", "runs", "arms", "ratios", "groups", "prediction")
"""Of the summary: `runs` each window by itself, the others all together."""


@dataclass(frozen=True)
class RealCluster:
    """All windows of an A/B together."""

    arms: Mapping[str, Mapping[str, float]]
    """Mean of each metric over the windows, by arm."""
    ratios: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    """Over `AGAINST`: `ratio`, and `lo` and `hi` where the metric is a mean over jobs."""
    runs: Sequence[Mapping[str, Any]] = ()
    """Each window: its `seed`, `slurm`, `trace` and `scale` (nodes and GPUs of each), and its `arms`, as above."""
    prediction: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """Of the simulator, by arm and metric: `ratio` over `AGAINST`, and `points` by which that is above the real one, in
    percent."""
    groups: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """By user and by size of the jobs: `jobs`, and the metrics of each arm."""
    jobs: int = 0
    """Of all windows."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Not measured."""

    @property
    def labels(self) -> Collection[str]:
        """The arms."""
        return self.arms.keys()

    @property
    def releases(self) -> str:
        """Of Slurm, with commas."""
        return ", ".join(sorted({str(run["slurm"]) for run in self.runs}))

    @property
    def traces(self) -> str:
        """Names of the traces, with commas."""
        return ", ".join(filter(None, dict.fromkeys(map(trace, self.runs))))

    def mean(self, label: str, metric: str) -> float:
        """Over the windows."""
        return self.arms[label][metric]

    def ratio(self, label: str, other: str, metric: str = "wait_mean") -> Comparison:
        """Mean over mean; with an interval over `AGAINST`, where there is one."""
        if other != AGAINST:
            return Comparison(self.arms[label][metric] / self.arms[other][metric], None, None)
        found = self.ratios[label][metric]
        return Comparison(found["ratio"], found.get("lo"), found.get("hi"))


def trace(run: Mapping[str, Any]) -> str:
    """Name of the trace that a run of an A/B was of; "" for drawn jobs."""
    return TRACES.get(str(run.get("trace", "")).partition(".")[0], "")


def window(run: Mapping[str, Any]) -> str:
    """What a run of an A/B was of, in words: Venus on 16 × 8, seed 1."""
    where = f"{of} on {str(run['scale']).replace('x', ' × ')}, " if (of := trace(run)) else ""
    return f"{where}seed {run['seed']}"


def kept(report: Mapping[str, Any]) -> str:
    """JSON of what is kept of a file that `testbed ab --json` wrote.

    Raises:
        EvaluationError: it is none.
    """
    try:
        runs = [{"seed": run["seed"], "slurm": run["slurm"], "minutes": run["minutes"]} for run in report["runs"]]
        summary = {part: report["summary"][part] for part in PARTS if part in report["summary"]}
        _of(summary)
        # Not its command line, which has paths of the machine.
        meta = {"form": report["meta"]["form"]}
        return json.dumps({"meta": meta, "runs": runs, "summary": summary}, indent=1, allow_nan=False) + "\n"
    except (KeyError, TypeError, ValueError) as error:
        raise EvaluationError(f"not what `testbed ab --json` writes: {error!r}") from error


def read(results: Path) -> dict[str, RealCluster]:
    """All that are kept, by name.

    Raises:
        EvaluationError: one cannot be read.
    """
    found = {}
    for path in sorted(results.glob(f"{PREFIX}*.json")):
        try:
            found[path.stem] = _of(json.loads(path.read_text(encoding="utf-8"))["summary"])
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise EvaluationError(f"{path}: cannot be read: {error!r}") from error
    return found


def _of(summary: Mapping[str, Any]) -> RealCluster:
    return RealCluster(
        summary["arms"],
        summary["ratios"],
        summary.get("runs", ()),
        summary.get("prediction") or {},
        summary.get("groups") or {},
        summary.get("jobs", 0),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Keeps an A/B; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.clusters", description=__doc__)
    parser.add_argument("report", type=Path, help="what `testbed ab --json` wrote")
    parser.add_argument("out", type=Path, help=f"file to write: studies/results/{PREFIX}RELEASE.json")
    asked = parser.parse_args(arguments)
    try:
        # A ratio over 0 is NaN there.
        text = kept(json.loads(asked.report.read_text(encoding="utf-8"), parse_constant=lambda _: None))
        asked.out.write_text(text, encoding="utf-8")
    except (EvaluationError, OSError, ValueError) as error:
        sys.stderr.write(f"clusters: error: {asked.report}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
