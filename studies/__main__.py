"""Runs the studies that are missing or out of date, then writes the page that is made from them."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rltuned.core.config import DEFAULT_MODEL
from rltuned.core.errors import RltunedError
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import progress_bar
from studies import lending, waits, waits_chart
from studies.catalogue import WINDOWS, studies
from studies.page import collect, with_results, write
from studies.run import Sources, run

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
"""Of the checkout."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs studies, makes the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__)
    parser.add_argument("--traces", type=Path, help="directory of the traces; without: only the page is made anew")
    parser.add_argument(
        "--models", type=Path, default=HERE / "models", help="directory of models (default: studies/models)"
    )
    parser.add_argument(
        "--general", default=DEFAULT_MODEL, help="the general model: a shipped name, or a manifest's path"
    )
    parser.add_argument("--only", default="", help="only studies whose names begin so, several with commas")
    parser.add_argument("--revision", default="unknown", help="of the code, for the record")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    asked = parser.parse_args(arguments)
    results, pages = HERE / "results", ROOT / "docs"
    wanted = list(studies())
    chosen = [study for study in wanted if study.name.startswith(tuple(asked.only.split(",")))]
    try:
        if asked.traces is not None:
            with progress_bar() as progress:
                run(
                    chosen,
                    Sources(asked.traces, asked.models, asked.general),
                    results,
                    WorkerPool(asked.workers),
                    windows=WINDOWS,
                    revision=asked.revision,
                    say=_say,
                    progress=progress,
                )
        found = collect(wanted, results, lending.kept(), waits.kept())
        write(found, pages / "results.md")
        _say(f"{pages / 'results.md'}: written")
        readme = ROOT / "README.md"
        readme.write_text(
            with_results(readme.read_text(encoding="utf-8"), found.lending, found.waits), encoding="utf-8"
        )
        _say(f"{readme}: written")
        picture = pages / "images" / waits_chart.NAME
        picture.write_text(waits_chart.picture(found.waits), encoding="utf-8")
        _say(f"{picture}: written")
    except RltunedError as error:
        _say(f"error: {error}")
        return 1
    return 0


def _say(sentence: str) -> None:
    sys.stderr.write(f"results: {sentence}\n")


if __name__ == "__main__":
    sys.exit(main())
