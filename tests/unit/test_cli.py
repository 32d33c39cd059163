"""The command line on recorded answers of real clusters: what it prints, its exit codes, its errors."""

import io
import json
import os
import pwd
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import pytest
from unit.slurm.standin import (
    CONFIG,
    PARTITIONS,
    PENDING_JOB,
    RECORDED,
    StandIn,
    job,
    releases,
    sprio_row,
)

from rltuned import __version__
from rltuned.cli.main import cli, main
from rltuned.controller.cycle import planning
from rltuned.controller.write.claims import Entry
from rltuned.controller.write.journal import Journal
from rltuned.core.changes import Applied, Change, Field, SiteFactor
from rltuned.core.config import resolve
from rltuned.core.errors import JournalError
from rltuned.core.installed import how_to_install
from rltuned.core.scheduler import SchedulerParameters
from rltuned.slurm.connect import open_reader


@pytest.fixture(params=releases())
def site(request, tmp_path):
    """A configuration whose Slurm answers as the recorded cluster did."""
    slurm = StandIn(tmp_path / "slurm")
    slurm.load(RECORDED / request.param)
    config = tmp_path / "config.toml"
    config.write_text(
        f'[slurm]\nbin_dir = "{slurm.bin_dir}"\n[state]\ndirectory = "{tmp_path / "state"}"\nmirror = ""\n'
        '[policy]\nname = "saf"\n'
    )
    (tmp_path / "state").mkdir()
    return config


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return end.value.code, said.out, said.err


def test_plan_lists_who_goes_ahead_and_json_says_the_same(site, capsys):
    code, text, _ = run(capsys, "plan", "--config", site)
    assert code == 0
    assert "policy saf" in text
    code, answer, _ = run(capsys, "plan", "--config", site, "--json")
    record = json.loads(answer)
    assert code == 0
    assert record["policy"] == "saf"
    assert int(re.match(r"(\d+) jobs go ahead", text).group(1)) == sum(job["raised"] for job in record["jobs"]) > 10
    assert f"jobs wait: {len(record['jobs'])} managed" in text
    assert max(len(line) for line in text.splitlines() if "→" in line) <= 80, "a terminal need not be wider"


def test_plan_shows_the_jobs_of_a_user_or_partition_and_names_the_nearest_where_there_is_none(site, capsys):
    _, answer, _ = run(capsys, "plan", "--config", site, "--json")
    everybody = {job["id"] for job in json.loads(answer)["jobs"]}
    reader = open_reader(resolve(site.read_text(), site.name, {}, {}).config.slurm)
    jobs = reader.snapshot(0.0).jobs
    for option, column in (("--user", jobs.user), ("--partition", jobs.partition)):
        wanted = column.value(jobs.row_of[next(iter(everybody))]).split(",")[0]
        ids = {int(jobs.job_id[row]) for row in jobs.pending if wanted in column.value(row).split(",")}
        _, answer, _ = run(capsys, "plan", "--config", site, "--json", option, wanted)
        assert {job["id"] for job in json.loads(answer)["jobs"]} == ids & everybody
        code, text, _ = run(capsys, "plan", "--config", site, option, wanted)
        assert f"{len(ids)} jobs wait: {len(ids & everybody)} managed" in " ".join(text.split())
        code, _, said = run(capsys, "plan", "--config", site, option, wanted[:-1] + "_")
        assert code == 1
        assert f"no pending job is of that {option[2:]}; did you mean {wanted}?" in " ".join(said.split())


def test_a_name_may_hold_a_comma_and_does_a_terminal_no_harm(named, capsys):
    path, slurm = named
    path.write_text(path.read_text().replace(SCOPE, ""))
    slurm.queue([job(7, UserName="a,b"), job(8, UserName="bo\x07b"), job(9, Partition="gpu,ur\u202egent")])

    def left(*words):
        return [one["id"] for one in json.loads(run(capsys, "plan", "--json", "--config", path, *words)[1])["left"]]

    assert (left("--user", "a,b"), left("--partition", "gpu"), left("--partition", "ur\u202egent")) == (
        [7],
        [7, 8, 9],
        [9],
    )
    assert run(capsys, "plan", "--config", path, "--user", "a")[0] == 1
    for option, wanted, meant in (("--user", "boob", "bo\\x07b"), ("--partition", "urgent", "ur\\u202egent")):
        assert f"did you mean {meant}?" in run(capsys, "plan", "--config", path, option, wanted)[2]


@pytest.mark.parametrize(
    "words",
    [
        ("restore", "--if-stale", "nan"),
        ("train", "--from-sacct", "inf"),
        ("learn", "--budget", "nan"),
        ("gate", "--valid-days", "nan"),
        ("demo", "--speed", "nan"),
        ("demo", "--seconds", "inf"),
        ("plan", "--limit", "-1"),
        ("bench", "--seed", "-1"),
    ],
)
def test_a_number_that_means_nothing_is_refused(words, capsys, monkeypatch):
    monkeypatch.setenv("RLTUNED_CYCLE__STAGE", "none")  # nothing is done where it is not
    code, _, said = run(capsys, *words)
    assert code == 2
    assert words[1] in said


def test_the_example_of_jq_prints_who_goes_ahead(site, capsys):
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    (program,) = re.findall(r"rltuned plan --json \| jq -r '(.*)'", page)
    _, answer, _ = run(capsys, "plan", "--config", site, "--json")
    told = subprocess.run(["jq", "-r", program], input=answer, capture_output=True, text=True, check=True).stdout
    raised = [job for job in json.loads(answer)["jobs"] if job["raised"]]
    assert [line.split("\t") for line in told.splitlines()] == [
        [str(job[name]) for name in ("id", "slurm_place", "place", "ahead_of")] for job in raised
    ]


def test_a_plan_made_once_goes_by_the_scheduler_of_this_cluster(site, monkeypatch):
    seen = []

    def watched(known, snapshot, *arguments):
        seen.append(snapshot.scheduler)
        return made(known, snapshot, *arguments)

    made = planning.planned
    monkeypatch.setattr(planning, "planned", watched)
    with pytest.raises(SystemExit):
        main(["plan", "--config", str(site)])
    found = open_reader(resolve(site.read_text(), site.name, {}, {}).config.slurm).facts().scheduler
    assert seen == [found]
    assert found != SchedulerParameters()


def test_explain_says_place_and_reason_for_a_managed_job_and_the_veto_for_another(site, capsys):
    _, answer, _ = run(capsys, "plan", "--config", site, "--json")
    record = json.loads(answer)
    code, text, _ = run(capsys, "explain", record["jobs"][0]["id"], "--config", site, "--fresh")
    assert code == 0
    assert "Slurm alone has it at place" in text
    held = next(job["id"] for job in record["left"] if job["why"] == "held")
    code, text, _ = run(capsys, "explain", held, "--config", site, "--fresh")
    assert "not managed" in text
    assert "only its owner or an admin may release it" in text
    code, answer, _ = run(capsys, "explain", 4_000_000, "--config", site, "--fresh", "--json")
    assert json.loads(answer)["verdict"] == "not pending"
    assert code == 16, "a script can tell that the job does not wait"


def test_explain_takes_a_job_as_slurm_names_it(site, capsys):
    _, answer, _ = run(capsys, "plan", "--config", site, "--json")
    first = json.loads(answer)["jobs"][0]["id"]
    for name in (f"{first}_7", f"{first - 1}+1"):
        _, answer, _ = run(capsys, "explain", name, "--config", site, "--fresh", "--json")
        assert json.loads(answer)["job_id"] == first
    code, _, said = run(capsys, "explain", "123+x", "--config", site)
    assert code == 2
    assert "123+1 (heterogeneous)" in " ".join(said.split())


def test_doctor_keeps_each_finding_on_one_line_where_it_is_piped(site, capsys):
    _, answer, _ = run(capsys, "doctor", "--config", site, "--json")
    _, text, _ = run(capsys, "doctor", "--config", site)
    lines = text.splitlines()
    for item in json.loads(answer):
        assert any(line.endswith(f"{item['subject']}: {item['cause']}") for line in lines)
        assert not item["remedy"] or f"      → {item['remedy']}" in lines
    assert max(map(len, lines)) > 80


def test_explain_without_a_running_daemon_plans_afresh_and_says_so(site, capsys):
    _, _, said = run(capsys, "explain", 1, "--config", site)
    assert "planning afresh" in said


def test_doctor_reports_each_finding_and_ends_with_10_only_for_errors(site, capsys):
    code, answer, _ = run(capsys, "doctor", "--config", site, "--json")
    found = json.loads(answer)
    errors = [item for item in found if item["severity"] == "error"]
    assert code == (10 if errors else 0)
    assert {"privilege", "leftovers"} <= {item["subject"] for item in found}
    assert all(item["remedy"] for item in errors)


def test_restore_with_an_empty_journal_has_nothing_to_do(site, capsys):
    code, text, _ = run(capsys, "restore", "--config", site)
    assert (code, text) == (0, "0 jobs restored\n")


def test_restore_takes_the_names_that_explain_takes_and_says_which_job_it_does_not_know(site, capsys):
    for name, number in (("4000000", 4_000_000), ("4000000_7", 4_000_000), ("4000000+2", 4_000_002)):
        code, text, _ = run(capsys, "restore", name, "--config", site)
        assert (code, f"job {number} does not wait, and rltuned has nothing on it" in text) == (0, True)
        assert json.loads(run(capsys, "restore", name, "--config", site, "--json")[1])["unknown"] == [number]
    _, answer, _ = run(capsys, "plan", "--config", site, "--json")
    waiting = json.loads(answer)["jobs"][0]["id"]
    assert "nothing to give back" not in run(capsys, "restore", waiting, "--config", site)[1]
    for wrong in ("0", "4711_", "gpu"):
        assert run(capsys, "restore", wrong, "--config", site)[0] == 2


def test_a_restore_by_name_that_no_disk_takes_down_says_so_and_ends_with_8(site, capsys, monkeypatch):
    def full(*_):
        raise JournalError("No space left on device")

    _, answer, _ = run(capsys, "plan", "--config", site, "--json")
    monkeypatch.setattr(Journal, "update", full)
    code, text, said = run(capsys, "restore", json.loads(answer)["jobs"][0]["id"], "--config", site)
    assert code == 8
    assert "1 carried nothing" in text
    assert "No space left on device" in said
    assert "make room for the journal" in " ".join(said.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cycle]\nintervall = 3\n", r"config.toml:2: unknown key 'cycle.intervall'; known here: interval, stage"),
        ("[cycle]\ninterval = -1\n", r"config.toml:2: cycle.interval: .*greater than or equal to 1 \(got -1\)"),
        ('[cycle]\nstage = "canary"\n', r"stage 'canary' needs scope.canary: partitions"),
        ("[nonsense]\n", r"config.toml:1: unknown section 'nonsense'"),
        ('[decide]\nclass_by = ["qos"]\n', r"config.toml:1: section 'decide' is gone, take it out: .*lend\.share"),
        ("x = 1\n", r"config.toml:1: 'x' stands outside any \[section\]"),
        ("[cycle\n", r"config.toml: not valid TOML"),
        (f"[cycle]\ninterval = {'9' * 5000}\n", r"config.toml: not valid TOML"),
        (f"x = {'[' * 3000}\n", r"config.toml: not valid TOML"),
        ('[state]\ndirectory = "/x\\u0000y"\n', r"config.toml:2: state.directory: an absolute path is wanted"),
        (
            '[policy]\nobjective = "wait=1,speed=2"\n',
            r"config.toml:2: policy.objective: 'speed=2' is not NAME=WEIGHT with a name of wait, slowdown, tail, idle",
        ),
        ("[policy]\nobjective = 3\n", r"config.toml:2: policy.objective: '3' is not NAME=WEIGHT"),
        ('[policy]\nname = "magic"\n', r"no policy 'magic'; there are auto, model, f1, "),
        ('[policy]\nname = "modle"\n', r"did you mean model\?"),
        ("[cycle]\nintervall = 3\n", r"did you mean interval\?"),
        ("[cycel]\n", r"unknown section 'cycel'.*did you mean cycle\?"),
        ('[cycle]\nstage = "activ"\n', r"did you mean active\?"),
        ('[scope]\npartitions = "gpu"\n', r"config.toml:2: scope.partitions: a list is wanted, as \["),
        ('[state]\ndirectory = "var"\n', r"config.toml:2: state.directory: an absolute path is wanted"),
        (
            '[state]\ndirectory = "/a/b"\nmirror = "/a/c/../b"\n',
            r"config.toml:1: state: mirror is the same as directory",
        ),
        ('[metrics]\nlisten = "not an ip:9815"\n', r"config.toml:2: metrics.listen: address and port are wanted"),
        ('[metrics]\nlisten = "300.1.1.1:9815"\n', r"metrics.listen: address and port are wanted"),
        ('[metrics]\nlisten = "127.0.0.1"\n', r"metrics.listen: address and port are wanted"),
        ('[metrics]\nlisten = "127.0.0.1:65536"\n', r"metrics.listen: address and port are wanted"),
        ('[metrics]\nlisten = ":9815"\n', r"metrics.listen: address and port are wanted"),
        ('[metrics]\nlisten = "::1:9815"\n', r"metrics.listen: address and port are wanted"),
        ('[metrics]\nlisten = "[ctl]:9815"\n', r"metrics.listen: address and port are wanted"),
        (
            "[metrics]\nport = 9815\n",
            r"config.toml:2: key 'metrics.port' is gone, take it out: metrics.listen has address and port",
        ),
        ("[lend]\nmost = true\n", r"config.toml:2: lend.most: a number is wanted, not true"),
        ("[cycle]\ninterval = true\n", r"cycle.interval: a number is wanted, not true"),
        ('[slurm]\nbin_dir = "/not/there"\n', r"config.toml:2: slurm.bin_dir: there is no directory /not/there"),
        ('[slurm]\nconf = "/not/there.conf"\n', r"config.toml:2: slurm.conf: there is no file /not/there.conf"),
        (
            '[scope]\npartitions = ["a", "b"]\nexclude_partitions = ["b"]\n',
            r"scope: b: in partitions and in exclude_part",
        ),
        ('[scope]\nexclude_partitions = ["b"]\ncanary = ["b"]\n', r"scope: b: in canary, and "),
        *(
            (f"[scope]\ncanary = {value}\n", r"config.toml:2: scope.canary: partitions are wanted, as \[.*got")
            for value in ('"101 %"', '"0 %"', '"-1 %"', "10", "true", '"debug"', '[""]', "[1]")
        ),
        (
            "[scope]\ncanary_percent = 10.0\n",
            r"config.toml:2: key 'scope.canary_percent' is gone, take it out: .*canary = .10 %",
        ),
    ],
)
def test_a_mistake_in_the_configuration_names_file_line_and_reason(text, message, tmp_path, capsys):
    path = tmp_path / "config.toml"
    path.write_text(text)
    code, _, said = run(capsys, "config", "check", path)
    assert code == 3
    assert re.search(message, said), said


@pytest.mark.parametrize("address", ["[::1]", "192.0.2.7", "localhost", "slurm-1.example.org"])
def test_an_address_may_be_an_ip_or_a_name(address, tmp_path, capsys):
    path = tmp_path / "config.toml"
    path.write_text(f'[metrics]\nlisten = "{address}:9815"\n')
    assert run(capsys, "config", "check", path)[0] == 0


def test_a_directory_for_users_that_is_not_there_is_remarked_upon(tmp_path, capsys):
    path = tmp_path / "config.toml"
    path.write_text(f'[users]\ndirectory = "{tmp_path}/records"\n')
    code, said, _ = run(capsys, "config", "check", path)
    assert (code, f"note: users.directory: there is no directory {tmp_path}/records" in said) == (0, True)
    (tmp_path / "records").mkdir()
    assert "users.directory" not in run(capsys, "config", "check", path)[1]


def test_a_mirror_that_is_a_link_to_the_directory_and_a_state_that_is_a_file_are_refused(tmp_path, capsys):
    (tmp_path / "state").mkdir()
    (tmp_path / "mirror").symlink_to("state")
    path = tmp_path / "config.toml"
    path.write_text(f'[state]\ndirectory = "{tmp_path}/state"\nmirror = "{tmp_path}/mirror"\n')
    code, _, said = run(capsys, "config", "check", path)
    assert (code, "state.mirror" in said, "is the same directory as" in said) == (3, True, True)
    path.write_text(f'[state]\ndirectory = "{path}"\nmirror = ""\n')
    assert "is no directory" in run(capsys, "config", "check", path)[2]


def test_a_variable_with_one_underscore_is_not_ignored(tmp_path, capsys, monkeypatch):
    path = tmp_path / "config.toml"
    path.write_text("")
    monkeypatch.setenv("RLTUNED_TEST_SOMETHING", "1")
    assert run(capsys, "config", "check", path)[0] == 0, "not every variable of that prefix is a setting"
    monkeypatch.setenv("RLTUNED_CYCLE_STAGE", "shadow")
    code, _, said = run(capsys, "config", "check", path)
    assert code == 3
    assert "RLTUNED_CYCLE_STAGE: two underscores" in said
    assert "did you mean RLTUNED_CYCLE__STAGE?" in said


@pytest.mark.parametrize("variable", ["RLTUNED_CYLE__STAGE", "RLTUNED_DECIDE__DWELL", "RLTUNED_CYCLE__STAGGE"])
def test_what_the_environment_names_and_nobody_knows_is_told_of_the_variable(variable, tmp_path, capsys, monkeypatch):
    path = tmp_path / "config.toml"
    path.write_text("[log]\n")
    monkeypatch.setenv(variable, "shadow")
    code, _, said = run(capsys, "config", "check", path)
    assert (code, said.startswith(f"rltuned: {variable}: ")) == (3, True), said


def test_that_there_is_no_configuration_at_the_usual_place_is_remarked_upon(site, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rltuned.cli.configuration.DEFAULT_PATH", tmp_path / "none.toml")
    monkeypatch.setattr("rltuned.cli.common.DEFAULT_PATH", tmp_path / "none.toml")
    code, said, _ = run(capsys, "config", "check")
    assert (code, f"note: {tmp_path}/none.toml: there is no such file" in said) == (0, True), said
    assert "no such file" not in run(capsys, "config", "check", site)[1]


def test_a_file_with_a_byte_order_mark_is_read(tmp_path, capsys):
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbf" + b"[cycle]\nintervall = 3\n")
    assert f"{path}:2: unknown key" in run(capsys, "config", "check", path)[2]
    path.write_bytes(b"\xef\xbb\xbf" + b"[cycle]\ninterval = 30\n")
    assert run(capsys, "config", "check", path)[0] == 0


SCOPE = """[scope]
partitions = ["gpu", "urgnt"]
exclude_users = ["alcie", "bob", "root"]
exclude_accounts = ["phys"]
exclude_qos = ["hgh", "normal"]
exclude_reservations = ["maint"]
"""
MEANT = {"urgnt": "urgent", "alcie": "alice", "phys": "physics", "hgh": "high"}


@pytest.fixture
def named(tmp_path):
    """A configuration with names in its scope, and its Slurm, which the caller may ask."""
    slurm = StandIn(tmp_path / "slurm")
    slurm.answer("config", CONFIG.replace("slurm(64030)", f"slurm({os.geteuid()})"))
    slurm.answer("privilege", f"{pwd.getpwuid(os.geteuid()).pw_name}|Operator\n")
    slurm.answer("partitions", "".join(PARTITIONS.replace("=gpu ", f"={name} ") for name in ("gpu", "urgent")))
    for what, names in (("users", "alice\nbob\n"), ("accounts", "root\nphysics\n"), ("qos", "normal\nhigh\n")):
        slurm.answer(what, names)
    slurm.answer("reservations", "No reservations in the system\n")
    path = tmp_path / "config.toml"
    slurm_at = f'[slurm]\nbin_dir = "{slurm.bin_dir}"\n[state]\ndirectory = "{tmp_path / "state"}"\nmirror = ""\n'
    path.write_text(slurm_at + SCOPE)
    return path, slurm


def test_names_in_the_scope_that_slurm_does_not_have_are_errors_of_config_check(named, capsys):
    path, slurm = named
    code, _, said = run(capsys, "config", "check", path)
    assert code == 3
    for wrong, meant in MEANT.items():
        (line,) = [line for line in said.splitlines() if f"'{wrong}'" in line]
        assert f"did you mean {meant}?" in line
        assert f"{path}:" in line
    assert "'bob'" not in said
    assert "'root'" not in said, "the host knows that user, if accounting does not"
    text = path.read_text()
    for wrong, meant in MEANT.items():
        text = text.replace(f'"{wrong}"', f'"{meant}"')
    path.write_text(text)
    code, said, _ = run(capsys, "config", "check", path)
    assert code == 0
    assert "note: scope.exclude_reservations: Slurm has no reservation 'maint'" in said
    slurm.answer("reservations", "ReservationName=maint StartTime=1 EndTime=2 Duration=1\n")
    assert "maint" not in run(capsys, "config", "check", path)[1]
    assert not [call for call in slurm.calls if call.startswith("scontrol update")]


@pytest.mark.parametrize("why", ["slurmctld is down", "slurmdbd is down", "no privilege"])
def test_where_slurm_cannot_be_asked_for_names_config_check_says_so_and_passes(named, capsys, monkeypatch, why):
    path, slurm = named
    path.write_text(path.read_text().replace('"urgnt"', '"urgent"'))
    if why == "slurmctld is down":
        slurm.answer("config", "", "slurm_load_ctl_conf error: Unable to contact slurm controller\n", 1)
    elif why == "slurmdbd is down":
        slurm.answer("qos", "", "sacctmgr: error: Connection refused\n", 1)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 65534)
        slurm.answer("config", CONFIG)
    code, said, _ = run(capsys, "config", "check", path)
    assert (code, "could not be compared" in said) == (0, True)


def test_names_in_the_scope_that_slurm_does_not_have_are_findings_of_doctor(named, capsys):
    found = json.loads(run(capsys, "doctor", "--config", named[0], "--json")[1])
    causes = {one["cause"]: one["severity"] for one in found if one["subject"] == "scope"}
    assert len(causes) == 5
    for wrong, meant in MEANT.items():
        assert any(f"'{wrong}'; did you mean {meant}?" in cause for cause in causes)
    assert sorted(causes.values()) == ["note"] + ["warning"] * 4


def test_config_check_tells_machines_the_same(site, tmp_path, capsys):
    code, answer, _ = run(capsys, "config", "check", site, "--json")
    told = json.loads(answer)
    assert (code, told["ok"], told["errors"], told["policy"], told["path"]) == (0, True, [], "saf", str(site))
    bad = tmp_path / "bad.toml"
    bad.write_text("[cycle]\ninterval = -1\nintervall = 3\n")
    code, answer, _ = run(capsys, "config", "check", bad, "--json")
    told = json.loads(answer)
    assert (code, told["ok"], len(told["errors"])) == (3, False, 2)
    assert f"{bad}:2: cycle.interval" in told["errors"][0]


@pytest.mark.parametrize("words", [("run", "--once", "--dry-run"), ("--dry-run", "--once")])
def test_a_dry_run_is_one_without_the_command_too(words, site, capsys, monkeypatch):
    served = []
    monkeypatch.setattr(
        "rltuned.controller.cycle.service.serve", lambda load, **how: served.append((load().config, how))
    )
    with pytest.raises(SystemExit):
        main([*words, "--config", str(site)])
    [(config, how)] = served
    assert how == {"dry_run": True, "once": True}
    assert config.cycle.stage == "shadow"
    assert str(config.state.directory.parent) == str(site.parent)


def test_a_configuration_that_is_not_there_is_an_error_with_a_remedy(tmp_path, capsys):
    code, _, said = run(capsys, "config", "check", tmp_path / "none.toml")
    assert code == 3
    assert "config sample" in said


def test_the_environment_overrides_the_file_and_config_show_says_where_a_value_comes_from(
    tmp_path, capsys, monkeypatch
):
    path = tmp_path / "config.toml"
    path.write_text('[cycle]\ninterval = 30\nstage = "active"\n')
    monkeypatch.setenv("RLTUNED_CYCLE__STAGE", "shadow")
    _, text, _ = run(capsys, "config", "show", "--config", path)
    assert f"interval = 30.0  # {path}:2" in text
    assert 'stage = "shadow"  # RLTUNED_CYCLE__STAGE' in text
    _, answer, _ = run(capsys, "config", "show", "--config", path, "--json")
    assert json.loads(answer)["sources"]["cycle.stage"] == "RLTUNED_CYCLE__STAGE"
    monkeypatch.setenv("RLTUNED_CYCLE__STAGES", "shadow")
    code, _, said = run(capsys, "config", "show", "--config", path)
    assert code == 3
    assert "RLTUNED_CYCLE__STAGES: unknown key" in said


@pytest.mark.parametrize("before", [("--dry-run",), ("--once",), ("--config", "x.toml")])
def test_options_before_a_command_are_not_silently_ignored(before, capsys):
    code, _, said = run(capsys, *before, "run")
    assert (code, "options stand behind the command: rltuned run" in said) == (2, True)


def test_slurm_that_cannot_be_found_is_named_with_exit_code_5(tmp_path, capsys):
    path = tmp_path / "config.toml"
    path.write_text(f'[slurm]\nbin_dir = "{tmp_path}"\n[state]\ndirectory = "{tmp_path}"\n')
    code, _, said = run(capsys, "plan", "--config", path)
    assert code == 5
    assert str(tmp_path) in said


def test_bench_prints_its_figures_for_machines_and_for_people(capsys, monkeypatch):
    monkeypatch.setattr("rltuned.lab.benchmarks.rss_mb", lambda *_: 90.0)  # these two start processes
    monkeypatch.setattr("rltuned.lab.benchmarks.start_seconds", lambda *_: 0.5)
    code, answer, _ = run(capsys, "bench", "--repeats", "5", "--json")
    measured = json.loads(answer)
    figures = {name for name, value in measured.items() if isinstance(value, dict)}
    assert (code, measured.keys() - figures) == (0, {"rss_mb_10000", "start_s"})
    assert figures == {"rank_256_ms", "rank_10000_ms", "milp_16x36_ms", "milp_256x500_ms", "cycle_10000_ms"}
    assert all(0.0 < measured[name]["p50"] <= measured[name]["p99"] for name in figures)
    monkeypatch.setattr("rltuned.lab.benchmarks.run", lambda *_: measured)
    code, text, _ = run(capsys, "bench")
    assert (code, "whole cycle but Slurm, 10,000 pending" in text, "ready after 0.5 s" in text) == (0, True, True)


@pytest.mark.parametrize(
    "command",
    [["doctor"], ["plan"], ["explain"], ["config", "show"], ["restore"], ["traces", "describe", "no–file"], ["--help"]],
    ids=" ".join,
)
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize("site", ["24.11"], indirect=True)
def test_a_console_that_is_not_utf_8_gets_all_that_it_can_show(site, command, encoding, monkeypatch):
    options = [] if command[0] in {"traces", "--help"} else ["--config", str(site)]
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main([*command, *options])
    for stream in streams:
        stream.flush()
    assert b"".join(stream.buffer.getvalue() for stream in streams)


def test_a_version_that_was_released_is_not_that_of_what_comes_after_it():
    changes = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[([0-9.]+)\]", changes, re.MULTILINE)
    assert released
    assert "## [Unreleased]" not in changes or __version__ not in released


def test_the_program_starts_without_what_only_some_commands_need():
    code = "import sys; from rltuned.cli.main import cli; list(cli.commands.values()); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    ours = {name for name in loaded if name.split(".")[0] == "rltuned" and not name.startswith("rltuned.cli")}
    light = {"core", "core.config", "core.errors", "core.installed", "core.objective", "job", "job.elastic"}
    assert ours == {"rltuned", *(f"rltuned.{name}" for name in light)}
    heavy = {"apscheduler", "matplotlib", "numba", "numpy", "prometheus_client", "rich", "structlog", "tensorflow"}
    assert sorted(heavy & set(loaded)) == []


def test_a_list_of_commands_shows_each_once_and_cuts_no_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    groups = [(), *((name,) for name, command in cli.commands.items() if isinstance(command, click.Group))]
    for words in groups:
        lists = run(capsys, *words, "--help")[1].partition("\n  -h, --help ")[2]
        assert max(map(len, lists.splitlines())) <= 80
        assert "..." not in lists
        group = cli.commands[words[0]] if words else cli
        assert sorted(re.findall(r"^  (\w+) ", lists, re.MULTILINE)) == sorted(group.commands)


@pytest.mark.parametrize(
    ("words", "now"),
    [
        (["check-config", "x.toml"], "rltuned config check"),
        (["show-config"], "rltuned config show"),
        (["show-config", "--sample"], "rltuned config sample"),
    ],
)
def test_a_command_of_before_is_refused_with_its_new_name(capsys, words, now):
    code, _, said = run(capsys, *words)
    assert (code, now in said) == (2, True)


@pytest.mark.parametrize("options", [(), ("--if-stale", "300"), ("7",), ("--orphans",)], ids=" ".join)
def test_the_queue_is_given_back_where_numpy_is_broken(tmp_path, options):
    slurm = StandIn(tmp_path / "slurm")
    slurm.queue([job(7)])
    carries = [f"{slurm.folder}/{name}" for name in ("raised", "given-back")]
    for path, factor in zip(carries, (5, 0), strict=True):
        Path(path).write_text(sprio_row(7, factor))
    slurm.script("sprio", f"#!/bin/sh\ntest -e {slurm.folder}/stdin && cat {carries[1]} || cat {carries[0]}\n")
    state = tmp_path / "state"
    submitted = int(PENDING_JOB["SubmitTime"])
    with closing(Journal.open(state, None)) as journal:
        change = Change(7, submitted, Field.SITE_FACTOR, 0, SiteFactor(5), 0)
        journal.intend([(change, Entry(Applied(7, submitted, site_factor=5)))])
    (tmp_path / "config.toml").write_text(
        f'[slurm]\nbin_dir = "{slurm.bin_dir}"\n[state]\ndirectory = "{state}"\nmirror = ""\n'
    )
    (tmp_path / "numpy.py").write_text("raise ImportError('libopenblas.so.0: cannot open shared object file')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from rltuned.cli.main import main; main()"
    command = [sys.executable, "-c", code, "restore", *options, "--config", str(tmp_path / "config.toml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert slurm.stdin == "update JobId=7 SiteFactor=0\n"


def test_training_where_numba_is_missing_names_the_remedy(tmp_path):
    options = ["--trace", "jobs.csv", "--cluster", "2x4", "--out", str(tmp_path)]
    code = "import sys; sys.modules['numba'] = None; from rltuned.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "train", *options], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    said = f"rltuned: training needs numba, which is not installed: {how_to_install('simulate')}\n"
    assert done.stderr == said


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "--trace", "jobs.csv", "--cluster", "2x4"],
        ["gate", "--trace", "jobs.csv", "--cluster", "2x4"],
    ],
)
def test_a_command_that_needs_the_simulator_names_the_extra_where_it_is_missing(arguments):
    code = "import sys; sys.modules['numba'] = None; from rltuned.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True)
    said = f"rltuned: this needs numba, which is not installed: {how_to_install('simulate')}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_under_systemd_an_error_has_its_priority_in_the_journal(tmp_path):
    command = [sys.executable, "-m", "rltuned", "plan", "--config", tmp_path / "no"]
    # A shell knows which file its standard error is when it starts the command, as systemd does.
    connected = 'JOURNAL_STREAM=$(stat -Lc %d:%i /dev/stderr) exec "$@"'
    with (tmp_path / "journal").open("w") as journal:
        subprocess.run(["sh", "-c", connected, "sh", *command], check=False, stderr=journal)
    assert (tmp_path / "journal").read_text().startswith(f"<3>rltuned: {tmp_path / 'no'}: no such file")
