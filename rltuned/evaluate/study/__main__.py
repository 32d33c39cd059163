"""``python -m rltuned.evaluate.study``: what `make results` runs."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rltuned.config import DEFAULT_MODEL
from rltuned.errors import RltunedError
from rltuned.evaluate.executors import LocalExecutor
from rltuned.evaluate.study.catalogue import QUICK_WINDOWS, WINDOWS, studies
from rltuned.evaluate.study.page import collect, write
from rltuned.evaluate.study.run import Sources, run
from rltuned.workers.progress import progress_bar

ROOT = Path(__file__).resolve().parents[3]
"""Of the checkout."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs studies, makes the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m rltuned.evaluate.study", description=__doc__)
    parser.add_argument("--traces", type=Path, help="directory of the traces; without: only the page is made anew")
    models = ROOT / "docs/results/models"
    parser.add_argument(
        "--models", type=Path, default=models, help="directory of models (default: docs/results/models)"
    )
    parser.add_argument(
        "--general", default=DEFAULT_MODEL, help="the general model: a shipped name, or a manifest's path"
    )
    parser.add_argument("--only", default="", help="only studies whose names begin so, several with commas")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_WINDOWS} windows, into build/results-quick")
    parser.add_argument("--out", type=Path, help="where results and page go (default: docs/)")
    parser.add_argument("--revision", default="unknown", help="of the code, for the record")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    asked = parser.parse_args(arguments)
    out = asked.out or ROOT / ("build/results-quick" if asked.quick else "docs")
    wanted = list(studies())
    chosen = [study for study in wanted if study.name.startswith(tuple(asked.only.split(",")))]
    try:
        if asked.traces is not None:
            with progress_bar() as progress:
                run(
                    chosen,
                    Sources(asked.traces, asked.models, asked.general),
                    out / "results",
                    LocalExecutor(asked.workers),
                    windows=QUICK_WINDOWS if asked.quick else WINDOWS,
                    revision=asked.revision,
                    tell=_tell,
                    progress=progress,
                )
        write(collect(wanted, out / "results"), wanted, out / "results.md", out / "images" / "results")
    except RltunedError as error:
        _tell(f"error: {error}")
        return 1
    _tell(f"{out / 'results.md'}: written")
    return 0


def _tell(sentence: str) -> None:
    sys.stderr.write(f"results: {sentence}\n")


if __name__ == "__main__":
    sys.exit(main())
