"""What names would be worth to a site: whether they are on, what is said, and where names come from."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from unit.evaluate.small import jobs_of, settings
from unit.slurm.standin import StandIn

from rltuned.cli.main import cli
from rltuned.core.config import Config, SlurmSection
from rltuned.core.errors import ConfigError, EvaluationError, SlurmUnavailableError, WorkloadError
from rltuned.core.name_kinds import NameKinds
from rltuned.core.workers.pool import WorkerPool
from rltuned.decide.expect.run_time_history import JobKind, RunTimeHistory
from rltuned.lab.evaluate import gate, site
from rltuned.lab.evaluate.decided import decided
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.evaluation_settings import Start, as_configured
from rltuned.lab.evaluate.names import _compared, worth
from rltuned.lab.train import command
from rltuned.records.gate_verdict import parse_verdict
from rltuned.simulate.run_times import HistoryPredictor, kinds_of, past
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.jobs import Estimates
from rltuned.simulate.workload.readers import read
from rltuned.simulate.workload.simulated_estimates import parse_estimates
from rltuned.simulate.workload.write import write_csv
from rltuned.slurm.commands import SEPARATOR
from rltuned.slurm.sacct import TraceRows, trace_header
from studies.names import Tell
from studies.names import site as generated

WINDOWS = 12
COMPARED = ("error", "cost", "wait", "slowdown")
CALLED = np.array([True, True, False, True])


def judged(error=1.0, cost=1.0, wait=1.0, slowdown=1.0, noise=0.02):
    """What is said where these are so many times as large with names."""
    rng = np.random.default_rng(3)
    columns = {}
    for name, usual, ratio in zip(COMPARED, (1.0, 2.0, 3600.0, 9.0), (error, cost, wait, slowdown), strict=True):
        without = usual * np.exp(rng.normal(0.0, 0.3, WINDOWS))
        columns[name] = np.stack((without, ratio * without * np.exp(noise * rng.standard_normal(WINDOWS))))
    return _compared(CALLED, "saf:0.1", columns, 1)


@pytest.mark.parametrize(
    ("ratios", "on"),
    [
        ({"error": 0.7, "cost": 0.8, "wait": 0.9}, True),
        ({"error": 0.7, "cost": 0.8, "wait": 1.0}, True),  # lending bounds what is gained
        ({"error": 0.7, "cost": 0.8, "wait": 0.9, "noise": 0.8}, False),  # not certain
        ({"error": 0.7, "cost": 0.8, "wait": 1.1}, False),
        ({"error": 0.7, "cost": 0.8, "slowdown": 1.1}, False),
        ({"error": 1.0, "cost": 0.8, "wait": 0.9}, False),  # the order may be better by chance
        ({"error": 0.7, "cost": 1.0, "wait": 0.9}, False),
        ({}, False),
    ],
)
def test_names_are_on_only_where_it_is_certain_that_they_help(ratios, on):
    found = judged(**ratios)
    assert (found.on, found.as_dict()["on"]) == (on, on)
    first, *rest = found.lines()
    assert first.startswith(f"names (75% of the jobs have one): {'on' if on else 'off'}; ")
    assert ('estimates.names = "hashed"' in first) == on
    assert [line.split(" without")[0].rsplit(" ", 1)[0] for line in rest] == [
        "error of the median",
        "order's cost",
        "mean wait under saf:0.1",
        "slowdown under saf:0.1",
    ]
    told = found.as_dict()["wait"]
    assert told["with"] / told["without"] == pytest.approx(told["ratio"], rel=1e-3)


def test_where_nobody_waits_nothing_is_certain():
    nothing = dict.fromkeys(("error", "cost", "slowdown"), np.full((2, WINDOWS), np.nan))
    found = _compared(CALLED, "saf:0.1", {**nothing, "wait": np.zeros((2, WINDOWS))}, 1)
    assert not found.on
    json.dumps(found.as_dict(), allow_nan=False)


# --- generated sites


def error(jobs, *, named):
    """Mean |ln(median / run time)| of the later half, each job predicted from all before it."""
    history, found = RunTimeHistory(named=named), []
    for row, kind in enumerate(kinds_of(jobs, jobs.time_limit)):
        if row >= len(jobs) // 2:
            found.append(abs(math.log(history.run_times([kind]).median[0] / jobs.run_time[row])))
        history.ended(kind, float(jobs.run_time[row]), 1e6 * (row + 1))
        history.renew()
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("tell", "least", "most"), [(Tell.HALF, 0.3, 0.93), (Tell.NOTHING, 0.97, 1.05), (Tell.MISLEAD, 0.9, 1.05)]
)
def test_names_that_tell_gain_and_those_that_tell_nothing_or_mislead_cost_nothing(tell, least, most):
    jobs = generated(tell, 1000, 7)
    assert least < error(jobs, named=True) / error(jobs, named=False) < most


def test_generated_sites_differ_by_what_their_jobs_are_called_only():
    sites = [generated(tell, 500, 7) for tell in Tell]
    for one in sites[1:]:
        for column in ("submit_time", "run_time", "gpus", "time_limit"):
            assert (getattr(one, column) == getattr(sites[0], column)).all()
        assert (one.user.codes == sites[0].user.codes).all()
        assert (one.name_kind.codes != sites[0].name_kind.codes).any()


# --- with a simulation


def bursts_with_names(count=22, each=12):
    """As `small.bursts`, in a mixed order that only names tell: long and short jobs of two users on one GPU."""
    rng = np.random.default_rng(5)
    long = np.concatenate([rng.permutation(np.arange(each) < each // 3) for _ in range(count)])
    run = np.where(long, 900.0, 100.0)
    submit = np.repeat(np.arange(count) * 1.1 * run[:each].sum(), each) + np.tile(np.arange(each), count)
    user = [f"u{k % 2}" for k in range(len(run))]
    kind = [("b", "a")[int(one)] for one in long]
    return jobs_of(submit, run, np.ones(len(run), dtype=int), user=user, time_limit=1000.0, name_kind=kind)


def test_the_gate_says_what_names_are_worth_and_its_verdict_has_it(tmp_path):
    trace, out = tmp_path / "t.csv", tmp_path / "verdict.json"
    write_csv(bursts_with_names(), trace)
    words = ["gate", "--trace", str(trace), "--cluster", "1x1", "--window", "12", "--workers", "1", "--shares", "1"]
    done = CliRunner().invoke(cli, [*words, "--estimates", "history", "--names", "--out", str(out)])
    made = json.loads(out.read_text())
    assert "--names" in made["program"]["command"].split()
    assert made["settings"]["names"] is True
    names = made["names"]
    assert (names["on"], names["share"]) == (True, 1.0), done.stdout
    assert names["error"]["hi"] < 0.5
    assert names["cost"]["hi"] < 0.7
    assert names["policy"] in {"saf:1", "rl:1"}
    assert parse_verdict(out.read_bytes()).names.on
    assert "names (100% of the jobs have one): on; set estimates.names" in done.stdout
    without = {name: value for name, value in made.items() if name != "names"}
    assert parse_verdict(json.dumps(without).encode()).names is None, "as an older gate wrote it"


def test_a_verdict_of_a_gate_that_was_not_asked_says_nothing_of_names():
    asked = settings()
    assert "names" not in asked.as_dict()
    made = SimpleNamespace(evaluation=SimpleNamespace(settings=asked))
    assert gate.with_names(made, None) is made


def test_names_are_refused_where_there_are_none_or_nothing_is_predicted(tmp_path):
    jobs, shape = bursts_with_names(), parse_shape("1x1")
    nameless = replace(jobs, name_kind=jobs_of([0], [1], [1]).name_kind[np.zeros(len(jobs), dtype=int)])
    asked = settings(trace="t", cluster="1x1", policies=("multifactor", "saf:1"), gate=True, names=True)
    with pytest.raises(EvaluationError, match="no job has a name"):
        gate.prepare(replace(asked, estimates="history"), nameless, shape, "r", 12)
    with pytest.raises(EvaluationError, match="estimates are 'limit'"):
        gate.prepare(replace(asked, estimates="limit"), jobs, shape, "r", 12)
    with pytest.raises(EvaluationError, match="no job has a name"):
        ready(settings(cluster="1x1", estimates="history:names"), nameless, shape, "r")


def test_what_has_ended_since_a_job_began_that_still_runs_is_known():
    # It has held one of two GPUs since 0. Twenty jobs of 50 s end beside it; three come at once then, and two wait.
    submit = [0.0, *(100.0 * np.arange(1, 21)), 5000.0, 5000.0, 5000.0]
    jobs = jobs_of(submit, [1e6, *[50.0] * 20, *[100.0] * 3], [1] * 24, time_limit=[2e6] * 24, wait_time=[0.0] * 24)
    asked = settings(cluster="1x2", window=3, windows=22, estimates="history", start=Start.REAL, warm_jobs=1)
    (case,) = (case for case in ready(asked, jobs, parse_shape("1x2"), "r").cases if case.window.start == 21)
    assert case.jobs.submit_time[0] == -5000.0
    assert decided(case, asked).median == pytest.approx([50.0, 50.0], rel=0.3)


def test_where_no_job_that_is_judged_has_a_name_the_verdict_says_off_and_is_not_lost():
    jobs, shape = bursts_with_names(), parse_shape("1x1")
    codes = np.where(np.arange(len(jobs)) < 12, jobs.name_kind.codes, -1).astype(np.int32)
    early = replace(jobs, name_kind=replace(jobs.name_kind, codes=codes))
    policies = ("multifactor", "saf:1")
    asked = settings(cluster="1x1", policies=policies, windows=10, gate=True, names=True, estimates="history")
    found = worth(gate.prepare(asked, early, shape, "r", 12), "saf:1", WorkerPool(1))
    assert (found.on, found.share) == (False, 0.0)
    assert found.lines()[0].startswith("names (0% of the jobs have one): off")


def test_estimates_may_go_by_names_and_an_evaluation_then_does():
    assert str(parse_estimates("history:names")) == "history:names"
    assert (parse_estimates("history:names").names, parse_estimates("history").names) == (True, False)
    for wrong in ("history:1", "history:", "limit:names", "true:names"):
        with pytest.raises(ConfigError):
            parse_estimates(wrong)
    with pytest.raises(ConfigError, match="without names"):
        command.settings(name="m", estimates="history:names")
    jobs, shape = bursts_with_names(), parse_shape("1x1")
    for estimates, named in (("history", False), ("history:names", True)):
        asked = settings(cluster="1x1", estimates=estimates, window=12)
        assert {case.named for case in ready(asked, jobs, shape, "r").cases} == {named}


def test_a_simulations_predictor_goes_by_names_where_its_past_does():
    jobs = bursts_with_names(20)
    limits = np.full(len(jobs), 1000.0)
    long, short = (int(np.flatnonzero(jobs.run_time == took)[0]) for took in (900.0, 100.0))
    for named, apart in ((False, False), (True, True)):
        before = past(jobs, Estimates(limits, limits), 1e9, named=named)
        found = HistoryPredictor(jobs, limits, before).predict(np.array([long, short])).median
        assert (found[0] > 5.0 * found[1]) == apart


# --- where names come from


def test_a_site_that_reads_names_is_judged_with_them_on_its_own_jobs_and_only_there():
    def asked(names, how=gate.asked, **given):
        return how(Config.model_validate({"estimates": {"names": names}}), given)

    own, file = {"from_sacct": 30.0}, {"trace": "t", "cluster": "1x1"}
    assert [asked(names, **own).estimates for names in ("off", "auto", "hashed")] == ["history"] * 2 + ["history:names"]
    assert [asked(names, **own).names for names in ("off", "auto", "hashed")] == [False, True, False]
    assert [asked(names, **own).asks_names for names in ("off", "auto", "hashed")] == [False, True, True]
    assert not any(asked(names, **file).asks_names for names in ("off", "auto", "hashed"))
    assert not asked("auto", estimates="limit", **own).asks_names, "names tell nothing of limits"
    assert not asked("auto", as_configured, policies="saf", **own).asks_names, "`report` and `tune` do not judge names"
    limit = Config.model_validate({"estimates": {"names": "hashed", "source": "limit"}})
    assert gate.asked(limit, own).estimates == "limit"


HEADER = trace_header().split("|")
ROW = dict.fromkeys(HEADER, "1") | {
    "JobIDRaw": "7",
    "User": "ann",
    "Submit": "1000",
    "Eligible": "1000",
    "Start": "1000",
    "End": "1060",
    "ElapsedRaw": "60",
    "TimelimitRaw": "10",
    "ReqTRES": "cpu=1,gres/gpu=1",
    "AllocTRES": "",
    "State": "COMPLETED",
}


def line(job, **values):
    return "|".join({**ROW, "JobIDRaw": str(job), **values}[column] for column in HEADER)


def test_the_sites_own_jobs_come_with_kinds_where_these_are_wanted(tmp_path):
    rows = TraceRows([line(7), line(8), line(9)], [])
    kinds = {(7, 1060.0): 255, (8, 1060.0): 0, (9, 1061.0): 5}
    told = []
    jobs = site.history(lambda *_: rows, 0.1, 1e6, told.append, called=lambda *_: kinds)
    assert jobs.name_kind.texts() == ["1", "", ""]
    other = site.history(lambda *_: rows, 0.1, 1e6, told.append, called=lambda *_: {(7, 1060.0): 77})
    assert other.source.sha256 == jobs.source.sha256, "a run that goes on has another key, and the same jobs"

    def fails(*_):
        raise SlurmUnavailableError("sacct (ended-names)")

    jobs = site.history(lambda *_: rows, 0.1, 1e6, told.append, called=fails)
    assert (len(jobs), jobs.name_kind.texts()) == (3, [""] * 3)
    assert told == ["3 jobs are without names: sacct (ended-names)"]
    assert site.history(lambda *_: rows, 0.1, 1e6, told.append).name_kind.texts() == [""] * 3


def test_names_of_a_file_are_kinds_and_never_kept(tmp_path):
    path = tmp_path / "t.sacct"
    called = [("train_1", "/home/ann/nets"), ("train_2", "/home/ann/nets/3"), ("", "/"), ("a\tb", "/x")]
    lines = [f"{line(10 + at)}|{name}|{where}" for at, (name, where) in enumerate(called)]
    path.write_text("\n".join(["|".join([*HEADER, "JobName", "WorkDir"]), *lines]) + "\n")
    jobs = read(path)
    kind = NameKinds(b"")("ann", "train_9", "/home/ann/nets")
    assert jobs.name_kind.texts() == [f"{kind:x}", f"{kind:x}", "", ""]
    assert jobs.name_kind.names == (f"{kind:x}",)
    copy = tmp_path / "t.csv"
    write_csv(jobs, copy)
    assert read(copy).name_kind.texts() == jobs.name_kind.texts()
    assert "train" not in copy.read_text()
    wrong = path.read_text().replace("train_1", "train|1")
    path.write_text(wrong)
    with pytest.raises(WorkloadError, match="fields instead of"):
        read(path)
    assert len(read(path, skip_bad=True)) == 3


def test_a_file_without_names_is_written_as_before(tmp_path):
    path = tmp_path / "t.csv"
    write_csv(jobs_of([0, 1], [1, 1], [1, 1], user=["a", "b"]), path)
    assert "name_kind" not in path.read_text()
    assert JobKind("a").name == kinds_of(read(path), np.ones(2))[0].name == 0


@pytest.mark.parametrize("names", ["hashed", "auto"])
def test_where_the_accounting_tells_no_name_a_site_is_judged_without(tmp_path, names):
    slurm = StandIn(tmp_path / "slurm")
    slurm.answer("trace", line(7).replace("|", SEPARATOR) + SEPARATOR + "\n")
    reached, told = SlurmSection(bin_dir=slurm.bin_dir), []
    config = Config.model_validate({"estimates": {"names": names}})
    asked = gate.asked(config, {"from_sacct": 0.02, "cluster": "2x4"})
    row = "7@1060@ann@train_1@/home/ann/nets@"
    for answers in (False, True):
        told.clear()
        if answers:
            # Behind each column the word that is the last one of the command line.
            others = (slurm.bin_dir / "sacct").rename(slurm.bin_dir / "others")
            said = f'echo "{row}" | sed "s/@/${{*##*--delimiter=}}/g"'
            slurm.script("sacct", f'#!/bin/sh\ncase "$*" in *JobName*) {said};; *) exec {others} "$@";; esac\n')
        settled, jobs, _ = site.of_settings(asked, reached, 1100.0, told.append)
        assert (jobs.name_kind.codes >= 0).tolist() == [answers]
        assert settled.asks_names == answers
        assert (settled == asked) == answers
        assert len(told) == (0 if answers else 2), told
