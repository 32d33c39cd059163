"""Shows whether two checkouts of rltuned give the same numbers: a refactoring must not change what is decided.

    git worktree add ../before COMMIT
    python -m studies.compare_checkouts ../before .

Four parts are compared, each made by the code of its own checkout in processes of its own:

- models: the shipped weights, by digest;
- plans: the decision records of the recorded queues (tests/recorded), under the shipped model and under sjf;
- evaluate: `rltuned evaluate` on ten windows of a generated workload, which the first checkout generates;
- demo: the summary of `rltuned demo`.

Every field of BEFORE must be in AFTER with the same value; numbers are compared as they are printed, with all digits.
A field that was renamed stands in RENAMED, in the source of this script. What was measured with a clock, and what says
how something was run or describes it in words, is left out (LEFT_OUT). Fields that only AFTER has are named and are no
difference.

Exit code: 0 all equal; 1 something differs, the first difference of each part is named; 2 a checkout could not be run.
Takes about two minutes of one core.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

RENAMED: Final[Mapping[str, str]] = {
    "rollout_trouble": "forecast_trouble",
    "move": "to",
}
"""Fields by their former names."""

LEFT_OUT: Final = frozenset(
    {
        # Measured with a clock.
        *("timings", "seconds", "wall_seconds", "jobs_per_s"),
        # How it was run, and by what.
        *("command", "version", "commit", "revision", "made"),
        # A sentence in words, of the demo's policy.
        "what",
        # Gone since: rollouts; settings of the demonstration; metrics of it that say nothing.
        *("rollout", "estimates", "metrics_port", "model"),
        *("accounts_worse", "late", "wait_ratio_p95", "worst_tenth"),
    }
)
"""Names of fields that may differ."""

RELEASES: Final = ("22.05", "24.11", "26.05")
TIME: Final = 1795245000.0
"""The plans' present, soon after the queues were recorded: a plan depends on how long its jobs have waited."""
WORKLOAD: Final = ("philly", "--jobs", "4000", "--cluster", "4x8:p100")
WINDOWS: Final = (
    "--cluster",
    "4x8:p100",
    "--window",
    "256",
    "--windows",
    "10",
    "--policies",
    "fifo,saf,multifactor,rl",
)
DEMO: Final = ("--jobs", "300")

PLANS: Final = f"""
import json, sys, tempfile
from pathlib import Path
sys.path[:0] = ["tests"]
from unit.slurm.standin import RECORDED, StandIn
from rltuned.core.config import DEFAULT_MODEL, Config
from rltuned.decide.plan import plan
from rltuned.decide.decision import record
from rltuned.records.model_files import load
from rltuned.decide.rank.heuristics import by_name
from rltuned.slurm.cli import CliReader
found = {{}}
for release in {RELEASES}:
    with tempfile.TemporaryDirectory() as name:
        slurm = StandIn(Path(name) / "slurm")
        slurm.load(RECORDED / release)
        snapshot = CliReader(slurm.runner()).snapshot({TIME})
    for policy in (load(DEFAULT_MODEL), by_name("sjf")):
        made = record(plan(snapshot, policy, Config()))
        # Older checkouts make plain data, or a record with `to_json`.
        found[f"{{release}} {{policy.name}}"] = made.to_json() if hasattr(made, "to_json") else made
print(json.dumps(found, default=vars))
"""
"""Run by each checkout: nothing of rltuned is imported by this script itself."""


class CheckoutError(Exception):
    """A checkout could not be run; the message has the end of what it printed."""


@dataclass(frozen=True)
class Checkout:
    """A checkout of rltuned, run by one Python with its own sources first on the path."""

    root: Path
    python: str

    def run(self, *arguments: str) -> str:
        """Standard output of Python with these arguments.

        Raises:
            CheckoutError: it ended with something else than 0.
        """
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [self.python, *arguments], cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            shown = " ".join(argument for argument in arguments if "\n" not in argument)
            raise CheckoutError(f"{self.root}: {shown}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        return done.stdout

    def rltuned(self, *arguments: str) -> str:
        """Standard output of the command as the checkout's own project file names it: it has moved once.

        Raises:
            CheckoutError: as `run`, or the project file names no command.
        """
        try:
            scripts = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
            module, _, function = scripts["rltuned"].partition(":")
        except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
            raise CheckoutError(f"{self.root}: not a checkout of rltuned: {error!r}") from error
        return self.run("-c", f"from {module} import {function}; {function}()", *arguments)


def numbers(checkout: Checkout, scratch: Path) -> Iterator[tuple[str, Any]]:
    """All that is compared, part by part. `scratch`: holds the workload, which is made by whoever comes first.

    Raises:
        CheckoutError: as `Checkout.run`.
    """
    weights = sorted((checkout.root / "models").glob("*.safetensors"))
    yield "models", {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in weights}
    yield "plans", json.loads(checkout.run("-c", PLANS))
    trace = scratch / "jobs.csv"
    if not trace.exists():
        checkout.rltuned("traces", "generate", *WORKLOAD, "--out", str(trace))
    yield "evaluate", json.loads(checkout.rltuned("evaluate", "--trace", str(trace), *WINDOWS, "--json", "-"))
    with tempfile.TemporaryDirectory(dir=scratch) as state:
        yield "demo", json.loads(checkout.rltuned("demo", *DEMO, "--state", state, "--json"))


@dataclass
class Comparison:
    """What one part of two checkouts shows."""

    different: list[str] = field(default_factory=list)
    new: set[str] = field(default_factory=set)
    """Names of fields that only AFTER has, wherever they are."""
    equal: int = 0
    """Values."""

    def compare(self, before: Any, after: Any, where: str = "") -> None:
        """Adds a value and all that is in it; `where`: the path to it."""
        if isinstance(before, dict) and isinstance(after, dict):
            named = {RENAMED.get(name, name): value for name, value in before.items()}
            self.new |= after.keys() - named.keys() - LEFT_OUT
            for name, value in named.items():
                if name in LEFT_OUT:
                    continue
                if name in after:
                    self.compare(value, after[name], f"{where}.{name}".lstrip("."))
                else:
                    self.different.append(f"{where}.{name}".lstrip(".") + ": only before")
        elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            for at, (one, other) in enumerate(zip(before, after, strict=True)):
                self.compare(one, other, f"{where}[{at}]")
        elif json.dumps(before) == json.dumps(after):
            self.equal += 1
        else:
            self.different.append(f"{where}: {_short(before)} before, {_short(after)} after")

    def sentence(self) -> str:
        """What came of it."""
        new = f"; new: {', '.join(sorted(self.new))}" if self.new else ""
        if not self.different:
            return f"equal, {self.equal:,} values{new}"
        count = f"{len(self.different):,} of {self.equal + len(self.different):,} values"
        return f"DIFFERENT in {count}, first {self.different[0]}{new}"


def _short(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.compare_checkouts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path, metavar="BEFORE", help="the checkout whose numbers are right")
    parser.add_argument("after", type=Path, metavar="AFTER", help="the checkout that must have the same")
    parser.add_argument("--python", default=sys.executable, help="with what both need (default: this one)")
    asked = parser.parse_args(arguments)
    before, after = (Checkout(path.resolve(), asked.python) for path in (asked.before, asked.after))
    worst = 0
    with tempfile.TemporaryDirectory(prefix="rltuned-compare-") as name:
        scratch = Path(name)
        try:
            for (part, one), (_, other) in zip(numbers(before, scratch), numbers(after, scratch), strict=True):
                found = Comparison()
                found.compare(one, other)
                worst = max(worst, bool(found.different))
                sys.stdout.write(f"{part}: {found.sentence()}\n")
                sys.stdout.flush()
        except CheckoutError as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
