"""The decision record as JSON: its names are a contract, and what is read is checked."""

import json

import pytest

from rltuned.core.config import Config, PlacementApply, PlacementSection, Stage
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import encode, parse, plain
from rltuned.decide.decision import DecisionRecord, record
from rltuned.decide.plan import plan
from rltuned.decide.rank.heuristics import by_name

from .conftest import make_snapshot, pending

NAMES = {
    "": "version time policy stage held_back share most features columns jobs window raises lent loans "
    "vetoed left reasons placement changes outcomes policy_why forecast_trouble starts coefficients objective",
    "jobs": "id base current target base_rank rank seen stop stopped_by wait may_lend site",
    "window": "score values predicted run_time time_limit gpus run_time_low run_time_high terms",
    "placement": "outcome apply ways",
}
LIMITS = [7200.0, 3600.0, 600.0, 86400.0, 1200.0]


@pytest.fixture
def made():
    jobs = pending(
        5, user=list("abcde"), time_limit=LIMITS, gpus=[3, 1, 1, 1, 1], held=[False, False, False, False, True]
    )
    config = Config(placement=PlacementSection(apply=PlacementApply.OVERSUBSCRIBE))
    decided = plan(make_snapshot(jobs), by_name("sjf"), config)
    assert decided.changes
    assert decided.front.placement.ways
    results = [(change, "applied", "") for change in decided.changes]
    return record(decided, stage=Stage.CANARY, policy_why="so", forecast_trouble="none", results=results)


def parsed(data):
    return parse(DecisionRecord, data, "a decision record")


def test_the_record_comes_back_from_its_json_as_it_was(made):
    data = encode(made)
    assert parsed(data) == made
    assert json.loads(data)["stage"] == "canary"


def test_the_names_that_people_and_scripts_read_stay(made):
    tree = plain(made)
    for part, names in NAMES.items():
        assert " ".join(tree[part] if part else tree) == names
    (job, way), *_ = tree["placement"]["ways"].items()
    assert (type(job), list(way)) == (str, ["kind", "nodes"])
    assert tree["vetoed"] == {"held": (5,)}
    job, field, _, _ = tree["changes"][0]
    assert tree["outcomes"][str(job)][field] == "applied"


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda tree: tree.pop("policy"), "policy: Field required"),
        (lambda tree: tree.update(version=1), "version: this rltuned reads 2"),
        (lambda tree: tree.pop("version"), "version: Field required"),
        (lambda tree: tree["jobs"]["rank"].__setitem__(2, "third"), r"jobs\.rank\.2: "),
        (lambda tree: tree["jobs"]["target"].pop(), "jobs: .*'target' has 3 values, not 4"),
        (lambda tree: tree["window"]["score"].pop(), "window: .*has 4 values, not 3"),
        (lambda tree: tree.update(stage="bold"), "stage: "),
        (lambda tree: tree["vetoed"].update(whim=[1]), "vetoed.whim"),
        (lambda tree: tree.update(changes=[[1, "Nice"]]), "changes.0"),
        (lambda tree: tree["raises"].append([1, 2]), r"raises\.1\.2"),
        (lambda tree: tree["lent"].update({"1": [2.0]}), r"lent\.1"),
    ],
)
def test_what_cannot_be_understood_is_refused_by_its_name(made, break_it, said):
    tree = json.loads(encode(made))
    break_it(tree)
    with pytest.raises(RltunedError, match="not a decision record: " + said):
        parsed(json.dumps(tree))


@pytest.mark.parametrize("data", ["", "[]", "{", "null", '{"version": NaN}'])
def test_no_record_at_all_is_refused(data):
    with pytest.raises(RltunedError, match="not a decision record: "):
        parsed(data)
