"""Slurm's own priority, beside what real slurmctlds calculated (tests/recorded/*/priorities-*.txt)."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from rltuned.core.notation import seconds_of
from rltuned.core.tables import Category
from rltuned.decide.rank.multifactor import (
    USUAL,
    Association,
    Associations,
    Machine,
    PendingJobs,
    Usage,
    associations_of_jobs,
    changing_term,
    fair_tree,
    fixed_terms,
    job_size,
    normalised,
)

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = ("22.05", "24.11", "26.05")
SITE = replace(USUAL, max_age=1800.0, half_life=600.0)
"""As tests/recorded/priorities.sh configures the cluster: everything faster than a site would have it."""
MACHINE = Machine(nodes=5, cpus=196)
TRES_OF = {
    "gpu": {"cpu": 196, "mem": 896_000, "gres/gpu": 13},
    "k80": {"cpu": 56, "mem": 256_000, "gres/gpu": 4},
}
JOB_FACTOR = {"gpu": 1, "k80": 10, "share": 5, "force": 1}
QOS = {"low": 0, "normal": 50, "high": 100}
MIB = {"M": 1, "G": 1024}


@dataclass
class Recording:
    """One moment of the real cluster."""

    tree: Associations
    usage: np.ndarray
    fairshare: dict
    rows: list  # sprio: one row per job and partition
    asked: dict  # squeue: by job id
    time: float  # of slurmctld's last calculation

    @property
    def jobs(self):
        wanted = [(row, self.asked[row["job"]]) for row in self.rows]
        highest = {"partition": max(JOB_FACTOR.values()), "qos": max(QOS.values())}
        return PendingJobs.of(
            len(wanted),
            eligible=[float(asked["eligible"]) for _, asked in wanted],
            association=[self.tree.row_of[row["account"], row["user"]] for row, _ in wanted],
            nodes=[int(asked["nodes"]) for _, asked in wanted],
            cpus=[int(asked["cpus"]) for _, asked in wanted],
            partition=[JOB_FACTOR[row["partition"]] / highest["partition"] for row, _ in wanted],
            qos=[QOS[row["qos"]] / highest["qos"] for row, _ in wanted],
            tres=np.array([shares(asked["tres"], row["partition"]) for row, asked in wanted]),
            time_limit=[seconds_of(asked["limit"]) for _, asked in wanted],
        )


def factors(weights, machine, now, jobs, fairshare):
    """(n,) weighted factors together: slurmctld's priorities are those without the fractions, at least 1."""
    total = changing_term(weights, now, jobs.eligible, fairshare[jobs.association])
    return sum(fixed_terms(weights, machine, jobs), total)


def shares(tres, partition):
    asked = dict(part.split("=") for part in tres.split(","))
    asked["mem"] = int(asked["mem"][:-1]) * MIB[asked["mem"][-1]]
    there = TRES_OF.get(partition, TRES_OF["gpu"])
    return [int(asked.get(name, 0)) / there[name] for name in SITE.tres]


def recording(number, release="24.11"):
    sections = {}
    for line in (RECORDED / release / f"priorities-{number}.txt").read_text().splitlines():
        if line.startswith("## "):
            sections[line[3:]] = lines = []
        else:
            lines.append(line)
    above, entries, raw, fairshare = [], [], {}, {}
    for line in sections["sshare"][1:]:
        depth = len(line) - len(line.lstrip())
        account, user, own, _, used, _, _, factor, _ = line.strip().split("|")
        above[depth:] = [account]
        entries.append(Association(account, user, above[depth - 1] if depth else "", float(own or 0)))
        raw[account, user] = float(used)
        if user:
            fairshare[account, user] = float(factor)
    tree = Associations.of(entries)
    # 22.05's sprio has no account and no QOS; squeue's are the same.
    names = "job partition user priority age age_norm fairshare fs_norm size size_norm part part_norm"
    sprio = [*names.split(), "qos_part", "qos_norm", "nice", "site", "tres", "tres_norm"]
    squeue = "job state user account partition qos submit eligible accrue start limit nodes cpus tres nice priority"
    asked = {line.split("|")[0]: dict(zip(squeue.split(), line.split("|"), strict=True)) for line in sections["squeue"]}
    rows = []
    for line in sections["sprio"]:
        values = line.split("|")
        if len(values) > len(sprio):
            del values[3:5]
        about = asked[values[0]]
        rows.append({"account": about["account"], "qos": about["qos"], **dict(zip(sprio, values, strict=True))})
    first = rows[0]
    time = float(asked[first["job"]]["eligible"]) + float(first["age_norm"]) * SITE.max_age
    usage = np.array([raw.get((each.account, each.user), 0.0) for each in tree.entries])
    return Recording(tree, usage, fairshare, rows, asked, float(round(time)))


@pytest.mark.parametrize(
    ("number", "release", "flags"),
    [
        *((number, release, {}) for number in (1, 2) for release in RELEASES),
        *((4, release, {"favor_small": True}) for release in RELEASES),
        (5, "24.11", {"small_relative_to_time": True}),
        (6, "24.11", {"small_relative_to_time": True, "favor_small": True}),
    ],
)
def test_every_priority_of_the_real_cluster_is_found_to_the_last_digit(number, release, flags):
    now, site = recording(number, release), replace(SITE, **flags)
    usage = Usage(now.tree, site, now.time)
    usage.raw = now.usage
    theirs = [int(row["site"]) - int(row["nice"]) for row in now.rows]
    found = np.maximum(factors(site, MACHINE, now.time, now.jobs, usage.factors()) + theirs, 1.0)
    assert len(found) > 30
    assert found.astype(int).tolist() == [int(row["priority"]) for row in now.rows]
    sizes = [float(row["size_norm"]) for row in now.rows]
    assert job_size(site, MACHINE, now.jobs) == pytest.approx(sizes, abs=1e-7)
    assert len(set(sizes)) > 5


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_fair_tree_gives_every_user_of_the_real_cluster_the_factor_that_sshare_shows(number, release):
    now = recording(number, release)
    found = fair_tree(now.tree, now.usage)
    assert len(set(now.fairshare.values())) > 6
    for (account, user), factor in now.fairshare.items():
        assert found[now.tree.row_of[account, user]] == pytest.approx(factor, abs=1e-6), (account, user)


@pytest.mark.parametrize("release", RELEASES)
def test_usage_of_the_real_cluster_decays_and_grows_as_sshare_shows_three_minutes_later(release):
    before, after = recording(1, release), recording(2, release)
    running = [asked for asked in before.asked.values() if asked["state"] == "R"]
    assert len(running) == 6
    leaves = np.array([before.tree.row_of[asked["account"], asked["user"]] for asked in running])
    cpus = np.array([float(asked["cpus"]) for asked in running])
    usage = Usage(before.tree, SITE, before.time)
    usage.raw = before.usage.copy()
    while usage.time < after.time:
        usage.decay(usage.time + 60.0)
        usage.charge(leaves, cpus, np.full(len(cpus), 60.0))
    assert after.time - before.time == 180.0
    assert usage.raw == pytest.approx(after.usage, abs=1.5)  # sshare drops fractions
    assert after.usage.max() > 2 * before.usage.max()


def jobs(n=3, **columns):
    return PendingJobs.of(n, tres=np.zeros((n, 3)), **columns)


def test_age_grows_to_its_weight_and_no_further_and_a_job_that_is_not_eligible_has_none():
    waited = jobs(4, eligible=[1000.0, 1000.0 - USUAL.max_age / 4, -1e7, np.nan], nodes=0, cpus=0)
    assert factors(USUAL, Machine(10, 100), 1000.0, waited, np.zeros(1)).tolist() == [0.0, 2500.0, 10_000.0, 0.0]


def test_of_two_jobs_of_a_size_the_one_of_a_short_limit_counts_as_the_larger_one():
    # 10 nodes of 10 CPUs: two count as 20 CPUs, a fifth of all, over 1 minute, and over 10 (a begun one is whole).
    of = jobs(4, nodes=[2, 2, 1, 1], cpus=[2, 2, 40, 1], time_limit=[60.0, 541.0, 60.0, np.inf])
    site = replace(USUAL, small_relative_to_time=True)
    assert job_size(site, Machine(10, 100), of) == pytest.approx([0.2, 0.02, 0.4, 0.0])
    small = replace(site, favor_small=True)
    assert job_size(small, Machine(10, 100), of) == pytest.approx([0.8, 0.98, 0.6, 1.0])
    assert job_size(replace(USUAL, favor_small=True), Machine(10, 100), of) == pytest.approx([0.89, 0.89, 0.75, 0.945])


def test_the_factor_of_a_partition_or_qos_is_its_priority_over_the_highest():
    assert normalised(np.array([50.0, 0.0, 200.0])).tolist() == [0.25, 0.0, 1.0]
    assert normalised(np.zeros(2)).tolist() == [0.0, 0.0]


def two_labs():
    return Associations.of(
        [
            Association("root"),
            Association("a", shares=3),
            Association("b"),
            Association("a1", parent="a", shares=2),
            Association("a1", "ann"),
            Association("a1", "abe"),
            Association("a", "amy"),
            Association("b", "bob"),
        ]
    )


def test_under_fair_tree_everybody_of_the_account_that_used_less_of_its_share_goes_first():
    usage = Usage(two_labs(), USUAL)
    row = usage.associations.row_of
    # Of 100: a used 60 of its 75, b 40 of its 25. In a: amy used 10 of 60 and has 1/3, a1 50 of 60 and has 2/3.
    usage.charge(
        np.array([row["a1", "ann"], row["a", "amy"], row["b", "bob"]]), np.array([50.0, 10.0, 40.0]), np.ones(3)
    )
    found = usage.factors()
    assert {name: found[at] for name, at in row.items() if name[1]} == {
        ("a", "amy"): 1.0,
        ("a1", "abe"): 0.75,
        ("a1", "ann"): 0.5,
        ("b", "bob"): 0.25,
    }


def test_half_of_the_usage_is_forgotten_in_a_half_life_and_a_parent_has_what_its_children_have():
    usage = Usage(two_labs(), USUAL, time=0.0)
    row = usage.associations.row_of
    usage.charge(np.array([row["a1", "ann"], row["a", "amy"]]), np.array([600.0, 400.0]), np.ones(2))
    assert usage.raw[[row["a1", ""], row["a", ""], 0, row["b", ""]]] == pytest.approx([600, 1000, 1000, 0], abs=0.01)
    usage.decay(USUAL.half_life)
    assert usage.raw[0] == pytest.approx(500.0, rel=1e-3)
    usage.decay(0.0)
    assert usage.raw[0] == pytest.approx(500.0, rel=1e-3)


def test_associations_without_a_parent_or_twice_the_same_are_refused_by_name():
    with pytest.raises(ValueError, match="lab/ hangs in the air"):
        Associations.of([Association("lab", parent="nowhere")])
    with pytest.raises(ValueError, match="lab/ann is listed twice"):
        Associations.of([Association("lab"), Association("lab", "ann"), Association("lab", "ann")])


def test_the_jobs_of_a_trace_make_a_tree_of_equal_shares():
    user = Category.of(["ann", "bob", "ann", "", "ann"])
    account = Category.of(["x", "x", "y", "x", ""])
    tree, rows = associations_of_jobs(user, account)
    named = [(tree.entries[row].account, tree.entries[row].user) for row in rows]
    assert named == [("x", "ann"), ("x", "bob"), ("y", "ann"), ("x", "(none)"), ("(none)", "ann")]
    assert tree.share[[tree.row_of["x", ""], tree.row_of["x", "bob"]]] == pytest.approx([1 / 3, 1 / 3])


def test_users_who_submit_nothing_take_places_in_the_fair_share():
    user, account = Category.of(["ann", "bob"]), Category.of(["x", "x"])
    idle = [Association("y"), Association("y", "cleo"), Association("y", "dan")]
    tree, rows = associations_of_jobs(user, account, idle)
    usage = Usage(tree, USUAL)
    assert usage.factors()[rows].tolist() == [1.0, 1.0], "who used nothing shares the highest factor"
    usage.charge(rows, np.array([1.0, 2.0]), np.array([100.0, 100.0]))
    assert usage.factors()[rows].tolist() == [0.5, 0.25]


def test_an_empty_queue_has_no_priorities():
    tree, rows = associations_of_jobs(Category.of([]), Category.of([]))
    empty = PendingJobs.of(0, tres=np.zeros((0, 3)), association=rows)
    assert factors(USUAL, Machine(1, 1), 0.0, empty, Usage(tree, USUAL).factors()).shape == (0,)


def test_the_rows_that_are_taken_keep_their_priorities():
    now = recording(1)
    shares_of = fair_tree(now.tree, now.usage)
    some = np.array([7, 3, 11])
    whole = factors(SITE, MACHINE, now.time, now.jobs, shares_of)
    assert factors(SITE, MACHINE, now.time, now.jobs.take(some), shares_of).tolist() == whole[some].tolist()
