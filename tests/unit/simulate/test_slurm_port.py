"""The simulated Slurm answers as real ones did; what was measured is cited by the name of the behaviour."""

import itertools

import numpy as np
import pytest
from unit.simulate.house import NO_ONE, busy_jobs
from unit.simulate.instances import cluster as nodes_of
from unit.simulate.instances import given, jobs_of, partition

from rltuned.core.changes import Change, Field, Outcome, OverSubscribe, SiteFactor
from rltuned.decide.rank.heuristics import by_name
from rltuned.decide.rank.multifactor import Association, Weights
from rltuned.lab.demo.people import Act, Intervention, Rates, draw_interventions
from rltuned.lab.demo.simulated_slurm import Profile, SimulatedSlurm
from rltuned.simulate.engine import Simulation
from rltuned.simulate.priorities import MultifactorPriorities
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import Estimates, SimulationSettings
from rltuned.simulate.workload.jobs import Source, workload


def cluster(
    *interventions, text="1x4:a100:64c", submit=(0, 10, 20, 30), run=(7200, 600, 600, 600), gpus=(4, 4, 4, 4), **profile
):
    """Job 1 runs and fills the node; jobs 2, 3, 4 wait. Nothing takes time unless it is said."""
    jobs = workload(Source("test"), submit, run, gpus, user=["ann", "bob", "ann", "bob"][: len(submit)], cpus=4)
    limits = np.asarray(run, dtype=np.float64)
    slurm = SimulatedSlurm(
        parse_shape(text),
        jobs,
        Estimates(limits, limits),
        interventions=interventions,
        profile=Profile(reading=0.0, update=0.0, **profile),
    )
    slurm.advance(120.0)
    return slurm


def write(slurm, job, of, value):
    before = slurm.status([job]).get(job)
    after = SiteFactor(value) if of is Field.SITE_FACTOR else value
    change = Change(job, before.submit_time if before else 0, of, 0, after, 0)
    return slurm.write([change])[0]


def look(slurm, job):
    return slurm.status([job])[job]


def test_a_site_factor_counts_at_once_ageing_goes_on_and_zero_undoes_it():
    slurm = cluster()
    alone = look(slurm, 3).priority
    write(slurm, 3, Field.SITE_FACTOR, 1000)
    assert (look(slurm, 3).priority, look(slurm, 3).site_factor) == (alone + 1000, 1000)
    slurm.advance(1200.0)
    assert look(slurm, 3).priority > alone + 1000
    write(slurm, 3, Field.SITE_FACTOR, 0)
    assert slurm.priority(np.array([2])) == slurm.alone(np.array([2]))


def test_its_facts_are_those_of_the_simulated_scheduler():
    settings = SimulationSettings(bf_interval=7.0, bf_resolution=1.0, bf_max_job_test=2000, bf_window=7200.0)
    jobs = workload(Source("test"), [0.0], [60.0], [1])
    estimates = Estimates(jobs.run_time, jobs.run_time)
    slurm = SimulatedSlurm(parse_shape("1x4"), jobs, estimates, settings, Weights(half_life=600.0))
    assert SimulationSettings.of_cluster(slurm.facts().scheduler) == settings
    assert slurm.facts().scheduler.half_life == 600.0


def test_a_qos_counts_as_its_share_of_the_highest_one_and_idle_users_take_places_in_the_fair_share():
    jobs = workload(
        Source("test"), [0.0] * 3, 60.0, 1, user=["ann", "bob", "ann"], account="lab", qos=["low", "high", "other"]
    )
    limits = np.full(3, 60.0)
    simulation = Simulation(parse_shape("1x1"), jobs, Estimates(limits, limits))
    rows, qos = np.arange(3), {"low": 25.0, "high": 50.0, "highest": 100.0}
    made = MultifactorPriorities(simulation, Weights(qos=1000), qos)
    assert made.sums(simulation, rows).tolist() == [250, 500, 0]
    idle = [Association("else"), Association("else", "cleo"), Association("else", "dan")]
    for others, expected in (([], [1000, 500]), (idle, [500, 250])):
        simulation = Simulation(parse_shape("1x1"), jobs, Estimates(limits, limits))
        priorities = MultifactorPriorities(simulation, Weights(fairshare=1000), others=others)
        simulation.run(RuleRanker(by_name("fifo")), until=90.0)
        priorities.passed(simulation)
        assert sorted(set(priorities.sums(simulation, rows).tolist()), reverse=True) == expected


def test_the_terms_that_sprio_adds_up_are_told_below_the_floor_too():
    slurm = cluster(Intervention(60.0, Act.NICE, 2, 2_000_000))
    write(slurm, 3, Field.SITE_FACTOR, 1000)
    jobs = slurm.snapshot(0.0).jobs
    at = jobs.row_of[3]
    assert (jobs.priority[at], look(slurm, 3).priority) == (1, 1)
    assert jobs.base[at] == jobs.base_least[at] < 1 - 1000


def test_a_held_job_has_priority_zero_and_is_not_listed():
    slurm = cluster(Intervention(60.0, Act.HOLD, 2))
    status = look(slurm, 3)
    assert (status.held, status.priority, status.site_factor, status.reason) == (True, 0, None, "JobHeldUser")
    assert write(slurm, 3, Field.SITE_FACTOR, 400).message == ""
    row = slurm.snapshot(0.0).jobs.row_of[3]
    assert slurm.snapshot(0.0).jobs.held[row]
    slurm.advance(30_000.0)
    assert look(slurm, 3).pending


def test_hold_and_release_by_the_owner_undo_an_explicit_priority_but_not_what_an_admin_holds():
    slurm = cluster(
        Intervention(60.0, Act.ADMIN_PRIORITY, 1, 77),
        Intervention(200.0, Act.HOLD, 1),
        Intervention(260.0, Act.RELEASE, 1),
        Intervention(200.0, Act.ADMIN_HOLD, 2),
        Intervention(220.0, Act.HOLD, 2),  # does not make it theirs
        Intervention(260.0, Act.RELEASE, 2),
        Intervention(400.0, Act.ADMIN_RELEASE, 2),
    )
    slurm.advance(300.0)
    assert look(slurm, 2).priority > 77
    assert look(slurm, 2).site_factor == 0
    assert look(slurm, 3).reason == "JobHeldAdmin"
    slurm.advance(420.0)
    assert not look(slurm, 3).held


@pytest.mark.parametrize(
    ("profile", "before", "after"), [({}, 160.0, 180.0), ({"calc_phase": 42.0}, 161.0, 163.0)], ids=["", "a phase"]
)
def test_sprio_lists_a_job_only_after_the_next_calculation(profile, before, after):
    slurm = cluster(submit=(0, 10, 20, 150), **profile)
    slurm.advance(before)
    assert (look(slurm, 4).site_factor, look(slurm, 4).priority > 0) == (None, True)
    slurm.advance(after)
    assert look(slurm, 4).site_factor == 0
    slurm.advance(100_000.0)  # and no calculation is made twice
    at_once = cluster(submit=(0, 10, 20, 150), listed_at_once=True, **profile)
    at_once.advance(before)
    assert look(at_once, 4).site_factor == 0


def test_what_an_admin_sets_is_theirs_not_a_leftover():
    slurm = cluster(Intervention(60.0, Act.ADMIN_PRIORITY, 2, 500), Intervention(60.0, Act.ADMIN_SITE_FACTOR, 3, -40))
    assert look(slurm, 3).priority == 500
    assert look(slurm, 4).site_factor == -40
    assert slurm.leftovers() == []


def test_running_jobs_take_a_site_factor_without_effect_and_refuse_placement():
    slurm = cluster()
    assert write(slurm, 1, Field.SITE_FACTOR, 5).message == ""
    assert write(slurm, 1, Field.OVERSUBSCRIBE, "NO").outcome is Outcome.GONE
    assert not look(slurm, 1).pending
    assert slurm.leftovers() == []


def test_finished_and_unknown_jobs_are_gone():
    slurm = cluster()
    slurm.advance(7300.0)
    assert 1 not in slurm.status([1])
    assert write(slurm, 1, Field.SITE_FACTOR, 5).message == "Job has already finished for job 1"
    assert write(slurm, 999, Field.SITE_FACTOR, 5).outcome is Outcome.GONE


def test_no_waits_for_an_idle_node_and_yes_does_not_take_it_back():
    # Job 1 fills a node, job 2 has half of the other: a default job packs there, an isolated one waits.
    waits = {"submit": (0, 0, 130, 130), "gpus": (4, 2, 1, 1), "run": (7200, 7200, 600, 600), "text": "2x4:a100:64c"}
    slurm = cluster(**waits)
    slurm.simulation.set_usable(1, usable=False)
    slurm.advance(140.0)
    assert write(slurm, 3, Field.OVERSUBSCRIBE, "NO").outcome is None
    slurm.simulation.set_usable(1, usable=True)
    slurm.advance(200.0)
    assert not look(slurm, 4).pending
    assert look(slurm, 3).pending
    assert look(slurm, 3).oversubscribe is OverSubscribe.NO
    assert [left.field for left in slurm.leftovers()] == [Field.OVERSUBSCRIBE]
    write(slurm, 3, Field.OVERSUBSCRIBE, "YES")
    slurm.advance(300.0)
    assert look(slurm, 3).pending


def test_a_drained_node_takes_no_job_and_is_shown_unusable():
    name = parse_shape("1x4:a100:64c").nodes.names[0]
    slurm = cluster(Intervention(60.0, Act.DRAIN, value=name), Intervention(20_000.0, Act.RESUME, value=name))
    assert not slurm.snapshot(0.0).nodes.usable.any()
    slurm.advance(19_000.0)
    assert look(slurm, 2).pending
    slurm.advance(20_100.0)
    assert not look(slurm, 2).pending


def test_answers_take_time_and_the_cluster_goes_on_meanwhile():
    jobs = busy_jobs(50, 3)
    slurm = SimulatedSlurm(parse_shape("1x8:a100:64c:512g"), jobs, Estimates(jobs.time_limit, jobs.time_limit))
    slurm.advance(600.0)
    before = slurm.time
    slurm.snapshot(0.0)
    slurm.status(None)
    assert slurm.time == pytest.approx(before + 2 * slurm.profile.reading)


def test_the_snapshot_shows_what_is_set_and_whole_seconds():
    slurm = cluster(Intervention(60.0, Act.HOLD, 1))
    snapshot = slurm.snapshot(0.0)
    jobs = snapshot.jobs
    assert jobs.job_id.tolist() == [1, 2, 3, 4]
    assert jobs.state.tolist() == [1, 0, 0, 0]
    assert np.isnan(jobs.eligible_time[1])
    assert jobs.held.tolist() == [False, True, False, False]
    assert jobs.site_known.tolist() == [False, False, True, True]
    assert (jobs.submit_time == np.floor(jobs.submit_time)).all()
    assert jobs.end_time[0] - jobs.start_time[0] == 7200
    assert (snapshot.nodes.gpus_free.sum(), jobs.nodes_of(0).tolist()) == (0, [0])
    # Ann has used more than her share, so Bob's job stands first and waits for resources, hers for its turn.
    assert jobs.reason.texts() == ["", "JobHeldUser", "Priority", "Resources"]
    found = {job: (one.priority, one.held, one.submit_time) for job, one in slurm.status(None).items()}
    columns = jobs.job_id[1:], jobs.priority[1:], jobs.held[1:], jobs.submit_time[1:]
    assert found == {job: tuple(rest) for job, *rest in zip(*columns, strict=True)}


def test_people_do_what_they_do_at_their_times_and_the_same_for_a_seed():
    jobs = busy_jobs(300, 5)
    assert draw_interventions(jobs, 5) == draw_interventions(jobs, 5) != draw_interventions(jobs, 6)
    assert draw_interventions(jobs, 5, NO_ONE) == []
    many = draw_interventions(jobs, 5, Rates(0.5, 0.5, 0.5, 0.5, 0.5, 0.5))
    assert {one.act for one in many} == {
        Act.HOLD, Act.RELEASE, Act.CANCEL, Act.NICE, Act.ADMIN_PRIORITY, Act.ADMIN_SITE_FACTOR,
        Act.ADMIN_HOLD, Act.ADMIN_RELEASE,
    }  # fmt: skip
    assert all(a.time <= b.time for a, b in itertools.pairwise(many))
    slurm = cluster(Intervention(60.0, Act.CANCEL, 2), Intervention(60.0, Act.CANCEL, 0))
    assert sorted(slurm.status(None)) == [2, 4]
    assert 1 in slurm.status([1])  # it ran: an intervention on a pending job is too late


def test_usage_is_what_the_partition_bills():
    """TRESBillingWeights, of Slurm's own arithmetic: what is not weighed is free; MAX_TRES: the dearest only."""
    billed = partition("gpu", [0, 1], billing={"cpu": 1.0, "gres/gpu": 16.0, "mem": 1 / 1024, "node": 3.0})
    shape = nodes_of(
        [8, 8], partitions=[billed, partition("plain", [0, 1]), partition("free", [0, 1], billing={"x": 1.0})]
    )
    jobs = jobs_of(
        [0.0] * 3,
        [100.0] * 3,
        [2, 2, 2],
        cpus=[4] * 3,
        mem=[2048.0] * 3,
        partition=["gpu", "plain", "free"],
        user=list("abc"),
    )
    for weights, expected in (
        (Weights(fairshare=1.0), [4 + 32 + 2 + 3, 4, 0]),
        (Weights(fairshare=1.0, max_tres=True), [32, 4, 0]),
    ):
        simulation = Simulation(shape, jobs, given([100.0] * 3))
        priorities = MultifactorPriorities(simulation, weights)
        simulation.run(RuleRanker(by_name("fifo")), 10.0)
        priorities.passed(simulation)
        used = [priorities.usage.raw[priorities.usage.associations.row_of["(none)", user]] for user in "abc"]
        assert np.array(used) / 10.0 == pytest.approx(expected, rel=1e-3)


def test_weights_of_nodes_and_of_gpus_of_a_type_count():
    shape = nodes_of([4, 4], types=["a100", "t4"])
    jobs = jobs_of([0.0] * 3, [9.0] * 3, [2, 2, 2], gpu_type=["a100", "t4", ""])
    simulation = Simulation(shape, jobs, given([9.0] * 3))
    weights = Weights.parse("gres/gpu:A100=1000,node=100,gres/gpu=-800")
    found = MultifactorPriorities(simulation, weights).sums(simulation, np.arange(3))
    assert found.tolist() == [500 + 50 - 200, 50 - 200, 50 - 200]
