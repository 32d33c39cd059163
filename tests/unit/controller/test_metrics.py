import re
import shutil
import subprocess

import pytest
from prometheus_client import generate_latest
from unit.controller.test_loop import house
from unit.decide.test_explain import lending

from rltuned.controller.tell.metrics import Metrics


def exposition():
    metrics = Metrics(["held", "foreign"], ["optimal"])
    metrics.cycles.labels("done").inc()
    metrics.seconds.labels("read").observe(0.2)
    return generate_latest(metrics.registry).decode()


def test_promtool_has_nothing_to_say():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian package prometheus) is not installed; the cluster tests run it in a container")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=exposition(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_names_follow_the_conventions_base_units_and_total_only_on_counters():
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposition(), re.MULTILINE))
    types = {name: kind for name, kind in types.items() if not name.endswith("_created")}
    assert len(types) > 20
    for name, kind in types.items():
        assert re.fullmatch(r"rltuned_[a-z][a-z_]*", name)
        assert name.endswith("_total") is (kind == "counter")
        assert not re.search(r"_(ms|milliseconds|minutes|hours|mb|kb|percent)(_|$)", name)


def test_no_label_can_name_a_job_a_user_or_an_account():
    labels = set(re.findall(r'[{,](\w+)="', exposition()))
    known = {"version", "outcome", "phase", "le", "field", "reason", "stage", "state", "kind", "result", "tier"}
    assert labels == known


def test_a_decision_shows_how_many_are_raised_and_what_those_that_wait_have_lent(tmp_path):
    run = house(tmp_path)
    run.daemon.parts.reporting.decided(lending())
    assert run.metric("rltuned_raised_jobs") == 3
    assert run.metric("rltuned_lent_gpu_seconds") == 1440.0 + 600.0
    assert run.metric("rltuned_open_loans") == 1


def test_memory_descriptors_and_cpu_time_of_the_process_are_told():
    told = dict(re.findall(r"^rltuned_process_(\w+) (\S+)$", exposition(), re.MULTILINE))
    assert float(told["resident_memory_bytes"]) > 10e6
    assert float(told["max_fds"]) > float(told["open_fds"]) > 2
    assert float(told["cpu_seconds_total"]) > 0
    assert float(told["start_time_seconds"]) > 0
