"""policy.name = "auto": what a verdict is worth, and what the daemon does where it is worth nothing."""

import json
import os

import pytest
from unit.controller.test_loop import again, house
from unit.rank.conftest import saved

from rltuned.controller.cycle.auto_policy import evidence
from rltuned.controller.cycle.choice import Choice, Share, lent_by
from rltuned.controller.cycle.lending import planned_on
from rltuned.controller.cycle.policy import load_policy
from rltuned.controller.health.prerequisites import Severity
from rltuned.controller.shown.checks import examine
from rltuned.controller.tell.states import Standing
from rltuned.core.applied import AppliedChanges
from rltuned.core.config import (
    DEFAULT_MODEL,
    DEFAULT_SHARE,
    MODEL,
    Config,
    EstimatesSection,
    LendSection,
    PolicySection,
    StateSection,
    resolve,
)
from rltuned.core.errors import ConfigError
from rltuned.core.objective import Objective
from rltuned.decide.explain import explain
from rltuned.records import model_files as files
from rltuned.records.decisions import load
from rltuned.records.gate_verdict import DAY, SLURM
from rltuned.records.store import ModelStore

NOW = 1e9
GPUS = 16


def verdict(**changes):
    return {
        "format": "rltuned-verdict",
        "version": 2,
        "chosen": MODEL,
        "share": 0.5,
        "fallback": "sjf",
        "fallback_share": 0.2,
        "reason": "It waits least.",
        "made_at": NOW,
        "valid_days": 90.0,
        "model": {"name": DEFAULT_MODEL, "manifest_sha256": files.manifest_sha256(DEFAULT_MODEL)},
        "cluster": {"gpus": GPUS},
        "settings": {"estimates": "history"},
        **changes,
    }


OTHER_MODEL = {"model": {"name": DEFAULT_MODEL, "manifest_sha256": "0" * 64}}


def auto(directory, content, **section):
    state = directory / "state"
    state.mkdir(exist_ok=True)
    if content is not None:
        (state / "verdict.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return Config(policy=PolicySection(name="auto", **section), state=StateSection(directory=state, mirror=None))


def choice(directory, content, now=NOW + 1, gpus=GPUS, **section):
    policy = load_policy(auto(directory, content, **section))
    choice = policy.evidence.choose(now, gpus)
    return policy.policies[choice.runs], choice


ROLLOUTS = {"settings": {"estimates": "history", "rollout": True}}


@pytest.mark.parametrize(
    ("content", "values", "name", "standing", "said"),
    [
        (verdict(), {}, DEFAULT_MODEL, "good", "It waits least."),
        (verdict(chosen="saf"), {}, "saf", "good", "It waits least."),
        (verdict(chosen="unicep"), {}, "unicep", "good", "It waits least."),
        (verdict(chosen=SLURM), {}, "multifactor", "good", "It waits least."),
        (None, {}, "multifactor", "missing", "there is no verdict"),
        # the model: the plain rule is as proven as before, and a chosen rule does not depend on which model lost
        (verdict(**OTHER_MODEL), {}, "sjf", "other-model", "another model"),
        (verdict(fallback=SLURM, **OTHER_MODEL), {}, "multifactor", "other-model", "another model"),
        (verdict(chosen="saf", **OTHER_MODEL), {}, "saf", "good", ""),
        (verdict(), {"model": "/no/such/model.json"}, "sjf", "other-model", "/no/such/model.json"),
        (verdict(**ROLLOUTS), {}, "multifactor", "unreadable", "run `rltuned gate` again"),
        (verdict(settings={"estimates": "history", "rollout": False}), {}, DEFAULT_MODEL, "good", ""),
        # the cluster, which was of 16 GPUs
        *((verdict(), {"gpus": gpus}, DEFAULT_MODEL, "good", "") for gpus in (16, 20, 12)),
        *((verdict(), {"gpus": gpus}, "multifactor", "other-cluster", f"has {gpus}") for gpus in (21, 11, 0)),
        # the time
        *((verdict(), {"now": NOW + at * DAY}, DEFAULT_MODEL, "good", "") for at in (0.0, 89.9, -0.9)),
        *((verdict(), {"now": NOW + at * DAY}, "multifactor", "expired", "ended") for at in (90.1, 1e4)),
        (verdict(), {"now": NOW - 1.1 * DAY}, "multifactor", "expired", "begins"),
    ],
)
def test_what_is_run_by_a_verdict_a_model_a_time_and_a_cluster(tmp_path, content, values, name, standing, said):
    policy, made = choice(tmp_path, content, **values)
    assert (policy.name, made.standing) == (name, standing)
    assert said in made.why


def test_the_model_that_is_served_is_told_what_the_site_wants(tmp_path):
    wanted = Objective.parse("tail=1")
    policy, _ = choice(tmp_path, verdict(), objective="tail=1")
    assert policy.objective == wanted
    run = house(tmp_path)
    fresh = run.daemon.config.model_copy(update={"policy": PolicySection(objective="tail=1")})
    assert run.daemon.reload(lambda: fresh)
    (served,) = run.daemon.parts.choice.policy.policies.values()
    assert served.objective == wanted


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not a verdict: as a whole"),
        ("{", "not a verdict: as a whole"),
        ("[" * 100_000, "not a verdict: as a whole"),
        ("[]", "not a verdict: as a whole"),
        ({**verdict(), "version": 1}, "not a verdict: version: this rltuned reads 2; run `rltuned gate` again"),
        (verdict(share=1.1), "share: Input should be less than or equal to 1"),
        (verdict(fallback_share=None), "fallback_share: "),
        (verdict(chosen="rm -rf"), "chosen: "),
        (verdict(chosen="best"), "no rule 'best'"),
        (verdict(fallback=MODEL), "its 'fallback' is the model"),
        (verdict(made_at="today"), "made_at: "),
        (json.dumps(verdict()).replace("90.0", "NaN"), "valid_days: "),
        (json.dumps(verdict()).replace("90.0", "1e999"), "valid_days: "),
        (verdict(model=None), "model: "),
        (verdict(model={"name": DEFAULT_MODEL, "manifest_sha256": "short"}), "model.manifest_sha256: "),
        (" " * (5 * 2**20) + json.dumps(verdict()), "larger than"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_what_cannot_be_understood_is_refused_and_slurms_own_order_stays(tmp_path, content, said):
    policy, made = choice(tmp_path, content)
    assert policy.name == "multifactor"
    assert made.standing is Standing.UNREADABLE
    assert said in made.why
    assert str(tmp_path) in made.why


def test_a_verdict_that_is_no_regular_file_holds_nothing_up(tmp_path):
    config, path = auto(tmp_path, None), tmp_path / "state" / "verdict.json"
    os.mkfifo(path)
    assert evidence(config).verdict.standing is Standing.UNREADABLE
    path.unlink()
    path.mkdir()
    assert evidence(config).verdict.standing is Standing.UNREADABLE
    path.rmdir()
    (tmp_path / "other.json").write_text(json.dumps(verdict()))
    path.symlink_to(tmp_path / "other.json")
    assert evidence(config).verdict.standing is Standing.UNREADABLE


@pytest.mark.parametrize(
    ("changes", "gpus", "share"),
    [
        ({}, GPUS, 0.5),
        ({"chosen": "saf", "share": 0.0}, GPUS, 0.0),
        (OTHER_MODEL, GPUS, 0.2),
        ({}, 4 * GPUS, DEFAULT_SHARE),
        (None, GPUS, DEFAULT_SHARE),
    ],
    ids=["the model's", "a rule's", "the fallback's", "another cluster", "no verdict"],
)
def test_a_share_of_auto_is_that_of_the_verdict_that_is_gone_by(tmp_path, changes, gpus, share):
    _, made = choice(tmp_path, None if changes is None else verdict(**changes), gpus=gpus)
    held = Share(share, NOW)
    in_force, followed = lent_by(made, Config(lend=LendSection(share="auto", most=3)), held, NOW)
    assert (in_force.value, followed.lend.share, followed.lend.part, followed.lend.most) == (share, share, share, 3)
    _, named = lent_by(Choice("saf", Standing.UNUSED), Config(lend=LendSection(share="auto")), None, NOW)
    assert named.lend.share == named.lend.part == DEFAULT_SHARE, "no verdict is asked for"
    own = Config(lend=LendSection(share=0.05))
    assert lent_by(made, own, held, NOW) == (Share(0.05, NOW), own), "a number stands"


def went(goals, held=None, every=0.5):
    """The shares in force, by what the verdict wants every so many days."""
    found, now = [], NOW
    for goal in goals:
        made = Choice("saf", Standing.GOOD, share=goal)
        held, config = lent_by(made, Config(lend=LendSection(share="auto")), held, now)
        assert config.lend.share == held.value
        found.append(held.value)
        now += every * DAY
    return found


def test_a_share_above_the_default_is_reached_by_a_step_a_day():
    assert went([0.5] * 7) == [0.1, 0.1, 0.2, 0.2, 0.5, 0.5, 0.5]
    assert went([1.0] * 4, every=1.0) == [0.1, 0.2, 0.5, 1.0]
    assert went([0.3] * 4, every=1.0) == [0.1, 0.2, 0.3, 0.3]
    assert went([0.1, 0.1, 0.1, 0.5, 0.5, 0.5]) == [0.1, 0.1, 0.1, 0.1, 0.2, 0.2], "a day from when more was wanted"
    assert went([0.5] * 3, every=30.0) == [0.1, 0.2, 0.5], "a daemon that stood still catches up by one step"


def test_up_to_the_default_there_are_no_steps():
    assert went([0.05, 0.0, 0.1, 0.05, 0.5, 0.5, 0.5]) == [0.05, 0.0, 0.1, 0.05, 0.1, 0.1, 0.2]


def test_where_less_is_wanted_it_was_too_much_and_falls_to_the_default_or_below_at_once():
    above = Share(0.5, NOW)
    assert went([0.2, 0.2, 0.2, 0.2], above) == [0.1, 0.1, 0.2, 0.2]
    assert went([0.1], above) == [0.1]
    assert went([0.05], above) == [0.05]
    assert went([0.0, 0.0], above) == [0.0, 0.0]


def test_a_clock_that_was_set_back_costs_a_day_and_no_more():
    assert went([0.5] * 4, Share(0.2, NOW + 400 * DAY)) == [0.2, 0.2, 0.5, 0.5]


def test_what_was_a_number_before_is_where_auto_goes_on_from():
    held, _ = lent_by(Choice("saf", Standing.UNUSED), Config(lend=LendSection(share=0.5)), None, NOW)
    assert went([0.5, 1.0, 1.0, 1.0], held) == [0.5, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("said", ["1.1", "-0.1", '"often"', "true", "nan"])
def test_a_share_is_a_number_from_0_to_1_or_auto(said):
    for share in (0, 0.25, 1, "auto"):
        assert resolve(f"[lend]\nshare = {share!r}\n", "c.toml", {}, {}).config.lend.share == share
    assert resolve(None, "", {"RLTUNED_LEND__SHARE": "auto"}, {}).config.lend.share == "auto"
    with pytest.raises(ConfigError, match=r"^c.toml:2: lend.share: a number .*wanted[^\n]*$"):
        resolve(f"[lend]\nshare = {said}\n", "c.toml", {}, {})


# --- in the daemon


def run_auto(directory, content):
    run = house(directory)
    run.daemon.runtime.config = run.daemon.config.model_copy(update={"policy": auto(directory, content).policy})
    run.daemon.parts.choice.policy = load_policy(run.daemon.config)
    return run


def now_here(run, **changes):
    gpus = int(run.slurm.reader().snapshot(0.0).nodes.gpus.sum())
    return verdict(made_at=run.slurm.clock.time(), cluster={"gpus": gpus}, **changes)


def state(run):
    return {one: run.metric(f'rltuned_verdict_state{{state="{one.value}"}}') for one in Standing}


def reload(run):
    return run.daemon.reload(lambda: run.daemon.config)


def test_without_a_verdict_a_cycle_leaves_the_order_to_slurm_and_says_so_once(tmp_path):
    run = run_auto(tmp_path, None)
    order = run.slurm.order()
    run.ticks(3)
    assert run.slurm.order() == order
    assert run.slurm.updates == 0
    (said,) = run.events("verdict.not_used")
    assert said["standing"] == "missing"
    assert "rltuned gate --from-sacct 30" in said["remedy"]
    assert state(run) == {one: float(one is Standing.MISSING) for one in Standing}


def test_a_reload_takes_a_new_verdict_over_and_its_end_gives_the_queue_back(tmp_path):
    run = run_auto(tmp_path, None)
    order = run.slurm.order()
    run.tick()
    auto(tmp_path, now_here(run, chosen="sjf"))
    run.tick()
    assert run.slurm.order() == order, "not before it is told"
    assert not run.events("model.taken")
    assert reload(run)
    run.tick()
    assert run.slurm.order() == order[::-1]
    assert "Policy 'sjf': It waits least." in run.events("policy.chosen")[-1]["sentence"]
    assert run.metric('rltuned_verdict_state{state="good"}') == 1
    run.slurm.clock.sleep(91 * DAY)
    run.ticks(2)  # after so long without a cycle the first one only says that it is back
    assert run.slurm.order() == order
    assert run.events("verdict.not_used")[-1]["standing"] == "expired"


def test_the_record_says_which_policy_and_why_and_a_verdict_that_breaks_does_not_stop_a_reload(tmp_path):
    run = run_auto(tmp_path, None)
    auto(tmp_path, now_here(run, chosen="sjf"))
    reload(run)
    order = run.slurm.order()
    run.tick()
    record = load(tmp_path / "state")
    for told in (record, explain(record, 3)):
        assert (told.policy, told.policy_why) == ("sjf", "It waits least.")
    auto(tmp_path, "{")
    assert reload(run)
    run.tick()
    assert run.slurm.order() == order
    assert run.events("verdict.not_used")[-1]["standing"] == "unreadable"


def test_the_share_in_force_goes_up_by_days_over_restarts_and_down_at_once(tmp_path):
    def begun(content, slurm=None):
        run = house(tmp_path) if slurm is None else again(tmp_path, slurm)
        changes = {"policy": auto(tmp_path, content and content(run)).policy, "lend": LendSection(share="auto")}
        run.daemon.runtime.config = run.daemon.config.model_copy(update=changes)
        run.daemon.parts.choice.policy = load_policy(run.daemon.config)
        return run

    def half(run):
        return now_here(run, chosen="sjf", share=0.5)

    run = begun(half)
    run.ticks(3)
    assert run.metric("rltuned_lend_share") == DEFAULT_SHARE == load(tmp_path / "state").share
    (said,) = run.events("lend.share")
    assert (said["share"], said["goal"]) == (0.1, 0.5)
    run.slurm.clock.sleep(DAY)
    run.ticks(2)
    assert run.metric("rltuned_lend_share") == 0.2
    assert len(run.events("lend.share")) == 2
    snapshot, made = run.slurm.reader().snapshot(run.slurm.clock.time()), Choice("sjf", Standing.GOOD, share=0.5)
    _, _, held = planned_on(run.daemon.config, snapshot, AppliedChanges(), run.slurm.clock.steady())
    _, beside = lent_by(made, run.daemon.runtime.config, held, run.slurm.clock.steady())
    assert beside.lend.share == 0.2, "a plan beside the daemon"
    run.slurm.clock.sleep(0.6 * DAY)
    run.tick()
    run = begun(half, run.slurm)  # its verdict was made anew, as every night
    run.ticks(2)
    assert run.metric("rltuned_lend_share") == 0.2
    assert not run.events("lend.share")
    run.slurm.clock.sleep(0.5 * DAY)
    run.ticks(2)
    assert run.metric("rltuned_lend_share") == 0.5, "a restart does not begin anew"
    auto(tmp_path, now_here(run, chosen="sjf", share=0.2))
    reload(run)
    run.tick()
    assert run.metric("rltuned_lend_share") == DEFAULT_SHARE
    assert run.events("lend.share")[-1]["sentence"] == (
        "A waiting job may lend 0.1 of its wait; the verdict goes to 0.2."
    )
    auto(tmp_path, now_here(run, chosen="sjf", share=0.0))
    reload(run)
    run.tick()
    assert run.metric("rltuned_lend_share") == 0.0


# --- in doctor


def found(run, directory, content, **sections):
    config = Config(
        policy=auto(directory, content).policy,
        state=StateSection(directory=directory / "state", mirror=directory / "mirror"),
        **sections,
    )
    findings = examine(run.slurm.reader(), config, run.slurm.clock)
    return [finding for finding in findings if finding.subject == "verdict"]


def test_doctor_says_what_a_verdict_is_worth_and_when_to_renew_it(tmp_path):
    run = house(tmp_path)
    (none,) = found(run, tmp_path, None)
    assert none.severity is Severity.WARNING
    assert none.remedy.startswith(f"rltuned gate --from-sacct 30 --out {tmp_path}/state/verdict.json")
    (other,) = found(run, tmp_path, now_here(run) | {"cluster": {"gpus": 4000}})
    assert "4000 GPUs" in other.cause
    (good,) = found(run, tmp_path, now_here(run, chosen="sjf"))
    assert good.severity is Severity.OK
    assert "'sjf' for another 90 days" in good.cause
    _, soon = found(run, tmp_path, now_here(run, chosen="sjf", valid_days=3.0))
    assert (soon.severity, soon.cause[:28]) == (Severity.NOTE, "the verdict ends in 3.0 days")
    _, other = found(run, tmp_path, now_here(run, chosen="sjf") | OTHER_MODEL)
    assert "never judged here" in other.cause
    _, estimates = found(run, tmp_path, now_here(run, chosen="sjf"), estimates=EstimatesSection(source="limit"))
    assert "estimates.source is 'limit'" in estimates.cause
    config = Config(state=StateSection(directory=tmp_path / "state", mirror=None))
    assert "verdict" not in {one.subject for one in examine(run.slurm.reader(), config, run.slurm.clock)}


# --- a model store


@pytest.fixture
def store(tmp_path):
    store = ModelStore(tmp_path / "store")
    store.use(store.add(DEFAULT_MODEL, 1.0, "shipped"), 1.0, "the first")
    return store


def following(directory, store):
    """A daemon that follows the store."""
    run = house(directory)
    section = PolicySection(name="auto", model=str(store.root / "current/model.json"))
    run.daemon.runtime.config = run.daemon.config.model_copy(update={"policy": section})
    run.daemon.parts.choice.policy = load_policy(run.daemon.config)
    return run


def renew(run, store, **changes):
    store.renew(store.current(), json.dumps(now_here(run, **changes)).encode())


def test_a_verdict_that_the_store_renews_and_a_version_that_it_changes_are_taken_by_the_next_cycle(tmp_path, store):
    run = following(tmp_path, store)
    order = run.slurm.order()
    run.tick()
    assert run.slurm.order() == order, "no verdict yet"
    renew(run, store, chosen="sjf")
    run.tick()
    assert run.slurm.order() == order[::-1]
    assert run.metric("rltuned_verdict_end_timestamp_seconds") == pytest.approx(
        run.slurm.clock.time() + 90 * DAY, abs=600
    )
    other = store.add(str(saved(tmp_path / "other", "other", 5)), 2.0, "a test")
    store.use(other, 2.0, "for a test")
    run.ticks(2)
    assert run.slurm.order() == order, "the new version has no verdict: what was moved is given back"
    assert run.metric("rltuned_model_version") == other.number
    store.rollback(3.0, "for a test")
    run.tick()
    assert run.slurm.order() == order[::-1]
    assert run.metric("rltuned_model_version") == 1
    assert [event["version"] for event in run.events("model.taken")] == [1, 1, 2, 1]


@pytest.mark.parametrize("damaged", ["weights", "verdict"])
def test_a_version_that_does_not_verify_leaves_the_old_one_in_force_until_it_is_mended(tmp_path, store, damaged):
    run = following(tmp_path, store)
    order = run.slurm.order()
    renew(run, store, chosen="sjf")
    run.tick()
    other = store.add(str(saved(tmp_path / "other", "other", 5)), 2.0, "a test", verdict=b"{")
    weights = next(other.path.glob("*.safetensors"))
    good = weights.read_bytes()
    store.use(other, 2.0, "for a test")
    if damaged == "weights":
        weights.write_bytes(good[:-1] + b"\x00")
        renew(run, store, chosen=SLURM)
    run.ticks(3)
    assert run.slurm.order() == order[::-1]
    (said,) = run.events("model.refused")
    assert ("sha256" if damaged == "weights" else "not a verdict") in said["reason"]
    weights.write_bytes(good)
    renew(run, store, chosen=SLURM)
    run.ticks(2)
    assert run.slurm.order() == order
