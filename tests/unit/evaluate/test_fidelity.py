"""The comparison with a replay, on one that is written by hand."""

import copy
from typing import Any

import pytest
from fidelity import compare

from rltuned.core.errors import EvaluationError


def job(row: int, submit: float, start: float, end: float, nice: int, kind: str = "1 GPU") -> dict[str, Any]:
    return {
        "row": row,
        "job_id": row + 1,
        "slurm_job_id": 100 + row,
        "class": kind,
        "gpus": 1,
        "gpu_type": "",
        "nodes_asked": 1,
        "cpus": 1,
        "mem": 100.0,
        "partition": "",
        "user": "alice",
        "nice": nice,
        "run_time": 4.0,
        "time_limit": 60.0,
        "estimate": 60.0,
        "intended": submit,
        "submit": submit,
        "eligible": submit,
        "start": start,
        "end": end,
        "backfilled": False,
        "nodes": "n1",
        "state": "COMPLETED",
    }


def replay() -> dict[str, Any]:
    """One GPU, three jobs of 4 s; passes of the main scheduler at whole seconds, of backfill half a second later."""
    pass_ = {"interval": 1.0, "offset": 0.0}
    return {
        "meta": {
            "form": 1,
            "slurm": "24.11.5",
            "scheduler_parameters": "bf_interval=1,bf_resolution=1,bf_window=60",
            "workload": "by hand",
            "sha256": "",
            "policy": "fifo",
            "interval": None,
            "zero": 1000.0,
            "main_pass": pass_,
            "backfill_pass": {**pass_, "offset": 0.5},
        },
        "cluster": {"pools": [{"name": "n1", "nodes": 1, "gpus_per_node": 1, "cpus": 4, "mem_mib": 1000}]},
        "jobs": [
            job(0, 0.6, 1.0, 5.1, nice=0),
            job(1, 0.7, 5.5, 9.6, nice=1, kind="other") | {"backfilled": True},
            job(2, 0.8, 10.0, 14.1, nice=2),
        ],
    }


def test_jobs_start_at_the_passes_of_the_replays_slurm():
    # 0.6 waits for the pass at 1; its end at 5.1 for the backfill pass at about 5.5; the end at 9.6 for the pass at 10.
    found = compare(replay())
    assert found.simulated == pytest.approx([0.4, 4.8, 9.2], abs=0.2)
    assert found.real == pytest.approx([0.4, 4.8, 9.2])
    assert (found.total.jobs, found.total.real) == (3, pytest.approx(14.4 / 3))
    assert abs(found.total.difference) < 0.03
    assert list(found.classes) == ["1 GPU", "other"]
    assert found.classes["1 GPU"].real == pytest.approx(4.8)
    assert found.same_node == 1.0
    assert found.makespan_simulated == pytest.approx(13.5, abs=0.2)
    # Slurm's log would say so of the second job; nothing blocks it.
    assert (found.backfilled_real, found.backfilled_simulated) == (1, 0.0)


def test_the_order_is_that_of_the_nice_values():
    turned = replay()
    turned["jobs"][1]["nice"], turned["jobs"][2]["nice"] = 2, 1
    assert compare(turned).simulated == pytest.approx([0.4, 9.3, 4.7], abs=0.2)


def test_a_rule_that_a_daemon_served_is_planned_as_by_the_daemon():
    steered = replay()
    steered["meta"] |= {"policy": "daemon:saf", "interval": 2.0}
    steered["jobs"][1]["estimate"] = 60.0
    steered["jobs"][2] |= {"estimate": 10.0, "time_limit": 30.0}  # of equal requests Slurm's order stands
    assert compare(steered).simulated == pytest.approx([0.4, 9.3, 4.7], abs=0.2)


def test_steps_of_bf_resolution_are_those_of_the_epoch():
    # The replay begins at 1000: a step of 600 s ends 200 s later. The second job waits for the first one, which has 240
    # s; it reserves both nodes from 200 on, and the third one, which has 60 s, starts at the first pass.
    coarse = replay()
    coarse["meta"]["scheduler_parameters"] = "bf_resolution=600"
    coarse["cluster"]["pools"].append({**coarse["cluster"]["pools"][0], "name": "n2"})
    coarse["jobs"][0]["time_limit"] = 240.0
    coarse["jobs"][1] |= {"gpus": 2, "nodes_asked": 2, "cpus": 2}
    assert compare(coarse).simulated[2] == pytest.approx(0.7, abs=0.2)
    coarse["meta"]["zero"] = 1200.0  # all of its plans are in one step, which begins now
    assert compare(coarse).simulated[2] > 4.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"form": 2}, "form 2 is not known"),
        ({"main_pass": {}}, "not what `testbed replay` writes"),
        ({"policy": "daemon:model"}, "is a model: give it"),
    ],
)
def test_a_file_that_cannot_be_compared_says_why(change: dict[str, Any], reason: str):
    broken = copy.deepcopy(replay())
    broken["meta"] |= change
    with pytest.raises(EvaluationError, match=reason):
        compare(broken)


def test_a_job_that_the_simulator_rejects_is_named():
    impossible = replay()
    impossible["jobs"][1]["gpus"] = 2
    with pytest.raises(EvaluationError, match="job 2 ran, but the simulator says"):
        compare(impossible)
