"""Run times predicted from the site's finished jobs: read beside the cycle, kept on disk, never in the way."""

import io
import json
import math

import pytest
import structlog
from rich.console import Console
from structlog.testing import capture_logs
from unit.controller.model_slurm import ModelSlurm, VirtualClock

from rltuned.cli.show import explanation
from rltuned.controller.cycle.planning import planned
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.learnt import history
from rltuned.controller.learnt.history import FILE_NAME, OVERLAP, Known, LearntRunTimes, load, saved
from rltuned.controller.tell.metrics import Metrics
from rltuned.core.applied import AppliedChanges
from rltuned.core.config import Config, EstimatesSection, StateSection
from rltuned.core.ended import EndedJob, Past
from rltuned.core.errors import RltunedError, SlurmParseError, SlurmUnavailableError
from rltuned.core.plain_tables import job_table
from rltuned.core.safe_files import encode
from rltuned.decide.decision import record
from rltuned.decide.explain import explain
from rltuned.decide.loans import Book
from rltuned.decide.plan import plan
from rltuned.decide.rank import by_name

DAY = 86_400.0
NOW = 1_000_000_000.0
QUEUE = job_table(3, user=["ann", "bob", "ann"], gpus=[4, 1, 4], partition="gpu", time_limit=[3600.0, 60.0, 20.0])


def ended(number, at, seconds, user="ann", gpus=4):
    return EndedJob(number, user, "physics", "gpu", gpus, 3600.0, seconds, at)


class Accounting:
    """A slurmdbd of a few lines: jobs by their ends, and it can be away."""

    def __init__(self, *jobs):
        self.jobs = list(jobs)
        self.trouble = None
        self.left_out = []
        self.asked = []

    def ended(self, start, end):
        self.asked.append((start, end))
        if self.trouble is not None:
            raise self.trouble
        ended = sorted((job for job in self.jobs if start <= job.end < end), key=lambda job: job.end)
        return Past(ended, self.left_out)


class Site:
    def __init__(self, directory, *jobs, **settings):
        self.accounting = Accounting(*jobs)
        self.settings = EstimatesSection(**settings)
        self.clock = VirtualClock(NOW)
        self.directory = directory
        self.log = []
        self.metrics = Metrics()
        self.start()

    def start(self):
        config = Config(estimates=self.settings, state=StateSection(directory=self.directory))
        self.runtime = Runtime(config, self.clock, structlog.get_logger(), self.metrics)
        self.run_times = LearntRunTimes(self.accounting, self.runtime)

    def refresh(self):
        with capture_logs() as logs:
            self.run_times.refresh()
        self.log += [(entry["event"], entry) for entry in logs]
        return [entry["event"] for entry in logs]

    def estimates(self):
        found = self.run_times.predicted(QUEUE)
        return None if found is None else [round(value) for value in found.median.tolist()]

    def metric(self, name):
        return self.metrics.registry.get_sample_value(f"rltuned_{name}")


@pytest.fixture
def site(tmp_path):
    """It has read of one job."""
    site = Site(tmp_path, ended(1, NOW - 100, 120.0))
    site.refresh()
    return site


def test_predictions_follow_the_finished_jobs_and_leave_the_unknown_open(tmp_path):
    site = Site(tmp_path, ended(1, NOW - 100, 120.0))
    assert site.estimates() is None
    assert site.refresh() == ["history.read"]
    # Bob is in the partition of ann's job, but may not run longer than a minute; ann's third job asks for 20 s.
    assert site.estimates() == [120.0, 60.0, 20.0]
    assert site.metric("predicted_jobs") == 3
    assert site.metric("history_timestamp_seconds") == NOW
    site.clock.sleep(600.0)
    site.accounting.jobs += [ended(2, NOW + 10, 300.0), ended(3, NOW + 20, 300.0)]
    assert site.refresh() == []
    assert site.estimates()[0] == 300.0


def test_of_each_user_the_last_jobs_that_had_a_limit_are_known_also_after_a_restart(tmp_path):
    several = [ended(number, NOW - 1000.0 + number, 100.0 + number) for number in range(1, 31)]
    endless = ended(31, NOW - 50, 5.0)._replace(time_limit=math.inf)
    site = Site(
        tmp_path,
        *several,
        endless,
        ended(32, NOW - 40, 5.0)._replace(time_limit=math.nan),
        ended(33, NOW - 30, 3660.0, "bob"),
    )
    assert site.run_times.last_of_users() == {}
    site.refresh()
    known = {"ann": [(100.0 + number, 3600.0) for number in range(30, 10, -1)], "bob": [(3660.0, 3600.0)]}
    assert site.run_times.last_of_users() == known
    site.start()
    site.run_times.load()
    assert site.run_times.last_of_users() == known
    site.settings = EstimatesSection(source="limit")
    site.start()
    site.run_times.load()
    assert site.run_times.last_of_users() == {}


def test_it_is_known_how_predictions_turned_out_and_kept_over_a_restart(tmp_path):
    site = Site(tmp_path, ended(1, NOW - 100, 120.0))
    assert site.run_times.ended() is None
    site.refresh()
    site.accounting.jobs.append(ended(2, NOW - 50, 300.0))
    site.refresh()
    # Of the first job only its limit was known, of the second that one like it took 120 s.
    for known in (site.run_times, saved(site.settings, tmp_path)):
        found = known.ended()
        assert found.estimate[0] == 3600.0
        assert 120.0 < found.estimate[1] < 3600.0
        assert found.time_limit.tolist() == [3600.0, 3600.0]
        assert found.run_time.tolist() == [120.0, 300.0]
    site.runtime.config = Config(estimates=EstimatesSection(source="limit"))
    assert site.run_times.ended() is None


def test_a_prediction_on_disk_that_cannot_be_understood_is_named(site, tmp_path):
    file = tmp_path / FILE_NAME
    value = json.loads(file.read_text())
    value["ended"] = [[1.0, "much", 2.0]]
    file.write_text(json.dumps(value))
    with pytest.raises(RltunedError, match=r"ended\.0\.1"):
        load(tmp_path)


def test_of_single_jobs_the_last_are_remembered(monkeypatch):
    monkeypatch.setattr(history, "MOST_TOLD", 3)
    known = Known()
    known.learn([ended(number, NOW + number, 60.0) for number in range(10)], NOW + 10.0)
    known.cancelled(range(20, 30))
    told = known.told()
    assert [number for number in range(10) if told.took(number)] == [7, 8, 9]
    assert [*told.cancelled] == [27, 28, 29]


def test_what_a_job_took_that_ended_before_a_restart_is_told_once_it_is_read_again():
    known = Known()
    known.learn([ended(7, 1000.0, 60.0)], 1000.0)
    known = Known.of(known.kept())
    assert known.learn([ended(7, 1000.0, 60.0)], 1010.0) == 0
    assert known.told().took(7) == (940.0, 60.0)


def test_who_has_run_nothing_before_is_expected_to_be_like_everybody_or_to_reach_the_limit(tmp_path):
    site = Site(tmp_path, *(EndedJob(n, "ann", "", "other", 4, 3600.0, 10.0, NOW - 50 + n) for n in range(9)))
    site.refresh()
    found = site.run_times.predicted(job_table(2, user=["ann", "bob"], gpus=[4, 1], time_limit=[36_000.0] * 2))
    assert found.median[0] == pytest.approx(10.0, rel=1e-3)
    assert 10.0 < found.median[1] < 36_000.0


def test_the_past_is_asked_for_in_small_pieces_and_no_further_back_than_configured(tmp_path):
    site = Site(tmp_path, ended(1, NOW - 2.5 * DAY, 50.0), days=2.0)
    site.refresh()
    starts, ends = zip(*site.accounting.asked, strict=True)
    assert (starts[0], ends[-1]) == (NOW - 2 * DAY, NOW)
    assert starts[1:] == ends[:-1]
    assert max(end - start for start, end in site.accounting.asked) <= 6 * 3600
    assert site.estimates() is None


def test_a_refresh_asks_only_for_what_is_new_and_counts_no_job_twice(tmp_path):
    site = Site(tmp_path, ended(1, NOW - 30, 100.0), ended(2, NOW - 20, 200.0))
    site.refresh()
    site.accounting.asked.clear()
    site.clock.sleep(60.0)
    # It ended before the last look, but slurmdbd hears of it only now.
    site.accounting.jobs.append(ended(3, NOW - 10, 900.0))
    site.refresh()
    assert site.accounting.asked == [(NOW - OVERLAP, NOW + 60)]
    assert site.run_times.ended().run_time.tolist() == [100.0, 200.0, 900.0]
    site.clock.sleep(60.0)
    site.refresh()
    assert site.run_times.ended().run_time.tolist() == [100.0, 200.0, 900.0]


def test_slurmdbd_away_is_said_once_and_what_is_known_stays(site):
    site.accounting.trouble = SlurmUnavailableError("sacct (history) failed")
    assert [site.refresh() for _ in range(3)] == [["history.unavailable"], [], []]
    assert site.estimates()[0] == 120.0
    assert site.metric("history_errors_total") == 3
    site.accounting.trouble = None
    site.clock.sleep(600.0)
    site.accounting.jobs.append(ended(2, NOW + 300, 120.0))
    assert site.refresh() == ["history.read"]
    site.accounting.trouble = SlurmUnavailableError("again")
    assert site.refresh() == ["history.unavailable"]


def test_what_was_learnt_outlasts_a_slurmdbd_that_is_away_for_longer_than_is_read(tmp_path):
    site = Site(tmp_path, ended(1, NOW - 100, 120.0), days=1.0)
    site.refresh()
    site.accounting.trouble = SlurmUnavailableError("away")
    for moved in (3 * DAY, -5 * DAY):  # for days; and the clock is set back meanwhile
        site.clock.now += moved
        site.refresh()
        assert site.estimates()[0] == 120.0


def test_where_no_job_has_ended_the_past_is_not_read_again_and_again(tmp_path):
    site = Site(tmp_path)
    site.refresh()
    site.accounting.asked.clear()
    site.clock.sleep(600.0)
    site.refresh()
    assert site.accounting.asked == [(NOW - OVERLAP, NOW + 600)]


def test_jobs_that_ended_while_slurmdbd_was_away_are_read_when_it_is_back(site):
    site.accounting.trouble = SlurmUnavailableError("away")
    site.clock.sleep(5 * 3600.0)
    site.refresh()
    site.accounting.jobs += [ended(number, NOW + 600, 500.0) for number in (2, 3)]
    site.accounting.trouble = None
    site.refresh()
    assert site.estimates()[0] == 500.0


def test_an_answer_that_cannot_be_understood_is_skipped_and_the_rest_is_read(tmp_path):
    site = Site(tmp_path, ended(1, NOW - 100, 120.0), days=1.0)
    whole = site.accounting.ended

    def broken_first(start, end):
        if start == NOW - DAY:
            raise SlurmParseError("sacct, job '1': column End")
        return whole(start, end)

    site.accounting.ended = broken_first
    assert site.refresh() == ["history.incomplete", "history.read"]
    assert site.estimates()[0] == 120.0
    site.accounting.asked.clear()
    assert site.refresh() == []
    assert site.accounting.asked == [(NOW - OVERLAP, NOW)]
    site.accounting.trouble = SlurmParseError("again")
    assert site.refresh() == [], "it is said once"


def test_rows_that_cannot_be_understood_are_told_once_and_hide_neither_the_others_nor_a_later_silence(tmp_path):
    site = Site(tmp_path, ended(1, NOW - 100, 120.0), days=0.02)
    site.accounting.left_out = ["sacct, line 7: 11 fields instead of 10", "sacct, line 9: 11 fields instead of 10"]
    assert site.refresh() == ["history.incomplete", "history.read"]
    assert site.log[0][1]["reason"] == (
        "2 rows are left out, the first of them: sacct, line 7: 11 fields instead of 10"
    )
    assert site.estimates()[0] == 120.0
    assert site.refresh() == []
    assert site.metric("history_errors_total") == 2
    site.accounting.trouble = SlurmUnavailableError("away")
    assert site.refresh() == ["history.unavailable"]


def test_a_clock_that_was_set_back_starts_anew(site):
    site.clock.now -= 2 * DAY
    site.refresh()
    assert site.estimates() is None


def test_what_was_learnt_survives_a_restart_without_asking_again(site, tmp_path):
    site.start()
    site.run_times.load()
    assert site.estimates()[0] == 120.0
    site.accounting.asked.clear()
    site.clock.sleep(60.0)
    site.refresh()
    assert site.accounting.asked == [(NOW - OVERLAP, NOW + 60)]
    assert site.estimates()[0] == 120.0
    found = saved(site.settings, tmp_path).predicted(QUEUE)
    assert found.median.tolist() == pytest.approx([120.0, 60.0, 20.0], rel=1e-3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2}',
        '{"version": 3, "until": 0.0, "recent": [], "history": {"format": 1}, "ended": []}',
        "[" * 100_000,
        encode(Known().kept()).decode().replace('"recent":[]', '"recent":[[1]]'),
        encode(Known().kept()).decode().replace('"until":0.0', f'"until":{10**400}'),
    ],
)
def test_a_damaged_file_is_named_and_read_anew(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(RltunedError, match=FILE_NAME):
        load(tmp_path)
    site = Site(tmp_path, ended(1, NOW - 100, 120.0))
    with capture_logs() as logs:
        site.run_times.load()
    assert [entry["event"] for entry in logs] == ["history.unreadable"]
    site.refresh()
    assert site.estimates()[0] == 120.0
    assert load(tmp_path).until == NOW


def test_the_file_is_whole_or_not_there_and_holds_what_is_known(tmp_path):
    site = Site(tmp_path, *(ended(number, NOW - 100 + number, 5.0 * number, f"u{number % 3}") for number in range(50)))
    site.refresh()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert encode(load(tmp_path).kept()) == (tmp_path / FILE_NAME).read_bytes()
    assert len(load(tmp_path).kept().recent) == 50


def test_a_directory_that_cannot_be_written_costs_a_line_of_the_log(tmp_path):
    (tmp_path / "file").touch()
    site = Site(tmp_path / "file", ended(1, NOW - 100, 120.0))
    assert site.refresh() == ["history.read", "history.not_written"]
    assert site.estimates()[0] == 120.0


def test_a_reload_to_limits_stops_reading_and_predicting(site, tmp_path):
    site.runtime.config = Config(estimates=EstimatesSection(source="limit"))
    site.accounting.asked.clear()
    site.refresh()
    assert site.estimates() is None
    assert not site.accounting.asked
    assert saved(site.runtime.config.estimates, tmp_path).predicted(QUEUE) is None


def test_the_thread_reads_by_itself_and_ends_when_told(tmp_path):
    site = Site(tmp_path, ended(1, NOW - 100, 120.0))
    site.run_times.start()
    for _ in range(500):
        if site.estimates() is not None:
            break
        site.run_times._stop.wait(0.01)
    site.run_times.stop()
    assert site.estimates()[0] == 120.0
    assert not site.run_times._thread.is_alive()


def test_the_policy_ranks_on_predictions_and_explain_says_where_they_come_from(tmp_path):
    slurm = ModelSlurm(VirtualClock(NOW))
    long, short = slurm.submit(3000, user="ann").job_id, slurm.submit(2000, user="bob").job_id
    # All of an hour's limit, but bob's take a minute and ann's the hour.
    site = Site(
        tmp_path,
        *(EndedJob(n, "bob", "acct", "old", 1, 3600.0, 60.0, NOW - n) for n in range(1, 8)),
        *(EndedJob(n, "ann", "acct", "old", 1, 3600.0, 3600.0, NOW - n) for n in range(8, 15)),
    )
    site.refresh()
    snapshot = slurm.reader().snapshot(slurm.clock.time())
    policy, config = by_name("sjf"), Config()
    by_limit = record(plan(snapshot, policy, config))
    by_history = record(planned(site.run_times.predicted, snapshot, policy, config, AppliedChanges(), Book()))
    assert [explain(by_limit, job).rank for job in (long, short)] == [1, 2]
    assert [explain(by_history, job).rank for job in (short, long)] == [1, 2]
    answers = {job: explain(by_history, job) for job in (long, short)}
    assert {answer.estimated_from for answer in answers.values()} == {"finished jobs"}
    assert 60.0 < answers[short].run_time_estimate < 0.5 * answers[long].run_time_estimate < 1800.0
    assert {explain(by_limit, job).estimated_from for job in answers} == {"time limit"}
    shown = io.StringIO()
    explanation(Console(file=shown, width=500), answers[short])
    assert answers[short].run_time_low <= 60.0 <= answers[short].run_time_high
    assert f"(from such finished jobs; with 80 % {answers[short].run_time_low:.0f} s to " in shown.getvalue()
    assert explain(by_limit, short).run_time_low is None, "nothing is known of how sure a limit is"
