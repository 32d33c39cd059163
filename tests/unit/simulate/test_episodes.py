"""Episodes: the compiled twin of `Simulation` with a ranker that observes and scores, and what it records."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from numba.core.caching import NullCache
from unit.simulate.instances import Instance, cluster, given, jobs_of, partition, random_instance

from rltuned.core.changes import OverSubscribe
from rltuned.core.errors import RltunedError
from rltuned.core.objective import Objective
from rltuned.decide.rank.actor import RUN_TIME, Actor, on_means, plain_rule, shapes
from rltuned.decide.see.observation import STATE_COLUMNS, Observation, observe
from rltuned.simulate import backfill_kernel, episode_kernel, kernel, loop_kernel
from rltuned.simulate.engine import Simulation
from rltuned.simulate.episodes import Episode, Trajectory
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import SimulationSettings
from rltuned.simulate.workload.jobs import Workload
from rltuned.simulate.workload.simulated_estimates import estimate
from rltuned.simulate.workload.synthetic import generate


def actor(hidden: int, seed: int, size: float = 0.5) -> Actor:
    """Random coefficients, and a network that changes them."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0.0, size, shape).astype(np.float32) for name, shape in shapes(hidden).items()}
    return Actor("random", weights, Objective.parse("wait=2,slowdown=1,tail=3,idle=4"))


def expecting(one: Actor) -> Actor:
    """With an opinion of what estimates and limits are worth."""
    return replace(one, weights={**one.weights, RUN_TIME: np.array([-1.5, 0.5, 0.6], dtype=np.float32)})


SAF = plain_rule("saf", requested_time=-1.0, requested_gpus=-0.56)
ACTORS = {
    "a plain rule": plain_rule("rule", requested_time=-1.0, requested_gpus=-0.3, job_urgency=0.4, time_to_free=-0.1),
    "coefficients that the moment changes": actor(5, 2),
    "one hidden unit": actor(1, 3),
    "on expected run times": expecting(actor(6, 4)),
    "a rule that ages, on expected run times": expecting(plain_rule("ages", requested_time=-1.0, job_urgency=1.0)),
}


@dataclass
class Observing:
    """The long way: a snapshot, `observe`, `Actor.score`; jobs out of sight keep the place of their submission."""

    actor: Actor
    ages = True
    at_once = False
    seen: list[tuple[float, Observation, npt.NDArray[np.intp]]] = field(default_factory=list)

    def fixed(self, simulation: Simulation) -> None:
        return None

    def keys(self, simulation: Simulation, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        snapshot, running = simulation.snapshot(), len(simulation.running)
        estimates = simulation.estimates.run_time[snapshot.jobs.job_id - 1]
        observation = observe(snapshot, np.arange(running, running + len(rows)), estimates)
        scores = self.actor.score(observation)
        at = observation.rows - running
        self.seen.append((simulation.now, observation, rows[at]))
        if len(at) == len(rows):
            keys = np.empty(len(rows))
            keys[at] = -scores
            return keys
        visible = np.zeros(len(rows), dtype=np.bool_)
        visible[at] = True
        wanted = at[np.lexsort((rows[at], -scores))]
        tiers = np.array([p.priority_tier for p in simulation.shape.partitions])[simulation.asked.partition[rows]]
        keys = np.empty(len(rows))
        for tier in np.unique(tiers):
            members = np.flatnonzero(tiers == tier)
            place = np.full(len(rows), -1)
            place[members] = np.arange(len(members))
            order = np.argsort(rows[members])
            order[visible[members][order]] = place[wanted][place[wanted] >= 0]
            keys[members[order]] = np.arange(len(members))
        return keys


def both(instance: Instance, policy: Actor, settings: SimulationSettings | None = None) -> tuple[Observing, Trajectory]:
    """Run the long way and the compiled way; the starts are compared here, the rest by the caller."""
    settings = settings or instance.settings
    simulation = Simulation(instance.shape, instance.jobs, instance.estimates, settings)
    ranker = Observing(policy)
    simulation.run(ranker)
    found = Episode(instance.shape, instance.jobs, instance.estimates, settings).run(
        policy, temperature=0.0, heads=2, seed=0, record=True
    )
    result = simulation.result()
    np.testing.assert_array_equal(found.start, result.start)
    np.testing.assert_array_equal(found.end, result.end)
    return ranker, found


def assert_same_rows(ranker: Observing, found: Trajectory, policy: Actor) -> None:
    np.testing.assert_array_equal(found.time, [time for time, _, _ in ranker.seen])
    for step, ((_, observation, jobs), (begin, end)) in enumerate(zip(ranker.seen, pairwise(found.ptr), strict=True)):
        np.testing.assert_array_equal(found.job[begin:end], jobs)
        own = policy.explained(observation)
        np.testing.assert_allclose(found.state[begin:end], own.terms, atol=1e-6, rtol=0)
        np.testing.assert_allclose(found.score[begin:end], own.scores, atol=2e-6, rtol=0)
        np.testing.assert_allclose(found.moment[step], own.moment, atol=1e-6, rtol=0)


def test_a_floating_reservation_is_refused():
    shape = replace(cluster([4, 4]), longest=np.array([np.inf, 600.0]))
    with pytest.raises(RltunedError, match="without floating reservations, of which observe does not know"):
        Episode(shape, jobs_of([0.0], [10.0], [1]), given([10.0]))


@pytest.mark.parametrize("name", ACTORS)
@pytest.mark.parametrize("block", range(4))
def test_on_random_instances_every_job_starts_as_with_observe_and_the_actor_and_every_row_is_observes(name, block):
    steps = 0
    for seed in range(8):
        instance = random_instance(100 + 8 * block + seed)
        ranker, found = both(instance, ACTORS[name])
        assert_same_rows(ranker, found, ACTORS[name])
        steps += len(found)
    assert steps > 10


def test_run_times_that_are_predicted_means_are_not_corrected():
    instance, policy = philly(128, "4x4:v100", load=2.0), ACTORS["on expected run times"]
    asked = instance.shape, instance.jobs, instance.estimates, instance.settings
    how = {"temperature": 0.1, "heads": 2, "seed": 1, "record": True}
    served, corrected = (Episode(*asked, predicted=means).run(policy, **how) for means in (True, False))
    alone = Episode(*asked).run(on_means(policy), **how)
    for name in ("start", "state", "moment", "score"):
        np.testing.assert_array_equal(getattr(served, name), getattr(alone, name))
    assert not np.array_equal(served.start, corrected.start)


@pytest.mark.parametrize("name", ACTORS)
@pytest.mark.parametrize("whole", [False, True])
def test_on_a_window_like_phillys_too(name, whole):
    instance = philly(256, "6x4:v100,8x8:p100", load=2.0)
    if whole:  # a node runs one job
        parts = [replace(part, oversubscribe=OverSubscribe.EXCLUSIVE) for part in instance.shape.partitions]
        instance = replace(instance, shape=replace(instance.shape, partitions=tuple(parts)))
    ranker, found = both(instance, ACTORS[name])
    assert_same_rows(ranker, found, ACTORS[name])
    assert max(np.diff(found.ptr)) > 30


def philly(jobs: int, shape: str, load: float, seed: int = 3) -> Instance:
    nodes = parse_shape(shape)
    made = generate("philly", jobs, nodes, seed, load)
    return Instance(nodes, made, estimate(made, "noisy:1.5", seed), "saf", SimulationSettings())


def crowd(jobs: int, *, tiers: bool) -> Instance:
    """All submitted within a minute, to one node: far more than the policy sees."""
    rng = np.random.default_rng(jobs)
    parts = [partition("low", [0, 1]), partition("high", [0, 1], priority_tier=2)] if tiers else []
    made = jobs_of(
        np.sort(rng.uniform(0.0, 50.0, jobs)),
        np.round(rng.exponential(120.0, jobs)),
        rng.choice([1, 1, 2, 4], jobs),
        partition=[str(rng.choice(["low", "low", "high"])) if tiers else "" for _ in range(jobs)],
    )
    limits = np.maximum(made.run_time * rng.uniform(1.0, 3.0, jobs), 1.0)
    return Instance(cluster([4, 8], partitions=parts), made, given(limits), "saf", SimulationSettings())


@pytest.mark.parametrize("tiers", [False, True])
def test_when_more_wait_than_the_policy_sees_the_others_keep_the_place_of_their_submission(tiers):
    instance = crowd(420, tiers=tiers)
    ranker, found = both(instance, ACTORS["coefficients that the moment changes"])
    assert_same_rows(ranker, found, ACTORS["coefficients that the moment changes"])
    assert max(np.diff(found.ptr)) == 256


def busy_window() -> Episode:
    instance = philly(120, "4x4", load=4.0)
    return Episode(instance.shape, instance.jobs, instance.estimates)


NETWORK = ACTORS["coefficients that the moment changes"]


def sampled(episode: Episode, seed: int = 7, *, record: bool = True) -> Trajectory:
    return episode.run(NETWORK, temperature=0.05, heads=3, seed=seed, record=record)


def test_a_trajectory_depends_on_the_seed_alone_not_on_runs_before_it_or_on_the_room_of_the_first_tape():
    episode = busy_window()
    first, other, again, elsewhere = sampled(episode), sampled(episode, 8), sampled(episode), sampled(busy_window())
    assert len(first) > 64, "the first tape of an episode has room for all of it: nothing is tested"
    episode._room = 1, 1
    short = sampled(episode)
    for name in vars(first):
        for same in (again, elsewhere, short):
            np.testing.assert_array_equal(getattr(first, name), getattr(same, name), err_msg=name)
    assert (first.start != other.start).any()


def test_recording_changes_nothing_but_what_is_recorded():
    episode = busy_window()
    with_tape, without = sampled(episode), sampled(episode, record=False)
    np.testing.assert_array_equal(with_tape.start, without.start)
    np.testing.assert_array_equal(with_tape.end, without.end)
    assert (len(without), len(without.job), without.ptr.tolist()) == (0, 0, [0])


@pytest.mark.parametrize("temperature", [0.05, 1.0, 1e-4])
def test_the_log_probability_is_that_of_plackett_and_luce_for_the_recorded_scores(temperature):
    found = busy_window().run(NETWORK, temperature=temperature, heads=4, seed=1, record=True)
    for step, (begin, end) in enumerate(pairwise(found.ptr)):
        left, logp = found.score[begin:end] / temperature, 0.0
        picks = found.picks[step]
        assert (picks[: end - begin] >= 0).all()
        assert (picks[end - begin :] == -1).all()
        for pick in picks[picks >= 0]:
            logp += left[pick] - np.logaddexp.reduce(left)
            left = left.copy()
            left[pick] = -np.inf
        assert found.logp[step] == pytest.approx(logp, abs=1e-9, rel=1e-9)


def one_gpu(run: list[float]) -> Episode:
    """The first job runs from 1 s on, for 100 s; the others wait for it, and are ranked at 60 s."""
    times = [100.0, *run]
    return Episode(cluster([1]), jobs_of([1.0] * len(times), times, [1] * len(times)), given(times))


def test_sampled_places_come_as_often_as_their_log_probability_says():
    episode, network, runs = one_gpu([1.0, 2.0, 8.0]), SAF, 1000
    found = [episode.run(network, temperature=0.1, heads=2, seed=seed, record=True) for seed in range(runs)]
    ways = {tuple(map(int, run.picks[0])): float(np.exp(run.logp[0])) for run in found}
    assert sum(ways.values()) == pytest.approx(1.0)
    for way, probability in ways.items():
        share = np.mean([tuple(run.picks[0]) == way for run in found])
        assert share == pytest.approx(probability, abs=4 * np.sqrt(probability * (1 - probability) / runs))


def test_picked_jobs_stand_in_front_and_the_rest_follows_by_score():
    times = [1.5, 3.0, 2.0, 5.0, 2.5, 4.0]  # all of them run between the refreshes at 60 s and at 120 s
    episode, network = one_gpu(times), SAF
    fronts = set()
    for seed in range(20):
        found = episode.run(network, temperature=10.0, heads=2, seed=seed, record=True)
        front = [int(found.job[pick]) for pick in found.picks[0]]
        rest = [job for job in (1, 3, 5, 2, 6, 4) if job not in front]
        assert np.argsort(found.start).tolist() == [0, *front, *rest]
        fronts.add(tuple(front))
    assert len(fronts) > 10


def window(submit: list[float], run: list[float], gpus: list[int]) -> Trajectory:
    made: Workload = jobs_of(submit, run, gpus)
    return Episode(parse_shape("2x4"), made, given(run)).run(NETWORK, temperature=0.5, heads=3, seed=1, record=True)


def test_a_job_that_waits_alone_is_picked_for_certain():
    found = window([1.0, 1.0], [100.0, 10.0], [8, 8])
    assert found.picks[0].tolist() == [0, -1, -1]
    assert found.logp[0] == 0.0
    assert found.start.tolist() == [1.0, 101.0]


@pytest.mark.parametrize(
    ("submit", "gpus", "start"),
    [
        ([], [], []),
        ([0.0, 1.0], [99, 99], [np.nan, np.nan]),  # rejected
        ([1.0, 101.0, 201.0], [4, 8, 1], [1.0, 101.0, 201.0]),
    ],
)
def test_a_window_in_which_nobody_waits_has_no_steps(submit, gpus, start):
    found = window(submit, [10.0] * len(gpus), gpus)
    assert len(found) == len(found.job) == 0
    np.testing.assert_array_equal(found.start, start)
    np.testing.assert_array_equal(found.end, np.array(start) + 10.0)


def test_nodes_with_two_types_of_gpus_are_refused():
    shape = cluster([4, 4], types=["a", "b"])
    shape.nodes.gpus[0] = [2, 2]
    with pytest.raises(RltunedError, match="one type"):
        Episode(shape, jobs_of([0.0], [1.0], [1]), given([1.0]))


@pytest.mark.parametrize(
    "broken",
    [
        replace(NETWORK, weights=NETWORK.weights | {name: np.full_like(NETWORK.weights[name], np.nan)})
        for name in ("constant", "kernel", "change")
    ],
)
def test_a_network_that_cannot_order_a_queue_is_refused(broken):
    with pytest.raises(RltunedError):
        busy_window().run(broken, temperature=0.0, heads=0, seed=0, record=False)


def test_a_node_without_a_free_cpu_takes_nobody_for_observe_even_if_slurm_would_start_the_job():
    """The last job comes at a refresh, which is before the main pass of that instant."""
    made = jobs_of([1.0, 60.0], [100.0, 10.0], [1, 1], cpus=[4, 0])
    instance = Instance(cluster([4], cpus=4), made, given([100.0, 10.0]), "saf", SimulationSettings())
    ranker, found = both(instance, SAF)
    assert_same_rows(ranker, found, SAF)
    assert found.start.tolist() == [1.0, 60.0]
    assert found.state[0, STATE_COLUMNS.index("can_schedule_now")] == 0.0


def test_another_kernel_is_another_key_of_the_cache(monkeypatch):
    """Numba looks at the file of a function alone; a change of another file must not leave old code in use."""
    below = (kernel, backfill_kernel)
    for entry, files in ((loop_kernel.advance, below), (episode_kernel.roll_out, (*below, loop_kernel))):
        before = kernel.source_stamp(*files)
        assert before in [cell.cell_contents for cell in entry.py_func.__closure__]
        for file, name in ((kernel, "DIMENSIONS"), (backfill_kernel, "GROUP")):
            with monkeypatch.context() as patch:
                patch.setattr(file, name, getattr(file, name) + 1.0)
                assert kernel.source_stamp(*files) != before


def test_what_calls_functions_of_another_file_of_the_kernel_is_kept_only_as_a_part_of_its_entry_point():
    """Else an entry point that is compiled anew would be linked with code that is kept from before."""
    for file in (backfill_kernel, loop_kernel):
        for name, value in vars(file).items():
            if getattr(getattr(value, "py_func", None), "__module__", "") == file.__name__ and name != "advance":
                assert isinstance(value._cache, NullCache), name
