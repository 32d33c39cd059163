from dataclasses import replace

import pytest

from rltuned.core.errors import ConfigError
from rltuned.core.scheduler import WHOLE_QUEUE, SchedulerParameters
from rltuned.simulate.values import SimulationSettings


def test_a_slurm_conf_that_says_nothing_has_the_defaults_of_the_manual():
    usual = SchedulerParameters.read({})
    assert usual == SchedulerParameters(True, 30.0, 86_400.0, 60.0, 500, 0)
    assert usual.default_queue_depth == 100
    assert usual.text() == "default_queue_depth=100"
    assert SchedulerParameters.parse(usual.text()) == usual


def test_where_nobody_says_a_depth_of_the_queue_the_whole_of_it_is_tried():
    nothing = SchedulerParameters.parse("")
    assert nothing.text() == ""
    assert nothing == replace(SchedulerParameters(), default_queue_depth=WHOLE_QUEUE)
    assert SimulationSettings.of_cluster(nothing) == SimulationSettings()
    assert SchedulerParameters.parse("default_queue_depth=0").default_queue_depth == 0, "one job, in Slurm too"


def test_what_a_cluster_says_is_taken_and_said_again():
    said = {"bf_interval": "60", "bf_window": "4320", "bf_max_job_test": "1000", "bf_continue": "", "defer": ""}
    read = SchedulerParameters.read(said, "sched/backfill")
    assert (read.bf_interval, read.bf_window, read.bf_resolution, read.bf_max_job_test) == (60.0, 259_200.0, 60.0, 1000)
    assert read.text() == "default_queue_depth=100,bf_interval=60,bf_window=4320,bf_max_job_test=1000"
    assert SchedulerParameters.parse(read.text()) == read
    most = SchedulerParameters(bf_max_job_test=1_000_000, bf_window=31_536_000.0)
    assert SchedulerParameters.parse(most.text()) == most
    text = "default_queue_depth=20,bf_max_job_user=5,bf_max_job_part=50,bf_max_job_start=9,bf_min_age_reserve=60"
    text += ",bf_job_part_count_reserve=7"
    some = SchedulerParameters.read(dict(word.split("=") for word in text.split(",")))
    assert some.text() == text
    assert SchedulerParameters.parse(some.text()) == some
    settings = SimulationSettings.of_cluster(some)
    assert (settings.bf_max_job_user, settings.bf_max_job_part, settings.bf_max_job_start) == (5, 50, 9)
    assert settings.bf_job_part_count_reserve == 7
    assert SimulationSettings.of_cluster(SchedulerParameters.read(settings.parameters())) == settings


def test_without_backfill():
    assert not SchedulerParameters.read({}, "sched/builtin").backfill
    assert not SchedulerParameters.read({"bf_interval": "-1"}).backfill


@pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "99999999999", "٣"])
def test_what_is_no_number_counts_as_not_said(value):
    said = dict.fromkeys(("bf_window", "bf_min_prio_reserve", "default_queue_depth"), value)
    assert SchedulerParameters.read(said) == SchedulerParameters()


@pytest.mark.parametrize(
    ("text", "named"),
    [("bf_intervall=3", "'bf_intervall' is not simulated"), ("bf_window=a", "bf_window: 'a' is no whole number")],
)
def test_typed_parameters_are_checked(text, named):
    with pytest.raises(ConfigError, match=named):
        SchedulerParameters.parse(text)
