"""The paper's protocol on the real trace, where it is there (RLTUNED_TEST_TRACES names the folder)."""

import os
from pathlib import Path

import pytest
from unit.evaluate.small import reported

from rltuned.core.workers.pool import WorkerPool
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.simulate.shape import read_shape
from rltuned.simulate.values import Backfill, Fit
from rltuned.simulate.workload.readers import read

FOLDER = Path(os.environ.get("RLTUNED_TEST_TRACES", ""))
PHILLY = FOLDER / "philly.csv.gz"

pytestmark = pytest.mark.skipif(
    not (FOLDER.name and PHILLY.exists()), reason="RLTUNED_TEST_TRACES names no folder with philly.csv.gz"
)


def test_on_the_papers_protocol_strict_fifo_is_worst_and_the_plain_rules_are_close_to_each_other():
    names = ("fifo-strict", "fifo", "sjf", "saf", "wfp3", "unicep")
    asked = EvaluationSettings(
        trace=str(PHILLY), cluster="20x8:p100", policies=names, backfill=Backfill.EASY, placement=Fit.BEST
    )
    found = reported(ready(asked, read(asked.trace), read_shape(asked.cluster), "revision"), WorkerPool(2))
    assert (asked.window, asked.windows, asked.estimates) == (1024, 30, "true")
    wait = {name: values["wait_mean"] for name, values in found["policies"].items()}
    assert max(wait, key=wait.__getitem__) == "fifo-strict"
    assert wait["saf"] < 0.15 * wait["fifo-strict"]
    for name in ("sjf", "wfp3", "unicep"):
        assert wait[name] == pytest.approx(wait["saf"], rel=0.25)
    assert wait["fifo"] > 2 * wait["saf"]
    below = found["comparisons"]["saf/fifo"]["wait_mean"]
    assert below["lo"] < below["ratio"] < below["hi"] < 0.5
