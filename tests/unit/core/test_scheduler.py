import pytest

from rltuned.core.errors import ConfigError
from rltuned.core.scheduler import SchedulerParameters
from rltuned.simulate.values import SimulationSettings


def test_a_slurm_conf_that_says_nothing_has_the_defaults_of_the_manual():
    usual = SchedulerParameters.read({})
    assert usual == SchedulerParameters(True, 30.0, 86_400.0, 60.0, 500, 0)
    assert usual.text() == ""


def test_what_a_cluster_says_is_taken_and_said_again():
    said = {"bf_interval": "60", "bf_window": "4320", "bf_max_job_test": "1000", "bf_continue": "", "defer": ""}
    read = SchedulerParameters.read(said, "sched/backfill")
    assert (read.bf_interval, read.bf_window, read.bf_resolution, read.bf_max_job_test) == (60.0, 259_200.0, 60.0, 1000)
    assert read.text() == "bf_interval=60,bf_window=4320,bf_max_job_test=1000"
    assert SchedulerParameters.parse(read.text()) == read
    most = SchedulerParameters(bf_max_job_test=1_000_000, bf_window=31_536_000.0)
    assert SchedulerParameters.parse(most.text()) == most
    some = SchedulerParameters.read(
        {"bf_max_job_user": "5", "bf_max_job_part": "50", "bf_max_job_start": "9", "bf_min_age_reserve": "60"}
    )
    assert some.text() == "bf_max_job_user=5,bf_max_job_part=50,bf_max_job_start=9,bf_min_age_reserve=60"
    assert SchedulerParameters.parse(some.text()) == some
    settings = SimulationSettings.of_parameters(some.text())
    assert (settings.bf_max_job_user, settings.bf_max_job_part, settings.bf_max_job_start) == (5, 50, 9)
    assert SimulationSettings.of_cluster(SchedulerParameters.read(settings.parameters())) == settings


def test_without_backfill():
    assert not SchedulerParameters.read({}, "sched/builtin").backfill
    assert not SchedulerParameters.read({"bf_interval": "-1"}).backfill


@pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "99999999999", "٣"])
def test_what_is_no_number_counts_as_not_said(value):
    assert SchedulerParameters.read({"bf_window": value, "bf_min_prio_reserve": value}) == SchedulerParameters()


@pytest.mark.parametrize(
    ("text", "named"),
    [("bf_intervall=3", "'bf_intervall' is not simulated"), ("bf_window=a", "bf_window: 'a' is no whole number")],
)
def test_typed_parameters_are_checked(text, named):
    with pytest.raises(ConfigError, match=named):
        SchedulerParameters.parse(text)
