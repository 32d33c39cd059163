"""The best that slurm.conf alone can do: what is searched, what is found, what is printed."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from unit.evaluate.small import jobs_of
from unit.simulate.instances import partition

from rltuned.cli.main import cli
from rltuned.core.config import Config
from rltuned.core.errors import EvaluationError
from rltuned.core.workers.pool import WorkerPool
from rltuned.lab.evaluate.bootstrap import Comparison
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.evaluation_settings import as_configured
from rltuned.lab.evaluate.slurm_conf import SlurmConf, configured, with_values
from rltuned.lab.evaluate.tune import SHOWN, Baseline, Tuned, _earlier, tune
from rltuned.lab.evaluate.windows import Window
from rltuned.simulate.shape import ClusterShape, parse_shape

LENGTH = 12  # jobs that arrive together
WINDOW = 3 * LENGTH
"""Jobs of a window; ten of them are the later half."""


def long_and_short(users=1, **columns):
    """Jobs of one GPU that arrive together, more than there are GPUs: long ones of an honest limit, and short ones."""
    n = 2 * 31 * LENGTH
    rng = np.random.default_rng(3)
    run = np.where(rng.random(n) < 0.4, 7200.0, 600.0)
    submit = np.repeat(np.arange(n // LENGTH) * 20_000.0, LENGTH) + np.tile(np.arange(LENGTH), n // LENGTH)
    return jobs_of(submit, run, np.ones(n, dtype=int), user=[f"u{k % users}" for k in range(n)], **columns)


def settings(**given):
    asked = {"estimates": "true", "weights": "age=1000", "start": "warm:4", "trace": "t", "cluster": "1x2", **given}
    return as_configured(Config(), asked)


def tuned(jobs=None, shape="1x2", *, processes=1, fairly=True, length=WINDOW, budget=30, **given):
    return tune(
        settings(**given),
        jobs or long_and_short(),
        parse_shape(shape),
        "revision",
        processes=processes,
        budget=budget,
        length=length,
        fairly=fairly,
        daemon=False,
    )


@pytest.fixture(scope="module")
def found():
    return tuned()


def test_a_site_of_fifo_with_short_and_long_jobs_is_told_to_prefer_a_short_limit(found):
    assert found.better, found.reason
    assert found.compared["tuned"]["wait_mean"].hi < 0.9
    (size,) = (line for line in found.lines() if line.startswith("PriorityWeightJobSize="))
    assert size.endswith("# large jobs of a short time limit go first; was 0")
    assert "PriorityFlags=SMALL_RELATIVE_TO_TIME  # beside your other flags; size is CPUs" in "\n".join(found.lines())


def test_a_seed_gives_the_same_with_two_processes(found):
    assert tuned(processes=2).as_dict() == found.as_dict()


def test_what_has_no_effect_is_not_printed(found):
    # One user: no fair share. Backfill looks at all of a dozen jobs anyway.
    assert not [line for line in found.lines() if "Fairshare" in line or "bf_max_job_test" in line]


@pytest.mark.parametrize(("own", "least"), [(300, 60.0), (1, 1.0)])
def test_bf_resolution_is_searched_and_gets_no_shorter_than_the_sites_own_or_a_minute(own, least):
    conf = SlurmConf.of(settings(scheduler=f"bf_resolution={own},bf_interval=60"), long_and_short(), parse_shape("1x2"))
    (one,) = (one for one in conf.parameters if one.name == "bf_resolution")
    assert (conf.own["bf_resolution"], one.least, one.most) == (own, least, 3600.0)
    values = {**conf.own, "bf_resolution": 2800.0}
    simulated = with_values(conf.settings, values).simulated
    assert (simulated.bf_resolution, simulated.bf_interval) == (2800.0, 60.0)
    text = f"seconds of a step that backfill plans in; was {own}"
    assert conf.lines(values)[0] == f"SchedulerParameters=...,bf_resolution=2800  # {text}"


@pytest.mark.parametrize(("name", "step"), [("bf_max_job_user", 1.0), ("bf_min_age_reserve", 60.0)])
def test_a_limit_of_backfill_is_searched_from_off_on(name, step):
    conf = SlurmConf.of(settings(), long_and_short(users=3), parse_shape("1x2"))
    (one,) = (one for one in conf.parameters if one.name == name)
    found = [one.value(float(variable), conf.own[name]) for variable in np.linspace(*one.ends, 200)]
    assert (conf.own[name], found[0]) == (0.0, 0.0)
    assert 0.98 * one.most < found[-1] <= one.most
    assert min(value for value in found if value) == step
    assert found == sorted(found)
    assert all(value % step == 0.0 for value in found)
    assert one.value(one.variable(7 * step), 0.0) == 7 * step


def test_what_backfill_looks_at_and_keeps_may_be_limited_or_no_longer():
    jobs, shape = long_and_short(users=3), parse_shape("1x2")
    conf = SlurmConf.of(settings(scheduler="bf_max_job_user=8"), jobs, shape)
    values = {**conf.own, "bf_max_job_user": 0.0, "bf_min_age_reserve": 600.0, "bf_job_part_count_reserve": 20.0}
    simulated = with_values(conf.settings, values).simulated
    found = simulated.bf_max_job_user, simulated.bf_min_age_reserve, simulated.bf_job_part_count_reserve
    assert found == (0, 600, 20)
    (line,) = conf.lines(values)
    assert line == (
        "SchedulerParameters=...,bf_max_job_user=0,bf_min_age_reserve=600,bf_job_part_count_reserve=20  # jobs of a "
        "user that backfill looks at, 0 all; was 8; seconds that a job waits before it keeps nodes from others; was 0; "
        "jobs of a partition that keep nodes from others, 0 all; was 0"
    )


def test_limits_of_one_user_or_one_partition_are_not_searched():
    two = ClusterShape(**{**vars(parse_shape("2x2")), "partitions": tuple(partition(name, [0, 1]) for name in "ab")})
    for users, shape, absent in [
        (1, parse_shape("2x2"), {"bf_max_job_user", "bf_max_job_part"}),
        (2, parse_shape("2x2"), {"bf_max_job_part"}),
        (2, two, set()),
    ]:
        names = {one.name for one in SlurmConf.of(settings(), long_and_short(users=users), shape).parameters}
        assert {"bf_max_job_user", "bf_max_job_part", "bf_job_part_count_reserve"} - names == absent


def test_a_reservation_of_nodes_for_short_jobs_is_searched_and_told_as_a_command():
    shape = parse_shape("9x2,1x0")
    conf = SlurmConf.of(settings(weights="age=1000"), long_and_short(), shape)
    count, minutes = conf.parameters[-2:]
    assert (count.most, minutes.least, minutes.most) == (4.0, 10.0, 1440.0), "half of those with GPUs"
    values = {**conf.own, count.name: 2.0, minutes.name: 90.0}
    assert configured(shape, values).longest.tolist() == [np.inf] * 7 + [5400.0] * 2 + [np.inf]
    assert configured(shape, conf.own).longest is None
    (line,) = conf.lines(values)
    assert line == (
        "scontrol create reservation ReservationName=short StartTime=now+90minutes Duration=UNLIMITED "
        "Nodes=node[08-09] Users=root Flags=TIME_FLOAT,IGNORE_JOBS  # a command: there, no job of a time limit above "
        "90 minutes starts; nobody gets into the reservation"
    )
    none = conf.candidate(np.array(conf.variables({**values, count.name: 0.0})))
    assert none == conf.own, "without nodes no other time limit is another candidate"
    assert {**conf.own, count.name: 1.0} in conf.promising()
    many = SlurmConf.of(settings(), long_and_short(), parse_shape("212x1")).parameters[-2]
    assert (many.most, many.value(many.ends[1], 0.0)) == (106.0, 106.0), "no more are spare, though it has three digits"


@pytest.mark.parametrize(
    ("gpus", "cluster", "spare"), [(2, "8x2", 4), (12, "8x2", 2), (16, "8x2", 0), (4, "4x2,2x4", 1)]
)
def test_every_job_runs_and_asks_for_the_same_without_the_nodes_for_short_jobs(gpus, cluster, spare):
    jobs, shape = jobs_of(np.arange(40) * 1e4, [600.0] * 40, [1] * 39 + [gpus]), parse_shape(cluster)
    found = {one.name: one.most for one in SlurmConf.of(settings(), jobs, shape).parameters}
    assert found.get("nodes for short jobs", 0.0) == spare


def test_a_site_that_is_at_its_best_gets_no_lines():
    n = 2 * 31 * LENGTH
    equal = jobs_of(np.arange(n) * 300.0, np.full(n, 500.0), np.ones(n, dtype=int))  # nothing to choose between
    best = tuned(equal, budget=5)  # the least that the command takes
    assert (best.better, best.lines(), dict(best.values)) == (False, [], dict(best.conf.own))
    assert best.reason == "Your slurm.conf is as good as any that was found."


def test_accounts_do_not_lose_unless_they_may():
    # One user has the long jobs and would pay for the others' shorter waits.
    jobs = long_and_short()
    jobs = replace(jobs, user=type(jobs.user).of(["long" if run > 600.0 else "short" for run in jobs.run_time]))
    fair, free = (tuned(jobs, length=2 * LENGTH, fairly=fairly, budget=25) for fairly in (True, False))
    worse = [each.fairness["tuned"]["accounts_worse"] for each in (fair, free)]
    assert worse[0] <= fair.fairness["chance"]["accounts_worse"] + 0.05 < worse[1]
    assert free.better
    assert free.compared["tuned"]["objective"].ratio < fair.compared["tuned"]["objective"].ratio


def test_weights_of_nodes_are_searched_where_jobs_may_run_on_either_type():
    shape = parse_shape("2x1:old,3x1:new")
    conf = SlurmConf.of(settings(weights="usual", scheduler="bf_window=2880"), long_and_short(), shape)
    values = {**conf.own, "Weight of old": 5.0, "bf_window": 4320.0, "max_age": 90_000.0, "gres/gpu": 30.0}
    assert configured(shape, values).nodes.weights.tolist() == [5, 5, 1, 1, 1]
    assert configured(shape, conf.own).nodes.weights.tolist() == [1] * 5
    passes = "SchedulerParameters=...,bf_window=4320  # minutes that backfill plans ahead"
    assert conf.lines(values) == [
        "PriorityMaxAge=1-01:00:00  # so long does a job's age grow; was 1-00:00:00",
        "PriorityWeightTRES=CPU=100,Mem=100,GRES/gpu=30  # jobs of many GPUs go first; was 1000",
        "NodeName=node[1-2] ... Weight=5  # jobs that name no type get the least first; was 1",
        f"{passes}; was 2880",
        "# PriorityWeightQOS and PriorityWeightPartition are not simulated: do they still decide what they should?",
    ]
    named = long_and_short(gpu_type=["old"] * (2 * 31 * LENGTH))
    assert not [one for one in SlurmConf.of(settings(), named, shape).parameters if "Weight of" in one.name]
    assert SlurmConf.of(settings(), named, shape).own == SlurmConf.of(settings(), long_and_short(), shape).own


def test_the_line_of_tres_weights_keeps_each_term_of_the_sites_own():
    own = "age=1000,cpu=100,gres/gpu=-1000,gres/gpu:a100=2000,node=5,license/x=3,mem=0.5"
    conf = SlurmConf.of(settings(weights=own), long_and_short(), parse_shape("1x2"))
    (line,) = conf.lines({**conf.own, "cpu": 70.0})
    assert line == (
        "PriorityWeightTRES=CPU=70,GRES/gpu=-1000,gres/gpu:a100=2000,node=5,license/x=3,Mem=0.5  "
        "# jobs of many CPUs go first; was 100"
    )
    assert with_values(conf.settings, conf.own).weights == conf.settings.weights


def test_what_is_certain_on_earlier_jobs_only_is_not_recommended(found):
    ratio = Comparison(0.97, 0.9, 1.04)
    unsure = replace(found, compared={"tuned": {**found.compared["tuned"], "objective": ratio}})
    assert unsure.reason.startswith(
        "Your slurm.conf is as good as any that was found: on later jobs, J of the best is 0.970 [0.900, 1.040] of "
        "yours, and 0."
    )
    by_luck = replace(found, over_again=ratio)
    assert by_luck.reason.endswith("of yours, and 0.970 [0.900, 1.040] of yours once more.")
    broken = replace(found, broken=["p99 of the wait 1.22, and 1.02 is allowed"])
    assert (unsure.lines(), by_luck.lines(), broken.lines()) == ([], [], [])
    assert "on later jobs, p99 of the wait 1.22, and 1.02 is allowed." in broken.reason


def test_what_gains_more_is_said_first_slurm_conf_or_rltuned(found):
    def beside(alone, both):
        ratios = {"rltuned": Comparison(alone, 0.5, 0.95), "both": Comparison(both, 0.4, 0.9)}
        return replace(found, compared={**found.compared, **{name: {"objective": one} for name, one in ratios.items()}})

    ours = found.compared["tuned"]["objective"].ratio
    assert f"They gain more than rltuned does: {ours + 0.1:.3f} [" in beside(ours + 0.1, 0.5).reason
    assert f"rltuned gains more: {ours - 0.1:.3f} [" in beside(ours - 0.1, 0.5).reason
    assert "rltuned gains more: 0.000 [" in beside(0.0, 0.0).reason, "nobody waits any more"
    assert beside(ours - 0.1, 0.5).reason.endswith("without them, and 0.500 [0.400, 0.900] on top of them.")


def test_it_searches_in_windows_of_a_sites_queue_before_those_that_it_is_judged_on():
    def of(start, jobs, length=None, warm=1000):
        found = _earlier(Window(0, start, jobs), length, warm)
        assert found[-1].start + found[-1].jobs == start
        assert found[0].start >= 0
        return len(found), found[0].jobs

    assert of(60_000, 3000) == (6, 3000)
    assert of(9_700, 970) == (3, 2900)
    assert of(700, 64) == (3, 175)
    assert of(60_000, 3000, length=500) == (6, 500)


def simulated(jobs, cluster, more):
    """The case of all these jobs, and what Slurm's own order does with the site's slurm.conf and with `more` of it."""
    asked = replace(settings(cluster=cluster, weights="usual"), window=len(jobs), windows=1, warm_jobs=0)
    shape = parse_shape(cluster)
    evaluation, conf, pool = ready(asked, jobs, shape, "revision"), SlurmConf.of(asked, jobs, shape), WorkerPool(1)
    baseline = Baseline.of(conf, evaluation.cases, pool, fairly=True)
    return baseline.tried([("multifactor", None), ("multifactor", {**conf.own, **more})])


def test_values_that_are_the_sites_own_give_what_its_slurm_conf_gives():
    own, same = simulated(long_and_short().take(slice(0, 48)), "1x2", {})
    assert own["wait_mean"] > 0.0
    assert [own[name] for name in SHOWN if name in own] == [same[name] for name in SHOWN if name in own]


def test_weights_of_nodes_that_are_tried_are_those_of_the_simulated_cluster():
    # The first of two jobs takes any GPU, and the second one needs the old one.
    jobs = jobs_of(
        np.repeat(np.arange(20.0) * 1e4, 2) + [0.0, 60.0] * 20, [600.0] * 40, [1] * 40, gpu_type=["", "old"] * 20
    )
    own, found = simulated(jobs, "1x1:old,1x1:new", {"Weight of old": 5.0})
    assert own["wait_mean"] > 200.0
    assert found["wait_mean"] == [0.0]


def test_nodes_for_short_jobs_that_are_tried_are_those_of_the_simulated_cluster():
    # Two long jobs, then a short one: it waits for the first of them, unless one node is not for these.
    jobs = jobs_of(np.repeat(np.arange(20.0) * 9e4, 3) + [0.0, 1.0, 60.0] * 20, [7200.0, 7200.0, 600.0] * 20, [1] * 60)
    own, found = simulated(jobs, "2x1", {"nodes for short jobs": 1.0, "minutes of a short job": 60.0})
    assert own["wait_mean"].tolist() == [7140.0 / 3]
    assert found["wait_mean"].tolist() == [7199.0 / 3]


def test_too_little_history_is_said_with_what_to_do():
    with pytest.raises(
        EvaluationError, match=r"a slurm.conf needs 10 windows of at least 38 jobs .* has 372 jobs: give"
    ):
        tuned(length=38)
    with pytest.raises(EvaluationError, match="no job of these windows can run on 1x0"):
        tuned(shape="1x0")
    jobs = long_and_short()
    later = replace(jobs, gpus=np.where(np.arange(len(jobs)) < len(jobs) // 2, jobs.gpus, 3).astype(np.int32))
    with pytest.raises(EvaluationError, match="no job of these windows can run on 1x2"):
        tuned(later, budget=5)


def test_the_command_prints_the_lines_or_says_that_there_are_none(found, monkeypatch, tmp_path):
    trace = tmp_path / "jobs.csv"
    trace.write_text("submit_time,num_gpus,run_time\n0,1,600\n30,1,7200\n")
    answers: list[Tuned] = [found, found, replace(found, broken=["it breaks"])]
    monkeypatch.setattr("rltuned.lab.evaluate.tune.tune", lambda *_, **__: answers.pop(0))
    words = ["tune", "--trace", str(trace), "--cluster", "1x2"]
    for_people = CliRunner().invoke(cli, words)
    assert for_people.exit_code == 0
    assert for_people.stdout.splitlines()[-len(found.lines()) :] == found.lines()
    for_machines = CliRunner().invoke(cli, [*words, "--json"])
    said = json.loads(for_machines.stdout)
    assert said["lines"] == found.lines()
    assert said["objective_over_own_again"]["hi"] == found.over_again.hi
    none = CliRunner().invoke(cli, words)
    assert none.exit_code == 14
    assert "as good as any that was found" in none.stdout


def test_the_command_that_it_tells_gives_the_same_again(found, monkeypatch, tmp_path):
    asked = {}

    def told(settings, *_, **how):
        asked.update(how, settings=settings)
        return found

    monkeypatch.setattr("rltuned.lab.evaluate.tune.tune", told)
    monkeypatch.setattr("rltuned.lab.evaluate.site.of_settings", lambda settings, *_: (settings, None, None))
    name, *words = shlex.split(found.about["command"])
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert (name, words[0], asked["budget"], asked["length"], asked["fairly"]) == ("rltuned", "tune", 30, WINDOW, True)
    assert not asked["daemon"]
    same = ("trace", "cluster", "estimates", "weights", "objective", "seed", "scheduler", "skip_bad", "from_sacct")
    assert [getattr(asked["settings"], field) for field in same] == [getattr(settings(), field) for field in same]
