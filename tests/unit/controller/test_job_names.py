"""Run times predicted by names: what is asked of Slurm for that, what is kept, and that it is never in the way."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs
from unit.controller.model_slurm import ModelSlurm, VirtualClock
from unit.controller.support import make_daemon
from unit.controller.test_history import DAY, NOW, Accounting, Site, ended
from unit.controller.test_loop import Deaf
from unit.slurm.standin import StandIn, job

from rltuned.controller.cycle.service import serve
from rltuned.controller.health.rpc_budget import Budget
from rltuned.controller.learnt.history import FILE_NAME, MAX_BYTES, Known, LearntRunTimes
from rltuned.controller.learnt.names import KEY_NAME, Names
from rltuned.controller.shown.once import decide
from rltuned.controller.tell.states import CycleOutcome
from rltuned.core.config import (
    Config,
    CycleSection,
    Effective,
    EstimatesSection,
    PolicySection,
    SlurmSection,
    Stage,
    StateSection,
)
from rltuned.core.errors import AnswerTooLongError, RltunedError, SlurmParseError, SlurmUnavailableError
from rltuned.core.plain_tables import job_table
from rltuned.core.safe_files import encode
from rltuned.core.scheduler import Health
from rltuned.decide.expect.run_time_history import JobKind, RunTimeHistory
from rltuned.decide.explain import explain
from rltuned.records.in_force import VERDICT_FILE

HOME = "/home/ann/nets"
SHORT, LONG = ("evaluate_7", HOME), ("train_lr0.1", HOME)
WAITS = [("evaluate_8", HOME), ("train_lr0.2", HOME), ("other", HOME)]
QUEUE = job_table(
    3, job_id=[101, 102, 103], submit_time=[NOW] * 3, user="ann", gpus=4, partition="gpu", time_limit=3600.0, cpus=1
)


class Named:
    """What jobs are called, as `slurm.job_names` tells."""

    def __init__(self, site, kind):
        self.site, self.kind = site, kind

    def waiting(self, jobs):
        self.site.looked.append(jobs)
        if self.site.silent is not None:
            raise self.site.silent
        return {(job, NOW): self.kind("ann", *WAITS[job - 101]) for job in jobs if job - 101 in range(len(WAITS))}

    def ended(self, start, end):
        if self.site.silent is not None:
            raise self.site.silent
        named = [job for job in self.site.jobs if job.job_id in self.site.names]
        return {(job.job_id, job.end): self.kind("ann", *self.site.names[job.job_id]) for job in named}


class Accounts(Accounting):
    """One that also tells names."""

    def __init__(self, *jobs):
        super().__init__(*jobs)
        self.names, self.looked, self.silent = {}, [], None

    def job_names(self, kind):
        return Named(self, kind)


class NamedSite(Site):
    """Ann's jobs of half a minute and of half an hour, which differ by their names only."""

    def __init__(self, directory, names="hashed"):
        super().__init__(directory, names=names)
        jobs = [ended(n, NOW - 5000 + 10 * n, (30.0, 1800.0)[n % 2]) for n in range(1, 300)]
        self.accounting = Accounts(*jobs)
        self.accounting.names = {job.job_id: (SHORT, LONG)[job.job_id % 2] for job in jobs}
        self.start()

    def asks(self, **settings):
        self.settings = EstimatesSection(**settings)
        config = Config(estimates=self.settings, state=StateSection(directory=self.directory))
        self.runtime.config = config

    def look(self):
        return self.run_times.look(QUEUE)

    def estimates(self):
        return self.run_times.predicted(QUEUE).median.tolist()

    @property
    def file(self):
        return json.loads((self.directory / FILE_NAME).read_text())

    @property
    def key(self):
        return self.directory / KEY_NAME


@pytest.fixture
def site(tmp_path):
    site = NamedSite(tmp_path)
    assert site.refresh() == ["history.read"]
    return site


def test_jobs_that_differ_by_name_only_are_predicted_apart(site):
    assert site.look() == 1
    short, long, other = site.estimates()
    assert short == pytest.approx(30.0, rel=0.01)
    assert long == pytest.approx(1800.0, rel=0.01)
    assert short <= other <= long


def test_by_default_no_name_is_read_and_everything_is_as_without_them(tmp_path):
    assert EstimatesSection().names == "off"
    for name in ("off", "plain"):
        (tmp_path / name).mkdir()
    site = NamedSite(tmp_path / "off", names="off")
    site.refresh()
    plain = Site(tmp_path / "plain", *site.accounting.jobs)
    plain.refresh()
    assert (site.look(), site.accounting.looked) == (0, [])
    assert not site.key.exists()
    assert (tmp_path / "off" / FILE_NAME).read_bytes() == (tmp_path / "plain" / FILE_NAME).read_bytes()
    assert len(set(site.estimates())) == 1


def test_squeue_is_asked_for_names_that_are_not_known_and_for_no_others(site):
    assert [site.look(), site.look(), site.look()] == [1, 0, 0]
    assert site.accounting.looked == [[101, 102, 103]], "the third one has none: that is known, too"
    # 102 has left; 101 is another job with that number; a running one is not asked about.
    later = job_table(3, job_id=[101, 103, 104], submit_time=[NOW + 60, NOW, NOW], state=[0, 0, 1])
    assert site.run_times.look(later) == 1
    assert site.accounting.looked[1:] == [[101]]
    assert site.look() == 1
    assert site.accounting.looked[2:] == [[101, 102]]


def test_of_a_long_queue_so_many_are_asked_about_at_a_time(site, monkeypatch):
    monkeypatch.setattr("rltuned.controller.learnt.names.MOST_ASKED", 2)
    assert [site.look(), site.look(), site.look()] == [1, 1, 0]
    assert site.accounting.looked == [[101, 102], [103]]


def test_an_array_with_more_text_than_an_answer_may_have_costs_itself(site):
    waiting = site.run_times._names._names.waiting

    def too_long(jobs):
        found = waiting(jobs)
        if 102 in jobs:  # all its tasks have been changed, and have rows of their own
            raise AnswerTooLongError("squeue")
        return found

    site.run_times._names._names.waiting = too_long
    assert [site.look() for _ in range(6)] == [1, 1, 1, 1, 1, 0]
    assert site.accounting.looked == [[101, 102, 103], [101], [102, 103], [102], [103]]
    short, strange, _ = site.estimates()
    assert short == pytest.approx(30.0, rel=0.01)
    assert short < strange < 1800.0


def test_names_that_are_turned_off_amid_a_cycle_cost_no_cycle(site, monkeypatch):
    names = site.run_times._names
    for use in (site.look, site.estimates):
        seen = [names]
        monkeypatch.setattr(
            LearntRunTimes, "_names", property(lambda _, seen=seen: seen.pop() if seen else None), raising=False
        )
        assert use() is not None


@pytest.mark.parametrize("trouble", [SlurmUnavailableError("squeue"), SlurmParseError("names: cut short")])
def test_names_that_cannot_be_read_cost_names_only_and_are_asked_for_again(tmp_path, trouble):
    site = NamedSite(tmp_path)
    site.accounting.silent = trouble
    assert site.refresh() == ["names.unavailable", "history.read"]
    assert site.log[0][1]["reason"] == str(trouble)
    assert [site.look(), site.look()] == [1, 1]
    assert len(set(site.estimates())) == 1
    assert site.refresh() == [], "it is said once"
    assert site.metric("history_errors_total") == 2
    site.accounting.silent = None
    assert [site.look(), site.look()] == [1, 0]
    site.clock.sleep(600.0)
    fresh = [ended(500 + n, NOW + n, (30.0, 1800.0)[n % 2]) for n in range(200)]
    site.accounting.jobs += fresh
    site.accounting.names |= {job.job_id: (SHORT, LONG)[job.job_id % 2] for job in fresh}
    site.refresh()
    assert site.estimates()[:2] == pytest.approx([30.0, 1800.0], rel=0.01)


def test_neither_a_name_nor_the_key_is_in_what_is_kept_logged_or_measured(site):
    site.look()
    site.accounting.silent = SlurmUnavailableError("squeue")
    with capture_logs() as logs:
        site.run_times.look(replace(QUEUE, job_id=QUEUE.job_id + 50))
        site.run_times.refresh()
    key = site.key.read_bytes()
    assert (len(key), S_IMODE(site.key.stat().st_mode)) == (32, 0o600)
    kept = [path.read_text() for path in site.directory.iterdir() if path != site.key]
    said = "\n".join([*kept, repr(logs), repr(site.log), generate_latest(site.metrics.registry).decode()])
    assert kept
    for secret in ("evaluate", "train", "nets", "home", key.hex(), str(int.from_bytes(key)), repr(key)[2:-1]):
        assert secret not in said
    assert repr(key) not in repr(vars(site.run_times._names))


def test_what_was_learnt_of_names_survives_a_restart(site):
    before = site.key.read_bytes()
    site.look()
    expected = site.estimates()
    site.start()
    site.run_times.load()
    site.look()
    assert site.estimates() == pytest.approx(expected, rel=1e-3)
    site.accounting.asked.clear()
    site.clock.sleep(60.0)
    site.refresh()
    assert len(site.accounting.asked) == 1, "nothing is read anew"
    assert site.key.read_bytes() == before


def test_a_site_that_turns_names_off_keeps_no_hash_and_on_again_reads_anew(site):
    assert (site.file["history"]["format"], {entry[0] for entry in site.file["history"]["last"]}) == (4, set(range(7)))
    site.asks(names="off")
    site.clock.sleep(60.0)
    site.accounting.asked.clear()
    site.refresh()
    assert site.accounting.asked[0][0] == NOW + 60 - 30 * DAY, "all is read anew"
    assert (site.look(), len(set(site.estimates()))) == (0, 1)
    assert (site.file["history"]["format"], {entry[0] for entry in site.file["history"]["last"]}) == (3, set(range(5)))
    site.asks(names="hashed")
    site.clock.sleep(60.0)
    site.refresh()
    site.look()
    assert site.estimates()[:2] == pytest.approx([30.0, 1800.0], rel=0.01)


def test_a_site_that_goes_by_limits_again_is_asked_for_no_names(site):
    site.asks(names="hashed", source="limit")
    site.refresh()
    assert (site.look(), site.accounting.looked) == (0, [])


@pytest.mark.parametrize("answers", [True, False])
def test_hashes_of_a_key_that_is_gone_are_read_anew_once_the_accounting_answers(site, answers):
    site.key.unlink()
    site.start()
    site.run_times.load()
    site.clock.sleep(60.0)
    if not answers:
        site.accounting.trouble = SlurmUnavailableError("away")
        site.refresh()
        site.accounting.trouble = None
        assert len(set(site.estimates())) == 1, "what is known otherwise stays"
    site.accounting.asked.clear()
    site.refresh()
    assert site.accounting.asked[0][0] == NOW + 60 - 30 * DAY
    site.look()
    assert site.estimates()[:2] == pytest.approx([30.0, 1800.0], rel=0.01)
    site.accounting.asked.clear()
    site.clock.sleep(60.0)
    site.refresh()
    assert len(site.accounting.asked) == 1, "and once"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda key: key.chmod(0o640), "its mode is 640"),
        (lambda key: key.write_bytes(b"short"), "does not have 32 bytes"),
        (lambda key: key.write_bytes(b"x" * 33), "does not have 32 bytes"),
        (lambda key: (key.rename(key.with_name("other")), key.symlink_to("other")), "cannot be used"),
        (lambda key: (key.unlink(), os.mkfifo(key, 0o600)), "does not have 32 bytes"),
        (lambda key: (key.unlink(), key.mkdir()), "cannot be used: Is a directory"),
    ],
)
def test_a_key_that_others_may_know_or_that_is_none_is_not_used(site, spoil, why):
    spoil(site.key)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(RltunedError, match=why):
        Names.open(site.accounting, site.directory)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    site.start()
    assert site.refresh() == ["names.unavailable", "history.read"]
    assert why in site.log[-2][1]["reason"]
    assert site.look() == 0
    assert len(set(site.estimates())) == 1


def test_who_only_plans_makes_no_key_and_a_reader_without_names_has_none(tmp_path):
    with pytest.raises(RltunedError, match="the daemon makes it"):
        Names.open(Accounts(), tmp_path, make=False)
    assert Names.open(Accounting(), tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_a_dry_run_makes_no_key_and_goes_by_the_one_that_there_is(site):
    for there in (True, False):
        if not there:
            site.key.unlink()
        site.run_times = LearntRunTimes(site.accounting, site.runtime, make_key=False)
        site.refresh()
        assert site.look() == int(there)
        assert site.key.exists() == there
    assert "the daemon makes it" in site.log[-2][1]["reason"]


@pytest.mark.parametrize("dry_run", [True, False])
def test_one_cycle_makes_a_key_where_it_is_the_daemons_and_a_dry_one_does_not(tmp_path, dry_run):
    slurm, accounts = ModelSlurm(VirtualClock()), Accounts()
    slurm.submit(1000)
    reader = slurm.reader()
    reader.ended, reader.job_names = accounts.ended, accounts.job_names
    state = StateSection(directory=tmp_path / "a", mirror=tmp_path / "b")
    config = Config(policy=PolicySection(name="sjf"), estimates=EstimatesSection(names="hashed"), state=state)
    serve(
        lambda: Effective(config, {}),
        dry_run=dry_run,
        once=True,
        connect_reader=lambda _: reader,
        connect_writer=lambda _: slurm.writer(),
        clock=slurm.clock,
    )
    assert (tmp_path / "a" / KEY_NAME).exists() == (not dry_run)
    assert len(accounts.looked) == (not dry_run)


def test_hashes_of_a_key_that_is_gone_are_not_taken_for_those_of_the_new_one_after_a_restart(site):
    site.key.unlink()
    site.accounting.trouble = SlurmUnavailableError("away")
    for _ in range(2):
        site.start()
        site.run_times.load()
        site.clock.sleep(60.0)
        site.refresh()
    site.accounting.trouble = None
    site.accounting.asked.clear()
    site.refresh()
    assert site.accounting.asked[0][0] == NOW + 120 - 30 * DAY


def test_a_full_history_of_names_stays_within_what_may_be_read():
    known = Known(RunTimeHistory(named=True))
    for number in range(26_000):
        kind = JobKind(f"user{number % 60}", "physics", "gpu", 4, 3600.0, 1, name=(1 << 62) + number // 60)
        known.history.ended(kind, 60.0, NOW + number)
    assert len(known.history) > 40_000
    assert len(encode(known.kept())) < MAX_BYTES / 4


BUSY = Health(server_threads=129)


@pytest.mark.parametrize(
    ("stage", "load", "looks"),
    [(Stage.OBSERVE, None, 0), (Stage.SHADOW, None, 1), (Stage.ACTIVE, None, 1), (Stage.ACTIVE, BUSY, 0)],
)
def test_a_cycle_that_plans_looks_once_and_pays_for_it_unless_slurmctld_is_busy(
    tmp_path, monkeypatch, stage, load, looks
):
    slurm, looked, spent = ModelSlurm(VirtualClock()), [], []
    slurm.submit(1000)
    state = StateSection(directory=tmp_path / "a", mirror=tmp_path / "b")
    config = Config(cycle=CycleSection(stage=stage), state=state)

    def look(jobs):
        looked.append(jobs.job_id.tolist())
        return 0.25

    reader = Deaf(slurm)
    reader.busy, reader.load = load is not None, load
    daemon = make_daemon(config, reader, slurm.writer, slurm.clock, look=look)
    spend = Budget.spend
    monkeypatch.setattr(Budget, "spend", lambda *args, **more: (spent.append(args[1]), spend(*args, **more))[1])
    assert daemon.tick().outcome is (CycleOutcome.SHED if load else CycleOutcome.DONE)
    assert len(looked) == spent.count(0.25) == looks


def test_a_plan_without_the_daemon_goes_by_names_too_and_says_where_it_cannot(site, tmp_path):
    slurm = StandIn(tmp_path / "slurm")
    asks = {"UserName": "ann", "tres_alloc": "cpu=1,mem=4000M,node=1,billing=1,gres/gpu=4", "TimeLimit": "1:00:00"}
    slurm.queue(
        [job(number, SubmitTime=str(int(NOW)), NumCPUs=1, **asks) for number in (101, 102)], factors={101: 0, 102: 0}
    )
    (slurm.bin_dir / "squeue").rename(slurm.bin_dir / "others")
    # Behind each column the word that stands behind the last one in the command line.
    told = [f"{number}@{int(NOW)}@ann@{name}@{HOME}@" for number, (name, _) in zip((101, 102), WAITS, strict=False)]
    slurm.script(
        "squeue",
        '#!/bin/sh\ncase "$*" in *--states=PD*) '
        + "; ".join(f'echo "{row}" | sed "s/@/${{*##*%Z}}/g"' for row in told)
        + f';; *) exec {slurm.bin_dir}/others "$@";; esac\n',
    )
    config = Config(
        slurm=SlurmSection(bin_dir=slurm.bin_dir),
        estimates=site.settings,
        state=StateSection(directory=site.directory, mirror=tmp_path / "mirror"),
    )
    said = []

    def predicted():
        made, _ = decide(config, said.append)
        return [explain(made, number).run_time_estimate for number in (101, 102)]

    short, long = predicted()
    assert not said
    assert short < 0.5 * long
    site.key.chmod(0o644)
    assert len(set(predicted())) == 1
    assert [line for line in said if "without names" in line and "644" in line]
    said.clear()
    config = config.model_copy(update={"estimates": EstimatesSection(names="off")})
    assert len(set(predicted())) == 1
    assert not said, "of a site that does not want it no name is read, whatever a daemon has left"


@pytest.mark.parametrize(
    ("verdict", "on"),
    [
        ({"names": {"on": True, "error": {}}}, True),
        ({"names": {"on": False}}, False),
        ({}, False),  # an older gate
        ({"names": {"on": True}, "valid_days": 0.5}, False),
        ({"names": {"on": True}, "made_at": NOW + 5 * DAY}, False),
        ({"names": {"on": "yes"}}, False),
    ],
)
def test_auto_reads_names_where_the_verdict_says_that_they_help(tmp_path, verdict, on):
    site = NamedSite(tmp_path, names="auto")
    assert site.refresh() == ["history.read"]
    assert (site.look(), site.key.exists()) == (0, False), "there is no verdict"
    text = json.dumps(GOOD_VERDICT | {"made_at": NOW - DAY} | verdict)
    (tmp_path / VERDICT_FILE).write_text(text)
    site.clock.sleep(60.0)
    site.refresh()
    assert (site.look(), site.key.exists(), site.file["history"]["format"]) == (int(on), on, 4 if on else 3)
    assert (len(set(site.estimates())) > 1) == on
    if on:
        (tmp_path / VERDICT_FILE).unlink()
        site.clock.sleep(60.0)
        site.refresh()
        assert (site.look(), site.file["history"]["format"]) == (0, 3)


def test_a_verdict_that_is_no_regular_file_holds_nothing_up(tmp_path):
    site = NamedSite(tmp_path, names="auto")
    os.mkfifo(tmp_path / VERDICT_FILE)
    thread = threading.Thread(target=site.run_times.load, daemon=True)
    thread.start()
    thread.join(5.0)
    assert not thread.is_alive()
    assert site.refresh() == ["history.read"]


GOOD_VERDICT = {
    "format": "rltuned-verdict",
    "version": 2,
    "chosen": "saf",
    "share": 0.1,
    "fallback": "saf",
    "fallback_share": 0.1,
    "reason": "a test",
    "model": {"name": "m", "manifest_sha256": "0" * 64},
    "cluster": {"gpus": 4},
    "settings": {"estimates": "history"},
    "valid_days": 30.0,
}
