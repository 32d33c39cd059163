"""systemd/: the units under a real systemd (257), on a host installed word for word as docs/installation.md says.

The host is one of the 24.11 cluster's network; slurmctld runs in another container, as `ctl`.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster.conftest import Clusters
from cluster.daemon_support import named
from cluster.support import OPERATOR, PYTHON, RLTUNED, ROOT, USERS, Cluster, simulate_wheels, wait_until
from testbed import built_wheel

HOST = "systemd"
PAGE = ROOT / "docs" / "installation.md"
LEARNING = ROOT / "docs" / "learning.md"
TREE = "/root/rltuned"
SOLVES = (
    "import swiglpk as g; p = g.glp_create_prob(); g.glp_add_cols(p, 1); g.glp_set_col_bnds(p, 1, g.GLP_DB, 0, 1); "
    "g.glp_set_obj_coef(p, 1, 1); g.glp_simplex(p, None); assert g.glp_get_status(p) == g.GLP_OPT"
)
"""A program that GLPK solves."""
SERVICES = ("rltuned.service", "rltuned-deadman.service")
PLACES = ("/etc/rltuned", "/var/lib/rltuned", "/run/rltuned")

# Lines of the page that a test does in another way: the wheel is built once per session, and `-f` never ends.
ELSEWHERE = ("python3 -m build", "journalctl -f")

STEERING = """\
[cycle]
stage = "{stage}"
interval = 3.0
[policy]
name = "{policy}"
[estimates]
# Other tests have left finished jobs in the accounting; what these say of all eight jobs alike would leave nothing to
# order.
source = "limit"
[slurm]
timeout = 5.0
[log]
level = "debug"
"""


def page_commands(heading: str, page: Path = PAGE) -> list[str]:
    """The lines to type of the page's sections whose headings start so."""
    lines: list[str] = []
    for section in re.split(r"(?m)^## ", page.read_text())[1:]:
        if section.startswith(heading):
            blocks = re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL)
            lines += [line for language, block in blocks if not language for line in block.splitlines()]
    assert lines, heading
    return lines


@dataclass
class Host:
    """The machine on which an operator installed rltuned, and eight pending jobs of the cluster."""

    cluster: Cluster
    jobs: list[int]
    cursor: str = ""

    def sh(self, script: str, *, check: bool = True) -> str:
        return self.cluster.sh(script, service=HOST, check=check).stdout

    def systemctl(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(["systemctl", "--no-pager", *words], service=HOST, check=check)

    def show(self, name: str, unit: str = "rltuned.service") -> str:
        return self.systemctl("show", "-P", name, unit).stdout.strip()

    def owners(self, *paths: str) -> list[str]:
        """Owner and mode of each; by default of the package's directories."""
        return self.sh(f"stat -c '%U %a' {' '.join(paths or PLACES)}").splitlines()

    def from_now(self) -> None:
        """What is in the journal by now is not looked at any more."""
        shown = self.sh("journalctl -n 0 --show-cursor --no-pager")
        self.cursor = shown.partition("cursor: ")[2].strip()

    def journal(self, unit: str = "rltuned.service") -> str:
        """What a unit has written to the journal since the test began, or `from_now`."""
        words = ["journalctl", "--no-pager", "-o", "cat", "-u", unit, f"--after-cursor={self.cursor}"]
        return self.cluster.run(words, service=HOST).stdout

    def events(self, name: str) -> list[dict[str, Any]]:
        """The daemon's log events of a name since the test began."""
        return named(self.journal(), name)

    def finding(self, subject: str) -> dict[str, Any]:
        """What `rltuned doctor` says about it."""
        said = self.cluster.sh(f"{RLTUNED} doctor --json", service=HOST, user=OPERATOR, check=False).stdout
        (found,) = (item for item in json.loads(said) if item["subject"] == subject)
        return dict(found)

    def configure(self, stage: str = "active", policy: str = "sjf", more: str = "") -> None:
        text = STEERING.format(stage=stage, policy=policy) + more
        self.cluster.write_file("/etc/rltuned/config.toml", text, service=HOST)

    def drop_in(self, unit: str, text: str) -> None:
        """What `systemctl edit` does."""
        self.sh(f"mkdir -p /etc/systemd/system/{unit}.d")
        self.cluster.write_file(f"/etc/systemd/system/{unit}.d/test.conf", text, service=HOST)
        self.systemctl("daemon-reload")

    def fast_timer(self) -> None:
        """The dead-man timer with seconds for minutes."""
        text = "[Timer]\nOnBootSec=\nOnUnitInactiveSec=\nOnActiveSec=0s\nOnUnitInactiveSec=2s\nAccuracySec=100ms\n"
        self.drop_in("rltuned-deadman.timer", text)

    def factors(self) -> list[int]:
        """The jobs' site factors; 0 is what Slurm alone gives."""
        found = self.cluster.site_factors()
        return [found[job] for job in self.jobs]

    def steered(self) -> bool:
        return sum(map(bool, self.factors())) >= 2

    def restored(self) -> bool:
        return set(self.factors()) == {0}

    def wait(self, condition: str) -> None:
        try:
            wait_until(getattr(self, condition), f"the queue is {condition}")
        except AssertionError as error:
            logs = "\n".join(self.journal(unit)[-2000:] for unit in SERVICES)
            raise AssertionError(f"{error}\n{self.factors()}\n{logs}") from None

    def start_steering(self) -> None:
        """`systemctl start rltuned`, and the first writes have been made."""
        self.systemctl("start", "rltuned")
        self.wait("steered")

    def clean(self) -> None:
        """As installed, and the queue as Slurm alone orders it."""
        self.sh(
            f"""
            systemctl stop rltuned-deadman.timer {" ".join(SERVICES)} 2>/dev/null
            pkill -KILL -u {OPERATOR}
            rm -rf /etc/systemd/system/rltuned*.d /var/lib/rltuned/* /run/rltuned/*
            systemctl daemon-reload
            systemctl reset-failed
            true
            """
        )
        lines = "".join(f"update JobId={job} SiteFactor=0\n" for job in self.jobs)
        self.cluster.run(["scontrol"], input=lines)
        self.wait("restored")
        self.from_now()
        self.configure()


def copy_tree(cluster: Cluster, tree: Path) -> None:
    """Puts the source tree, as far as the page uses it, on the host, with the wheel that the page lets one build."""
    for part in ("systemd", "deploy", "docs"):
        shutil.copytree(ROOT / part, tree / part)
    (tree / "dist").mkdir()
    shutil.copy(built_wheel(), tree / "dist")
    shutil.copy(ROOT / "requirements.lock", tree)
    cluster.copy_in(tree, TREE, service=HOST)


def follow(cluster: Cluster, *headings: str) -> None:
    """Types what the page says, line by line."""
    for line in (line for heading in headings for line in page_commands(heading)):
        if line.startswith(ELSEWHERE):
            continue
        # sacctmgr asks whether to commit; the account is one of the testbed's.
        answer = "echo y | " if line.startswith("sacctmgr") else ""
        done = cluster.sh(f"cd {TREE}; {answer}{line}", service=HOST, check=False)
        assert done.returncode == 0 or "Already existing account ops" in done.stdout, (
            f"{line}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )


def install(cluster: Cluster) -> None:
    """Follows the page on a host that has never seen rltuned (only the venv's dependencies are there: no network)."""
    # The testbed's user goes, here and in Slurm; the page makes it again, with the id that slurmctld's host knows it
    # by.
    cluster.run(["sacctmgr", "-i", "delete", "user", OPERATOR], check=False)
    fresh = (
        f"userdel -r {OPERATOR} 2>/dev/null; rm -rf /etc/rltuned; mkdir -p /run/sysusers.d; "
        "echo 'r - 2010-2010' >/run/sysusers.d/00-site.conf"
    )
    cluster.sh(fresh, service=HOST)
    follow(cluster, *(f"{number}. " for number in range(1, 6)))


@pytest.fixture(scope="module")
def installed(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    cluster = clusters.get("24.11")
    cluster.reset()
    try:
        # Slurm's RPC limiter would make each of these tests wait for the tokens that the one before has used up.
        with cluster.conf(SlurmctldParameters=None):
            # What the report has to replay: 32 jobs at least.
            ended = cluster.submit_many([("carol", "-p", "gpu", "--gres=gpu:1", "-t", "10")] * 40, command="true")
            cluster.wait_accounted(ended)
            host = Host(cluster, cluster.queue_longest_first())
            cluster.start_systemd_host()
            copy_tree(cluster, tmp_path_factory.mktemp("tree") / "rltuned")
            install(cluster)
            yield host
    finally:
        cluster.remove_host(HOST)
        cluster.run(["sacctmgr", "-i", "add", "user", OPERATOR, "account=ops", "adminlevel=operator"], check=False)
        cluster.reset()


@pytest.fixture
def host(installed: Host) -> Iterator[Host]:
    if not installed.cluster.slurmctld.running():
        installed.cluster.slurmctld.start()
    installed.clean()
    yield installed
    if not installed.cluster.slurmctld.running():
        installed.cluster.slurmctld.start()


def test_a_host_installed_as_the_page_says_runs_the_daemon_as_its_own_user(host: Host):
    host.sh(f"cp {TREE}/deploy/config.toml /etc/rltuned/config.toml")
    assert host.sh(f"getent passwd {OPERATOR}").strip().endswith("rltuned daemon:/var/lib/rltuned:/usr/sbin/nologin")
    assert host.owners() == ["root 755", "rltuned 750", "rltuned 750"]
    for unit in ("rltuned.service", "rltuned-deadman.timer"):
        assert host.systemctl("is-enabled", unit).stdout.strip() == "enabled"
    # Type=notify: start returns when the daemon has said READY.
    host.systemctl("start", "rltuned")
    assert host.show("ActiveState") == "active"
    assert host.sh(f"ps -o user= -p {host.show('MainPID')}").strip() == OPERATOR
    wait_until(lambda: host.events("cycle.done"), "the first cycle is in the journal")
    done = host.events("cycle.done")[0]
    assert done["outcome"] == "done"
    assert done["stage"] == "shadow"
    assert done["pending"] == len(host.jobs)
    assert host.show("StatusText").startswith(f"shadow: {len(host.jobs)} pending, {len(host.jobs)} managed")
    assert host.restored()


def test_a_started_unit_steers_the_queue_with_the_shipped_model_and_the_integer_program(host: Host):
    # All the hardening is on: NumPy, GLPK, munge and Slurm's commands must work inside it.
    host.configure(policy="model", more='[metrics]\nlisten = "127.0.0.1:9815"\n[placement]\napply = "oversubscribe"\n')
    # On a full cluster no job can start now, so there is nothing to solve: GLPK solves a problem of its own.
    host.drop_in("rltuned.service", f"[Service]\nExecStartPre={PYTHON} -c '{SOLVES}'\n")
    host.start_steering()
    wait_until(lambda: host.events("cycle.done"), "the first cycle is in the journal")
    done = host.events("cycle.done")[0]
    assert done["outcome"] == "done"
    assert set(done["changes"]) == {"applied"}
    pid = host.show("MainPID")
    status = dict(re.findall(r"(?m)^(\w+):\s+(\S+)", host.sh(f"cat /proc/{pid}/status")))
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    mounts = {line.split()[1]: line.split()[3] for line in host.sh(f"cat /proc/{pid}/mounts").splitlines()}
    assert mounts["/"].startswith("ro")
    assert mounts["/var/lib/rltuned"].startswith("rw")
    assert "OPENBLAS_NUM_THREADS=1" in host.sh(f"tr '\\0' '\\n' </proc/{pid}/environ").split()
    metrics = host.sh("curl -sf http://127.0.0.1:9815/metrics")
    assert 'rltuned_stage{stage="active"} 1.0' in metrics
    assert re.search(r'rltuned_placements_total\{outcome="infeasible"\} [1-9]', metrics), metrics


@pytest.fixture
def simulate(host: Host) -> None:
    """Numba, installed with the page's command. It stays: without the unit's drop-in nothing can use it."""
    if host.cluster.sh(f"{PYTHON} -c 'import numba'", service=HOST, check=False).returncode:
        wheels = "/root/wheels"  # the host has no network; the page's pip finds there what it would download
        host.cluster.copy_in(simulate_wheels("3.13"), wheels, service=HOST)
        pip = page_commands("Start times")[0]
        host.sh(f"cd {TREE}; export PIP_NO_INDEX=1 PIP_FIND_LINKS={wheels}; {pip}; rm -rf {wheels}")


def test_the_weekly_report_is_a_page_without_names_that_everybody_may_read(host: Host, simulate: None):
    host.configure(stage="shadow")
    host.systemctl("start", "rltuned")
    wait_until(lambda: len(host.events("cycle.done")) > 1, "two cycles are in the decision log")
    for line in (line for line in page_commands("5. ") if "rltuned-report" in line):
        host.sh(f"cd {TREE}; {line}")
    done = host.systemctl("start", "rltuned-report.service", check=False)
    assert done.returncode == 0, host.journal("rltuned-report.service")
    folder = "/var/lib/rltuned-report"
    assert host.owners(folder, f"{folder}/index.html") == [f"{OPERATOR} 755", f"{OPERATOR} 644"]
    made = json.loads(host.sh(f"cat {folder}/report.json"))
    assert made["log"]["cycles"]["done"] > 1
    assert made["replay"], host.journal("rltuned-report.service")
    page = host.sh(f"cat {folder}/index.html")
    assert "<svg" in page
    assert [name for name in (*USERS, "physics", "biology") if name in page] == []
    assert host.restored()


def test_the_nightly_learning_renews_the_verdict_that_the_daemon_goes_by(host: Host, simulate: None):
    store, unit = "/var/lib/rltuned-models", "rltuned-learn.service"
    host.sh(f"rm -rf {store}")
    # Forty jobs are far too few for the windows of a real night; and without TensorFlow there is no candidate.
    command = f"{RLTUNED} learn --store {store} --from-sacct 1 --window 2 --shares 0.5"
    host.drop_in(unit, f"[Service]\nExecStart=\nExecStart={command}\n")
    host.configure(stage="shadow")
    host.systemctl("start", "rltuned")
    policy = re.search(r"```toml\n\[policy\]\n(.*?)```", LEARNING.read_text(), re.DOTALL)
    assert policy is not None
    text = STEERING.format(stage="shadow", policy="sjf").replace('name = "sjf"\n', policy[1])
    host.cluster.write_file("/etc/rltuned/config.toml", text, service=HOST)
    for line in page_commands("Setting it up", LEARNING):
        host.sh(f"cd {TREE}; {line}")
    assert host.systemctl("is-enabled", "rltuned-learn.timer").stdout.strip() == "enabled"
    assert host.show("ExecMainStatus", unit) in {"0", "14"}, "14: Slurm's own order is the verdict"
    assert "No candidate: TensorFlow is not installed" in host.journal(unit)
    assert host.owners(store, f"{store}/current/verdict.json") == [f"{OPERATOR} 755", f"{OPERATOR} 644"]
    wait_until(lambda: [event["version"] for event in host.events("model.taken")] == [1], "the daemon has taken it")
    # The next night: nobody reloads the daemon.
    host.systemctl("start", unit)
    wait_until(lambda: len(host.events("model.taken")) == 2, "the daemon has taken the new verdict")
    assert not host.events("model.refused")
    listed = host.cluster.sh(f"{RLTUNED} model list --json", service=HOST, user=OPERATOR).stdout
    (one,) = json.loads(listed)
    assert (one["in_force"], one["origin"]) == (True, "shipped: general")
    assert one["verdict"] in {"model", "saf", "slurm"}


def test_users_see_why_their_own_jobs_wait_and_nothing_of_others(host: Host):
    shared = "/srv/rltuned-users"
    host.sh(f"install -d -o {OPERATOR} -g {OPERATOR} -m 711 {shared}")
    host.drop_in("rltuned.service", f"[Service]\nReadWritePaths={shared}\n")
    host.configure(more=f'[users]\ndirectory = "{shared}"\n')
    mine, other = host.jobs[0], host.cluster.submit(USERS[1], "--gres=gpu:1", "-t", "30")
    host.cluster.wait_sprio([other])
    host.start_steering()
    # As on a login node: no configuration but the place.
    host.cluster.write_file("/tmp/users.toml", f'[users]\ndirectory = "{shared}"\n', service=HOST)

    def explain(*words: object) -> subprocess.CompletedProcess[str]:
        script = f"rltuned explain {' '.join(map(str, words))} --config /tmp/users.toml --json"
        return host.cluster.sh(script, service=HOST, user=USERS[0], check=False)

    wait_until(lambda: explain().returncode == 0, "the record is published")
    shown = [job["job_id"] for job in json.loads(explain().stdout)["jobs"]]
    assert sorted(shown) == host.jobs
    assert json.loads(explain(mine).stdout)["jobs"][0]["job_id"] == mine
    refused = explain(other)
    assert refused.returncode == 16
    assert json.loads(refused.stdout)["jobs"] == []
    for user, readable in ((USERS[0], True), (USERS[1], False)):
        look = f"cat {shared}/$(id -u {user})/jobs.json"
        assert bool(host.cluster.sh(look, service=HOST, user=USERS[0], check=False).stdout) is readable
    host.sh(f"rm -rf {shared}")
    host.cluster.cancel(other)


def test_the_unit_with_its_drop_in_forecasts_start_times_and_without_it_says_what_is_missing(
    host: Host, simulate: None
):
    host.configure(policy="model")
    pip, *drop_in, reload, restart = page_commands("Start times")
    assert "pip install" in pip
    assert [reload, restart] == ["systemctl daemon-reload", "systemctl restart rltuned"]
    # Numba alone is not enough: the unit forbids machine code made at run time. The queue is ordered all the same.
    host.start_steering()
    wait_until(lambda: host.events("forecast.failed"), "the log says that it cannot be")
    warned = host.sh(f"journalctl --no-pager -o cat -u rltuned -p warning '--after-cursor={host.cursor}'")
    assert named(warned, "forecast.failed")
    assert not named(warned, "daemon.started")
    found = host.finding("start times")
    assert found["severity"] == "warning"
    assert "rltuned-forecast.conf" in found["remedy"]
    host.sh(f"cd {TREE}; {'; '.join([*drop_in, reload, restart])}")
    # Compiled once for an installation; many times as slow where all cores are busy.
    wait_until(lambda: host.events("forecast.ready"), "the worker is ready")
    starts = "cat /var/lib/rltuned/decision.json"
    wait_until(lambda: json.loads(host.sh(starts))["starts"] is not None, "a cycle has forecast start times")
    assert json.loads(host.sh(starts))["forecast_trouble"] == ""
    assert host.steered()
    # The unit's memory limit has room for it, and it ends with the daemon.
    group = "pgrep -u rltuned -fc 'multiprocessing.*spawn_main'"
    assert int(host.sh(group)) >= 1
    host.systemctl("stop", "rltuned")
    assert host.restored()
    assert int(host.sh(group, check=False)) == 0


@pytest.mark.parametrize("unit", SERVICES)
def test_systemd_rates_the_exposure_at_most_two_and_finds_nothing_wrong(host: Host, unit: str):
    said = host.sh(f"systemd-analyze --no-pager security {unit}")
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found is not None
    assert float(found[1]) <= 2.0
    done = host.cluster.run(["systemd-analyze", "verify", "--man=no", unit], service=HOST, check=False)
    assert [line for line in done.stderr.splitlines() if "rltuned" in line] == []
    assert done.returncode == 0


def test_stopping_the_unit_restores_the_queue(host: Host):
    host.start_steering()
    host.systemctl("stop", "rltuned")
    assert host.restored(), host.journal()
    assert host.show("Result") == "success"
    assert re.search(r"\d jobs restored", host.journal())


def test_a_killed_daemon_is_restored_behind_and_started_again(host: Host):
    host.start_steering()
    before = host.show("MainPID")
    # The new daemon is not to write, so that what the queue looks like is the restore's work.
    host.configure(stage="shadow")
    host.systemctl("kill", "-s", "KILL", "rltuned")
    host.wait("restored")
    wait_until(lambda: host.show("ActiveState") == "active" and host.show("MainPID") != before, "it is started again")
    assert host.show("NRestarts") == "1"
    assert host.show("MainPID") not in {"0", before}
    assert host.restored()


def test_a_hung_daemon_is_killed_by_the_watchdog_and_the_queue_restored(host: Host):
    host.drop_in("rltuned.service", "[Service]\nWatchdogSec=10\nRestartSec=1\n")
    host.start_steering()
    before = host.show("MainPID")
    age = f"ps -o etimes= -p {before}"
    wait_until(lambda: int(host.sh(age)) > 10, "a living daemon outlives its watchdog's time")
    assert host.show("MainPID") == before
    host.configure(stage="shadow")
    host.systemctl("kill", "-s", "STOP", "--kill-whom=main", "rltuned")
    host.wait("restored")
    wait_until(lambda: host.show("ActiveState") == "active" and host.show("MainPID") != before, "it is started again")
    assert "Failed with result 'watchdog'" in host.journal()


def test_reload_takes_a_changed_configuration_and_refuses_a_broken_one(host: Host):
    host.configure(stage="shadow")
    host.systemctl("start", "rltuned")
    pid = host.show("MainPID")
    host.configure(stage="active")
    host.systemctl("reload", "rltuned")
    host.wait("steered")
    assert host.events("reload.done")

    host.cluster.write_file("/etc/rltuned/config.toml", "[cycle]\nstage = 'shadow'\nintervall = 1\n", service=HOST)
    refused = host.systemctl("reload", "rltuned", check=False)
    assert refused.returncode != 0
    assert "config.toml:3: unknown key 'cycle.intervall'" in host.journal()
    # A signal that did not ask first is no way around it.
    host.systemctl("kill", "-s", "HUP", "--kill-whom=main", "rltuned")
    wait_until(lambda: host.events("reload.refused"), "the daemon refuses it too")
    cycles = len(host.events("cycle.done"))
    wait_until(lambda: len(host.events("cycle.done")) > cycles, "it goes on")
    assert host.events("cycle.done")[-1]["stage"] == "active"
    assert host.show("ActiveState") == "active"
    assert host.show("MainPID") == pid
    assert host.steered()


def test_the_dead_man_timer_leaves_a_living_daemon_alone_and_restores_behind_a_frozen_one(host: Host):
    # The unit cannot help: the daemon runs outside of it. Nor can the model: it is gone.
    program = host.cluster.background([RLTUNED, "run"], user=OPERATOR, service=HOST)
    host.wait("steered")
    host.sh("mv $(echo /opt/rltuned/venv/lib/python3*/site-packages/rltuned/models) /opt/models-taken-away")
    try:
        host.fast_timer()
        host.systemctl("start", "rltuned-deadman.timer")
        alive = "The daemon is alive; nothing was done."
        wait_until(lambda: host.journal("rltuned-deadman.service").count(alive) >= 2, "the timer goes off, and again")
        assert host.steered()

        program.kill("STOP")
        # Five minutes pass: no test waits for them, the last sign of life is made older instead.
        older = "import json,sys; p=sys.argv[1]; d=json.load(open(p)); d['monotonic']-=600; json.dump(d,open(p,'w'))"
        for folder in ("/var/lib/rltuned", "/run/rltuned"):
            host.cluster.run(["python3", "-c", older, f"{folder}/heartbeat.json"], service=HOST)
        host.wait("restored")
        # On a slow machine the timer may need two turns, and says each time how many it did.
        said = re.compile(r"[1-8] jobs restored")
        wait_until(lambda: said.search(host.journal("rltuned-deadman.service")), "the timer's service says so")
        assert host.show("Result", "rltuned-deadman.service") == "success"
        assert program.returncode() is None, "the frozen daemon still holds its lock"
    finally:
        host.sh("mv /opt/models-taken-away $(echo /opt/rltuned/venv/lib/python3*/site-packages/rltuned)/models")


def test_a_queue_that_could_not_be_restored_at_stop_is_restored_by_the_timer_when_slurmctld_is_back(host: Host):
    host.start_steering()
    host.cluster.slurmctld.stop()
    host.systemctl("stop", "rltuned")
    assert host.show("ActiveState") == "inactive"
    host.fast_timer()
    host.systemctl("start", "rltuned-deadman.timer")
    host.cluster.slurmctld.start()
    host.wait("restored")


def test_a_host_that_boots_without_slurmctld_waits_for_it_and_then_steers(host: Host):
    host.cluster.slurmctld.stop()
    restarted = subprocess.run(
        ["docker", "restart", "-t", "30", host.cluster.container(HOST)], check=False, capture_output=True, text=True
    )
    assert restarted.returncode == 0, restarted.stderr
    booted = "systemctl is-system-running --wait"
    wait_until(lambda: host.sh(booted, check=False).strip() in {"running", "degraded"}, "the host has booted")
    # Nobody started it: it is enabled.
    wait_until(lambda: host.show("ActiveState") == "active", "the unit is up")
    wait_until(lambda: host.events("cycle.done"), "a cycle says what is wrong")
    assert host.events("cycle.done")[0]["outcome"] == "failed"
    host.cluster.slurmctld.start()
    host.wait("steered")
    assert host.show("NRestarts") == "0"


def test_the_page_s_way_to_upgrade_ends_with_a_running_daemon(host: Host):
    host.start_steering()
    before = host.show("MainPID")
    follow(host.cluster, "Upgrade")
    assert host.show("ActiveState") == "active"
    assert host.show("MainPID") not in {"0", before}
    assert re.search(r"[1-8] jobs restored", host.journal())


def test_the_page_s_way_to_uninstall_leaves_the_queue_to_slurm_and_nothing_behind(host: Host):
    host.start_steering()
    host.sh("cp -a /opt/rltuned /root/kept")
    try:
        follow(host.cluster, "Uninstall")
        assert host.restored()
        others = " ".join(f"-not -path '/{name}/*'" for name in ("root", "sys", "proc"))
        assert host.sh(f"find / -xdev -iname '*rltuned*' {others}") == ""
        assert host.sh("find /run -name '*rltuned*' -not -path '/run/systemd/*'") == ""
        assert host.sh("systemctl list-unit-files 'rltuned*' --no-legend", check=False) == ""
        assert host.sh(f"getent passwd {OPERATOR}; getent group {OPERATOR}", check=False) == ""
        assert host.cluster.run(["sacctmgr", "-nP", "show", "user", OPERATOR]).stdout.strip() == ""
    finally:
        host.sh("rm -rf /opt/rltuned && mv /root/kept /opt/rltuned")
        install(host.cluster)
