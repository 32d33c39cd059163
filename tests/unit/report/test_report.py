"""`rltuned report` on a site: what the log says, what the replay says, and what is to be done."""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from datetime import UTC, datetime

import numpy as np
import pytest
from unit.report.site import INTERVAL, make_site, stamp
from unit.slurm.standin import StandIn

from rltuned.cli.common import epoch_of
from rltuned.cli.main import cli, main
from rltuned.core.config import Config, LendSection, Stage
from rltuned.decide.raising import Stop
from rltuned.lab.evaluate.bootstrap import Comparison
from rltuned.lab.evaluate.evaluation_settings import AGAIN
from rltuned.lab.report import page, report_tables
from rltuned.lab.report.advice import Advice, advise
from rltuned.lab.report.gains import canary, fairness, lending, prediction_quality
from rltuned.lab.report.period import Period, read
from rltuned.lab.report.replay import REAL, SLURM, of_times, replay, settings_of
from rltuned.records.decisions import entries
from rltuned.simulate.workload.jobs import Source, workload
from rltuned.simulate.workload.readers import read as read_trace
from rltuned.slurm.commands import SEPARATOR


def run(*words):
    cli.main(["report", *map(str, words)], standalone_mode=False)


def reported(path, *words):
    run(*words, "--json", path)
    return json.loads(path.read_text())


def refused(*words):
    """The exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, words)])
    return ended.value.code


def logged(site):
    return list(entries(site.config.parent / "state", site.since, site.until))


def period_of(site):
    return read(logged(site), site.since, site.until)


def accounting(site):
    jobs = read_trace(site.sacct)
    submitted = jobs.submit_time + jobs.source.start
    return jobs.take((submitted >= site.since) & (submitted < site.until))


def replayed(jobs, start, **values):
    """A replay of these starts, by policy."""
    end = {name: at + jobs.run_time for name, at in start.items()}
    usual = {"capacity": 1.0, "zero": 0.0, "policy": "saf", "reference": "saf", "in_period": len(jobs), "seed": 1}
    return of_times(jobs, start, end, **usual | values)


def test_the_replay_of_slurms_order_is_near_to_what_the_same_simulator_did(made):
    report, _ = made
    near = report["replay"]["nearness"]
    assert near["near"]
    assert near["of"] == "multifactor"
    assert near["wait"]["ratio"] == pytest.approx(1.0, abs=0.1)


def test_every_job_of_the_period_is_replayed_and_waits_are_those_of_the_accounting(made, site):
    replay, jobs = made[0]["replay"], accounting(site)
    assert replay["jobs"] == replay["jobs_in_period"] == len(jobs)
    assert replay["means"]["real"]["wait_max"] == pytest.approx(jobs.wait_time.max(), abs=0.1)
    (sizes,) = [rows for kind, rows in replay["groups"].items() if kind == "size"]
    assert sum(row["jobs"] for row in sizes) == len(jobs)
    total = sum(row["jobs"] * row["wait_real"] for row in sizes)
    assert total == pytest.approx(jobs.wait_time.sum(), rel=0.01)


def test_what_accounts_lose_is_said_beside_what_chance_does(made):
    said = made[0]["replay"]["fairness"]
    assert set(said) == {"rltuned", "chance"}
    assert all(0.0 <= of[share] <= 1.0 for of in said.values() for share in ("accounts_worse", "late"))
    # One GPU, two accounts with five jobs of 1,000 s each: the first one's go first under Slurm, last under saf.
    jobs = workload(Source("by hand"), np.arange(10.0), 1000.0, 1, account=["first"] * 5 + ["other"] * 5)
    order = np.concatenate((np.arange(5) + 5.0, np.arange(5)))
    starts = {"real": np.arange(10.0), "multifactor": np.arange(10.0), "saf": order, AGAIN: np.arange(10.0)}
    told = fairness(replayed(jobs, {name: 1000.0 * at + 10.0 for name, at in starts.items()}, zero=5e9))
    assert told["chance"] == {"accounts_worse": 0.0, "worst_tenth": 1.0, "late": 0.0, "wait_ratio_p95": 1.0}
    waits = [np.array([1000.0 * at + 10.0 - row for row, at in enumerate(of)]) + 300.0 for of in (order, range(10))]
    ratios = [waits[0][rows].mean() / waits[1][rows].mean() for rows in (slice(5), slice(5, 10))]
    assert told["rltuned"] == {
        "accounts_worse": 0.5,
        "worst_tenth": pytest.approx(np.quantile(ratios, 0.9), abs=1e-3),
        "late": 0.5,
        "wait_ratio_p95": pytest.approx(np.quantile(waits[0] / waits[1], 0.95), abs=1e-3),
    }


def test_the_policy_of_the_log_is_what_is_replayed_and_it_differs_from_slurms_order(made):
    report, _ = made
    assert (report["policy"], report["share"], report["replay"]["policy"]) == ("saf", 0.1, "saf:0.1")
    means = report["replay"]["means"]
    assert means["rltuned"]["wait_mean"] != means["slurm"]["wait_mean"]
    wait = report["replay"]["effect"]["wait_mean"]
    assert "`rltuned tune` finds" in report_tables.effect(report).note
    assert wait["lo"] <= wait["ratio"] <= wait["hi"]
    chance = report["replay"]["over_chance"]
    assert chance["lo"] <= chance["ratio"] <= chance["hi"]
    assert chance["ratio"] != wait["ratio"]
    assert wait["ratio"] == pytest.approx(means["rltuned"]["wait_mean"] / means["slurm"]["wait_mean"], rel=1e-3)


def test_losses_are_jobs_whose_replay_is_later_the_largest_first(made):
    losses = made[0]["replay"]["losses"]
    assert losses
    assert len(losses) <= 20
    more = [loss["more"] for loss in losses]
    assert more == sorted(more, reverse=True)
    assert all(loss["more"] == pytest.approx(loss["wait_rltuned"] - loss["wait_slurm"], abs=0.2) for loss in losses)


def test_what_the_log_says_is_counted(made, site):
    log, period = made[0]["log"], period_of(site)
    assert log["cycles"] == {"done": period.total}
    assert log["stages"] == {"shadow": period.total}
    assert log["covered"] == pytest.approx(1.0, abs=0.02)
    assert period.total == pytest.approx((site.until - site.since) / INTERVAL, abs=2)
    assert log["jobs"]["managed"] == len(period.seen) > log["jobs"]["raised"] > 0
    assert log["queue"]["raised_mean"] > 0
    assert {stop.name.lower() for stop in Stop} > set(log["stopped"]) >= {"lent", "front"}
    assert log["results"] == {}
    assert (log["jobs"]["lenders"], log["lent"], made[0]["replay"]["lending"]) == (0, 0, []), "shadow: nobody passes"


def test_queue_and_gpus_over_time_add_up_to_the_waits_and_the_work(made, site):
    report, jobs = made[0], accounting(site)
    series = report["replay"]["series"]
    step = (report["until"] - report["since"]) / len(series["time"])
    submitted = jobs.submit_time + jobs.source.start
    start = submitted + jobs.wait_time
    waited = (np.minimum(start, site.until) - submitted).clip(0).sum()
    assert sum(series["pending_real"]) * step == pytest.approx(waited, rel=0.02)
    held = (np.minimum(start + jobs.run_time, site.until) - np.minimum(start, site.until)) * jobs.gpus
    assert sum(series["gpus_real"]) * step == pytest.approx(held.sum(), rel=0.02)


@pytest.fixture(scope="module")
def active(tmp_path_factory):
    """A site with a daemon in stage active."""
    return make_site(tmp_path_factory.mktemp("active"), jobs=300, stage=Stage.ACTIVE)


def test_in_active_stage_it_says_what_was_done_and_holds_the_replay_of_its_own_order_against_reality(active, tmp_path):
    report = reported(tmp_path / "r.json", *active.words)
    assert report["mode"] == "active"
    assert report["replay"]["nearness"]["of"] == "saf:0.1"
    assert report["log"]["results"]["applied"] > 0
    assert report["log"]["jobs"]["written"] > 0
    lent, rows = report["log"]["lent"], report["replay"]["lending"]
    assert lent > 0
    assert sum(row["lent"] for row in rows) == pytest.approx(lent, rel=0.1)
    assert sum(row["borrowed"] for row in rows) > 0
    assert {row["name"] for row in rows} <= set(accounting(active).account.names)
    (table,) = [table for _, table in report_tables.tables(report) if table.title == "Who lent, and to whom"]
    assert [row[0] for row in table.rows] == [row["name"] for row in rows]


def test_without_names_no_user_account_or_job_id_is_in_it(made, site, active, tmp_path, capsys):
    replay = reported(tmp_path / "r.json", *active.words, "--no-names", "--html", tmp_path / "r.html")["replay"]
    jobs = accounting(active)
    shown = (tmp_path / "r.json").read_text() + (tmp_path / "r.html").read_text() + capsys.readouterr().out
    for name in (*jobs.user.names, *jobs.account.names):
        assert not re.search(rf"\b{name}\b", shown), name
    assert replay["losses"] == [], "one job tells whose it is"
    assert [row["name"] for row in replay["lending"]] == [""]
    assert any(name in json.dumps(made[0]) for name in accounting(site).user.names)


def test_the_log_alone_gives_a_report_at_once(site, tmp_path, capsys):
    run(*site.words, "--no-replay", "--html", tmp_path / "r.html")
    text = capsys.readouterr().out
    assert "What was seen and wanted" in text
    assert "not replayed (--no-replay)" in text
    assert "chart-queue" in (tmp_path / "r.html").read_text()


def test_what_was_lent_is_told_by_account_of_lender_and_borrower_with_the_lenders_waits(capsys):
    jobs = workload(Source("by hand"), np.arange(6.0), 1000.0, 1, account=["a", "a", "b", "b", "b", "c"])
    slow = np.array([7200.0, 3600.0, 1800.0, 60.0, 0.0, 0.0])
    start = {"real": np.arange(6.0) + slow, "multifactor": np.arange(6.0) + slow / 2, "saf": np.arange(6.0) + slow}
    found = replayed(jobs, start)
    ids = jobs.job_id.tolist()
    lent = {ids[0]: 7200.0, ids[1]: 1800.0, ids[2]: 360.0, 999: 5.0}
    loans = {(ids[3], ids[0]): 7200.0, (ids[5], ids[1]): 1000.0, (ids[5], ids[2]): 360.0, (999, ids[1]): 800.0}
    rows = lending(found, lent, loans, names=True)
    shown = ("name", "lent", "lenders", "wait_real", "wait_slurm", "borrowed", "borrowers")
    assert [tuple(row[key] for key in shown) for row in rows] == [
        ("a", 9000.0, 2, 5400.0, 2700.0, 0, 0),
        ("b", 360.0, 1, 1800.0, 900.0, 7200.0, 1),
        ("c", 0, 0, None, None, 1360.0, 1),
    ]
    (whole,) = lending(found, lent, loans, names=False)
    assert tuple(whole[key] for key in shown) == ("", 9360.0, 3, 4200.0, 2100.0, 8560.0, 2)
    assert lending(found, {}, {}, names=True) == []
    of_one = replace(found, jobs=replace(jobs, account=jobs.account[np.zeros(6, np.intp)], user=jobs.account))
    assert [row["name"] for row in lending(of_one, lent, loans, names=True)] == ["a", "b", "c"], "users, in one account"


def test_without_the_extra_it_gives_what_the_log_gives_and_says_what_is_missing(site, tmp_path):
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('numba', 'matplotlib'))); "
        "from rltuned.cli.main import main; main()"
    )
    words = [sys.executable, "-c", program, "report", *site.words, "--html", str(tmp_path / "r.html")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the replay of the period's jobs, because numba is not installed here" in done.stdout
    assert "the charts, because matplotlib is not installed here" in done.stdout
    assert "What was seen and wanted" in (tmp_path / "r.html").read_text()
    assert "<svg" not in (tmp_path / "r.html").read_text()


def test_without_a_trace_jobs_cluster_and_scheduler_are_those_of_slurm_itself(site, made, tmp_path):
    slurm = StandIn(tmp_path / "slurm")
    names = [f"n{number}" for number in range(1, 7)]
    about = "CPUAlloc=0 CPUEfctv=64 CPUTot=64 Gres=gpu:a100:8 GresUsed=gpu:a100:0(IDX:N/A) RealMemory=512000 AllocMem=0"
    ends = "State=IDLE TmpDisk=0 CfgTRES=cpu=64,gres/gpu=8 AllocTRES= "
    drained = f"NodeName=n7 {about} {ends.replace('IDLE', 'IDLE+DRAIN')}\n"  # and no event tells since when
    slurm.answer("nodes", "".join(f"NodeName={name} {about} {ends}\n" for name in names) + drained)
    slurm.answer(
        "partitions",
        f"PartitionName=main Default=YES MaxNodes=UNLIMITED MaxTime=6:00:00 Nodes={','.join(names)} PriorityTier=1 "
        "OverSubscribe=NO State=UP LLN=YES\n",
    )
    written = re.compile(r"\d{4}-\d\d-\d\dT[\d:]{8}")
    _, *rows = written.sub(  # as SLURM_TIME_FORMAT asks for
        lambda found: f"{datetime.fromisoformat(found[0]).replace(tzinfo=UTC).timestamp():.0f}", site.sacct.read_text()
    ).splitlines()
    slurm.answer("trace", "".join(row.replace("|", SEPARATOR) + SEPARATOR + "\n" for row in rows))
    config = tmp_path / "config.toml"
    config.write_text(site.config.read_text() + f'[slurm]\nbin_dir = "{slurm.bin_dir}"\n')
    words = ("--since", stamp(site.since), "--until", stamp(site.until))
    report = reported(tmp_path / "r.json", "--config", config, *words)
    unsaid, said = sorted(report["missing"], key=lambda text: not text.startswith("The replay: not simulated"))
    assert unsaid == "The replay: not simulated, though it changes who starts when: LLN=YES (partition main)."
    assert "since when 1 of 7 nodes are out of use is not known" in said
    last_day = ("--since", stamp(site.until - 86_400.0), *words[2:])
    nameless = reported(tmp_path / "n.json", "--config", config, *last_day, "--no-names")
    assert sorted(nameless["missing"]) == [
        "The replay leaves something out; whoever made this report was told what.",
        unsaid,
    ]
    assert report["replay"]["gpus"] == 48
    assert report["cluster"] == "testbed"
    assert report["replay"]["jobs"] == len(accounting(site))
    assert report["replay"]["means"]["real"]["wait_mean"] == pytest.approx(
        made[0]["replay"]["means"]["real"]["wait_mean"], abs=1.0
    )
    asked = [re.search(r"--starttime=(\S+).*--endtime=(\S+)", call) for call in slurm.calls if "sacct " in call]
    first, last = min(found[1] for found in asked), max(found[2] for found in asked)
    assert datetime.fromisoformat(first).timestamp() == pytest.approx(site.since - 14 * 86_400.0, abs=1.0)
    assert datetime.fromisoformat(last).timestamp() == pytest.approx(
        site.until + 14 * 86_400.0, abs=1.0
    )  # left running


def test_a_period_of_which_nothing_is_known_is_an_error_with_its_cause(site, tmp_path, capsys):
    assert refused("--config", site.config, "--no-replay", "--since", "2001-01-01", "--until", "2001-01-02") == 1
    assert "has no cycle of this period" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_said_before_anything_is_replayed(site, tmp_path, capsys):
    refused(*site.words, "--html", tmp_path / "nowhere" / "r.html")
    said = capsys.readouterr()
    assert "there is no directory" in said.err
    assert "replayed" not in said.out


@pytest.mark.parametrize("since", ["9999999d", "9" * 400 + "d", "0001-01-01", "9999-12-31", "24:00", "yesterday"])
def test_a_time_that_is_none_or_that_no_clock_shows_is_wrong_usage(since, capsys):
    assert refused("--since", since) == 2
    assert ("write 2026-11-23" in capsys.readouterr().err) or since != "yesterday"


@pytest.mark.parametrize("since", ["14d", "36h", "2026-11-23", "2026-11-23T10:05", "90m", "1.5h", "00:00", "23:59"])
def test_times_are_taken_as_people_write_them(site, since, capsys):
    refused("--config", site.config, "--no-replay", "--since", since, "--until", "2001-01-02")
    assert "--until is not after --since" in capsys.readouterr().err


def test_a_time_of_the_day_is_when_it_was_that_last_by_this_hosts_clock(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        for hour in (0, 7, 23):
            before = time.time() - epoch_of(f"{hour:02}:45")
            assert 0.0 <= before < 86_400.0
            assert time.strftime("%H:%M", time.localtime(time.time() - before)) == f"{hour:02}:45"
        assert time.time() - epoch_of("5m") == pytest.approx(300.0, abs=60.0)
    finally:
        monkeypatch.undo()
        time.tzset()


# --- the advice

LOG = Period(0.0, 1e6, cycles=Counter(done=1000), covered=1e6)
SURE, ALIKE = Comparison(0.7, 0.6, 0.8), Comparison(1.0, 0.9, 1.1)
EFFECT = {"wait_mean": SURE, "bsld_mean": ALIKE, "wait_p99": ALIKE}
CHANCE = {"accounts_worse": 0.1, "worst_tenth": 1.5}


def replay_of(blocks=20, real=3600.0, slurm=3600.0, far=None, fares=(0.14, 1.6), again=SURE, **effect):
    """As the report has a replay; `far`: why it is not near; `fares`: accounts worse off, and the worst tenth; `again`:
    mean wait over Slurm's order once more.
    """
    return {
        "blocks": blocks,
        "nearness": {"near": far is None, "sentence": far or "0.98 [0.95, 1.01] times the real mean wait"},
        "means": {"real": {"wait_mean": real}, "slurm": {"wait_mean": slurm}},
        "effect": {metric: asdict(one) for metric, one in {**EFFECT, **effect}.items()},
        "over_chance": again and asdict(again),
        "fairness": {"rltuned": dict(zip(CHANCE, fares, strict=True)), "chance": CHANCE},
    }


REPLAY = replay_of()


def test_good_evidence_of_a_gain_is_a_go():
    found = advise(LOG, REPLAY)
    assert (found["advice"], found["weak"], found["against"]) == (Advice.GO, [], [])
    assert advise(LOG, replay_of(again=None))["advice"] == Advice.GO, "it was not simulated"


MAYBE, NO = Advice.UNDECIDED, Advice.NO_GO


@pytest.mark.parametrize(
    ("log", "replay", "advice", "reason"),
    [
        (LOG, None, MAYBE, "were not replayed"),
        (None, REPLAY, MAYBE, "no decision log"),
        (LOG, replay_of(blocks=3), MAYBE, "3 blocks"),
        (LOG, replay_of(far="0.41 [0.30, 0.52]"), MAYBE, "0.41 [0.30, 0.52]"),
        (replace(LOG, covered=3e5), REPLAY, MAYBE, "covers only 30%"),
        (replace(LOG, cycles=Counter(done=80, failed=20)), REPLAY, NO, "20% of the cycles"),
        (LOG, replay_of(real=4.0, slurm=4.0), NO, "hardly wait"),
        (LOG, replay_of(wait_mean=ALIKE), NO, "is not lower"),
        (LOG, replay_of(wait_mean=Comparison(0.9, 0.7, 1.1)), MAYBE, "not certainly lower: 0.90 [0.70, 1.10]"),
        (LOG, replay_of(again=ALIKE), MAYBE, "once more with submissions up to a minute later: 1.00 [0.90, 1.10]"),
        (LOG, replay_of(wait_p99=Comparison(1.3, 1.1, 1.5)), NO, "99th percentile"),
        (LOG, replay_of(fares=(0.16, None)), NO, "Accounts lose: accounts worse off 0.16, and 0.15 is"),
        (LOG, replay_of(fares=(0.1, 1.7)), NO, "worst tenth of accounts 1.70, and 1.65 is allowed"),
    ],
)
def test_what_speaks_against_it_or_makes_it_uncertain_is_said_with_its_figure(log, replay, advice, reason):
    found = advise(log, replay)
    assert found["advice"] == advice
    assert any(reason in sentence for sentence in found["weak"] + found["against"])


@pytest.mark.parametrize("mode", ["active", "canary"])
def test_where_rltuned_writes_a_short_real_wait_is_no_reason_to_step_back_but_a_short_one_without_it_is(mode):
    assert advise(LOG, replay_of(real=4.0), mode)["advice"] == Advice.GO
    assert advise(LOG, replay_of(slurm=4.0), mode)["advice"] == Advice.NO_GO


# --- parts


def test_quantiles_are_those_of_all_jobs_not_means_over_blocks(made, site):
    really, waits = made[0]["replay"]["means"]["real"], accounting(site).wait_time
    assert made[0]["replay"]["blocks"] > 5
    for metric, value in (
        ("wait_mean", waits.mean()),
        ("wait_p50", np.quantile(waits, 0.5)),
        ("wait_p99", np.quantile(waits, 0.99)),
        ("wait_max", waits.max()),
    ):
        assert really[metric] == pytest.approx(value, abs=0.01)
    for metric in ("wait_p99", "wait_max"):
        one, means = made[0]["replay"]["effect"][metric], made[0]["replay"]["means"]
        assert one["ratio"] == pytest.approx(means["rltuned"][metric] / means["slurm"][metric], rel=1e-3)
        assert one["lo"] <= one["ratio"] <= one["hi"]


def test_without_names_no_sentence_of_a_fault_is_shown_only_stage_outcome_count_and_times(site, made):
    some = logged(site)[:3]
    said = ["job 4711: 'secret' cannot be understood", "another 'secret' altogether"]
    bad = [
        replace(one, stage=Stage.ACTIVE, outcome="failed", sentence=said[at % 2], held_back=said[0])
        for at, one in enumerate(some)
    ]
    period = read(bad, site.since, site.until)
    assert len(period.to_json()["faults"]) == 2
    shown = period.to_json(names=False)
    assert "secret" not in json.dumps(shown)
    (fault,) = shown["faults"]
    assert fault == {
        "stage": "active",
        "outcome": "failed",
        "what": "",
        "count": 3,
        "first": bad[0].time,
        "last": bad[-1].time,
    }
    assert "stage active: failed" in page.render({**made[0], "log": shown}, {})


def test_in_stage_canary_headings_and_advice_are_not_those_of_shadow(site, made):
    period = read([replace(one, stage=Stage.CANARY) for one in logged(site)], site.since, site.until)
    assert period.mode is Stage.CANARY
    text = page.render({**made[0], "mode": period.mode.value, "advice": "go"}, {})
    assert "What rltuned did for a part of the jobs" in text
    assert "stage active" in report_tables.headline({"mode": "canary", "advice": "go"})
    assert "would have" not in text


def test_a_policy_that_is_replayed_as_another_is_said_to_be(made):
    assert ("policy", "saf; lend.share 0.1") in report_tables.facts(made[0])
    other = {**made[0], "policy": "multifactor", "replayed_as": "rl"}
    assert ("policy", "multifactor, replayed as rl; lend.share 0.1") in report_tables.facts(other)


def test_what_is_replayed_lends_as_the_log_says_and_without_a_log_as_the_configuration_does():
    config = Config(lend=LendSection(share=0.2))
    where = {"trace": "t", "cluster": "1x8"}
    assert settings_of(config, "saf", where, 0.5).policies == ("saf:0.5", "multifactor", AGAIN)
    assert settings_of(config, "", where).policies == ("rl:0.2", "multifactor", AGAIN)


def test_a_replay_is_warmed_up_by_jobs_that_ended_within_two_weeks_of_the_period(monkeypatch):
    submit = np.arange(100) * 86_400.0
    jobs = workload(Source("t", start=1e9), submit, 3600.0, 1, wait_time=np.zeros(100))
    seen = []

    def ready(settings, some, *_):
        seen.append(some)
        raise KeyboardInterrupt

    monkeypatch.setattr("rltuned.lab.report.replay.ready", ready)
    settings = settings_of(Config(), "saf", {"trace": "t", "cluster": "1x8"})
    with pytest.raises(KeyboardInterrupt):
        replay(settings, jobs, None, 1e9 + 50 * 86_400.0, 1e9 + 101 * 86_400.0, revision="", wrote=False)
    assert seen[0].submit_time[0] == 36 * 86_400.0


def test_beside_slurmctld_it_is_niced_and_says_how_long_it_takes_and_what_is_not_replayed(
    site, tmp_path, monkeypatch, capsys
):
    niced = []
    monkeypatch.setattr("os.nice", niced.append)
    monkeypatch.setattr("rltuned.cli.common.slurmctld_runs", lambda: True)
    config = tmp_path / "config.toml"
    config.write_text(site.config.read_text() + "[lend]\nmost = 3\n")
    middle = stamp((site.since + site.until) / 2)
    run(*site.words, "--config", config, "--since", middle, "--json", "-")
    said = capsys.readouterr()
    assert niced == [10]
    assert "3 simulations with 1 process: about" in said.err
    report = json.loads(said.out)
    assert report["missing"] == ["The replay has the defaults of lend.most, where your configuration differs."]


@pytest.mark.parametrize(
    ("option", "value", "status"), [("--trace", "/typo.csv", 11), ("--cluster", "many x gpus", 12)]
)
def test_a_file_that_the_user_named_wrongly_is_an_error_although_there_is_a_log(site, option, value, status):
    assert refused(*site.words, option, value) == status


def test_without_names_the_cause_of_a_replay_that_failed_is_told_to_whoever_makes_the_report_only(
    site, tmp_path, capsys
):
    config = tmp_path / "config.toml"
    config.write_text(site.config.read_text() + f'[slurm]\nbin_dir = "{tmp_path}"\n')
    words = ("--config", config, "--since", stamp(site.since), "--until", stamp(site.until), "--json", "-")
    run(*words)
    (cause,) = json.loads(capsys.readouterr().out)["missing"]
    assert str(tmp_path) in cause
    run(*words, "--no-names")
    said = capsys.readouterr()
    assert str(tmp_path) in said.err
    assert str(tmp_path) not in said.out


def test_faults_are_counted_by_their_cause_whatever_the_numbers_in_them(site):
    some = logged(site)[:6]
    bad = [
        replace(one, outcome="failed", sentence=f"slurmctld did not answer within {20 + at} s")
        for at, one in enumerate(some[2:5])
    ]
    period = read([*some[:2], *bad, some[5]], site.since, site.until)
    (fault,) = period.to_json()["faults"]
    assert (fault["count"], fault["first"], fault["last"]) == (3, bad[0].time, bad[-1].time)
    assert "did not answer" in fault["what"]


def test_a_time_without_cycles_is_not_covered_and_hourly_cycles_cover_theirs(site):
    one, *_ = logged(site)
    hourly = [replace(one, time=1e9 + 3600.0 * hour) for hour in range(24)]

    def covered(some, interval):
        return read(some, 1e9, 1e9 + 86_400.0, interval).to_json()["covered"]

    assert covered(hourly, 3600.0) > 0.9
    assert covered(hourly, 60.0) < 0.3
    assert covered([*hourly[:6], *hourly[18:]], 3600.0) < 0.7


def test_predictions_are_held_against_what_the_jobs_took():
    found = prediction_quality(
        np.array([1, 2, 3, 4]),
        np.array([100.0, 100.0, 100.0, 100.0]),
        {1: (100.0, 1000.0, True), 2: (150.0, 1000.0, True), 3: (10.0, None, False)},
    )
    assert (found["jobs"], found["learned"]) == (3, 2)
    assert found["within_2_predicted"] == pytest.approx(2 / 3, abs=1e-3)
    assert found["within_2_limit"] == 0.0
    assert prediction_quality(np.array([9]), np.array([1.0]), {1: (1.0, 1.0, True)}) is None


def test_canary_jobs_are_compared_with_the_others_by_what_really_happened():
    jobs = workload(Source("t"), np.arange(60.0), 10.0, 1, wait_time=np.where(np.arange(60) % 2, 50.0, 100.0))
    inside = {int(job) for job in jobs.job_id[1::2]}
    outside = {int(job) for job in jobs.job_id[::2]}
    found = canary(jobs, inside, outside, 7)
    assert (found["jobs"], found["others"], found["ratio"]) == (30, 30, 0.5)
    assert found["lo"] <= 0.5 <= found["hi"]
    assert canary(jobs, set(), outside, 7) is None


# --- the page


def test_the_page_loads_nothing_and_says_so_to_the_browser(made):
    text = made[1].read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"<(?:script|link|img|iframe|object)\b|\bsrc=|@import", text)
    assert set(re.findall(r"https?://[^\"\s<]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', text))
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_all_four_charts_are_there_in_colours_of_the_page_only(made):
    text = made[1].read_text()
    for chart in ("waits", "queue", "gpus", "predictions"):
        assert text.count(f'id="chart-{chart}"') == 1
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawn)) == set()
    assert {"--ink", "--grid", "--real", "--slurm", "--ours"} <= set(re.findall(r"var\((--\w+)\)", drawn))


def test_the_same_data_make_the_same_page(made, site, tmp_path):
    run(*site.words, "--html", tmp_path / "r.html")
    without = re.compile(r"Made .*? by")
    assert without.sub("", (tmp_path / "r.html").read_text()) == without.sub("", made[1].read_text())


def test_names_of_the_cluster_cannot_become_markup(made):
    report = json.loads(json.dumps(made[0]))
    report["cluster"] = "<script>alert(1)</script>"
    report["replay"]["groups"]["account"][0]["name"] = "<b onload=x>"
    text = page.render(report, {})
    assert "<script>" not in text
    assert "<b onload" not in text
    assert "&lt;script&gt;" in text


def test_the_period_s_begin_and_end_are_kept(site, capsys):
    middle = (site.since + site.until) / 2
    run("--config", site.config, "--no-replay", "--since", stamp(middle), "--until", stamp(site.until))
    assert period_of(site).total > 1.5 * int(re.search(r"shadow ([\d,]+)", capsys.readouterr().out)[1].replace(",", ""))


def test_where_nodes_are_gone_on_which_jobs_ran_never_more_gpus_are_in_use_than_there_are():
    jobs = workload(Source("site"), [0.0] * 4, [600.0] * 4, [4] * 4, user=["ann"] * 4)
    found = replayed(jobs, dict.fromkeys((REAL, SLURM, "saf"), np.array([0.0, 0.0, 0.0, 600.0])), capacity=8.0)
    assert found.gpus == 12.0
    assert found.values()[REAL]["utilization"] == pytest.approx(100.0 * 4 / 6, abs=0.01)
