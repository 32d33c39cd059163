"""What a better order could gain: each variant is what its name says, and the answer is that of the simulator."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from unit.learn.windows import busy_jobs, case_of

from rltuned.cluster.shape import parse_shape
from rltuned.commands.main import cli
from rltuned.learn.curriculum import Site
from rltuned.learn.headroom import METRICS, NUDGES, REFERENCE, VariantsTask, headroom, measure_variants, variants
from rltuned.learn.sampling import MeasureTask, measure_policies
from rltuned.observe.sampling import STATE_COLUMNS
from rltuned.policy.actor import AGEING, RUN_TIME
from rltuned.workers.pool import WorkerPool
from rltuned.workload.jobs import Estimates
from rltuned.workload.write import write_csv

NOTHING = np.array([0.0, 1.0, 0.0], dtype=np.float32)


def test_the_rule_and_true_run_times_are_those_of_the_yardstick():
    case = case_of(busy_jobs(200), estimates="noisy:1.5")
    tried = {variant.name: row for row, variant in enumerate(variants("saf", NOTHING))}
    found = measure_variants(VariantsTask(case, variants("saf", NOTHING)))
    plain = measure_policies(MeasureTask(case, ("saf",)))["saf"]
    told = Estimates(case.estimates.time_limit, np.minimum(case.jobs.run_time, case.estimates.time_limit))
    knowing = measure_policies(MeasureTask(replace(case, estimates=told), ("saf",)))["saf"]
    assert plain["wait_mean"] > 60.0
    assert abs(plain["wait_mean"] - knowing["wait_mean"]) > 1.0
    for name, expected in (("estimates as they are", plain), (REFERENCE, plain), ("true run times", knowing)):
        assert found[tried[name]] == pytest.approx([expected[metric] for metric in METRICS], rel=1e-9), name


def test_every_column_is_tried_both_ways_and_a_nudge_is_what_it_says():
    made = variants("saf", np.array([0.5, 0.5, 0.25], dtype=np.float32))
    assert made[0].name == REFERENCE
    assert not made[0].actor.ageing
    assert {variant.name for variant in made} >= {f"{name} {by:+g}" for name in STATE_COLUMNS for by in NUDGES}
    assert [variant.informed for variant in made].count(True) == 1
    rng = np.random.default_rng(1)
    state, base = rng.random((30, 8)).astype(np.float32), rng.normal(size=30)
    for variant in made:
        if variant.name.endswith(" +0.1"):
            column = STATE_COLUMNS.index(variant.name.split()[0])
            moved = variant.actor.score_rows(state, base) - base
            np.testing.assert_allclose(moved, 0.1 * state[:, column], atol=5e-4)
    (aged,) = (variant for variant in made if variant.name == "ageing 0.3")
    assert aged.actor.weights.keys() >= {RUN_TIME, AGEING}
    assert aged.actor.ageing == pytest.approx(0.3)


def test_a_site_is_told_ratios_with_intervals_and_the_same_seed_says_the_same():
    site = Site(busy_jobs(400), parse_shape("2x4"))
    ask = {"rule": "saf", "estimates": "noisy:1.5", "window": 60, "windows": 6, "seed": 3}
    with WorkerPool(1) as pool:
        found = headroom(site, pool=pool, **ask)
        assert headroom(site, pool=pool, **ask) == found
    assert found.windows == 6
    reference = found.found[0].ratios["wait_mean"]
    assert (reference.ratio, reference.lo, reference.hi) == (1.0, 1.0, 1.0)
    by_name = {one.name: one.ratios["wait_mean"] for one in found.found}
    assert by_name["true run times"].ratio < 1.0
    assert by_name["true run times"].lo <= by_name["true run times"].ratio <= by_name["true run times"].hi
    assert len({one.ratio for one in by_name.values()}) > 10


def test_the_command_prints_a_table_or_json_and_refuses_what_it_cannot_make(tmp_path):
    trace = tmp_path / "jobs.csv"
    write_csv(busy_jobs(300), trace)
    ask = [
        "train",
        "headroom",
        "--trace",
        str(trace),
        "--cluster",
        "2x4",
        "--window",
        "40",
        "--windows",
        "3",
        "--processes",
        "1",
    ]
    told = CliRunner().invoke(cli, [*ask, "--json"])
    assert told.exit_code == 0, told.output
    assert len(json.loads(told.output)["found"]) == len(variants("saf", NOTHING))
    shown = CliRunner().invoke(cli, ask)
    assert "true run times" in shown.output
    assert "Expected run time: e^" in shown.output
    refused = CliRunner().invoke(cli, [*ask, "--estimates", "history"])
    assert refused.exit_code != 0
    assert "estimates by history" in str(refused.exception) + refused.output
    short = CliRunner().invoke(cli, [*ask, "--windows", "5000"])
    assert "5,000 windows" in str(short.exception) + short.output
