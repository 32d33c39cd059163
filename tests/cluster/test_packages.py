"""What a site installs: the wheel and the sdist, the Debian packages on a host with systemd beside a real Slurm."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from cluster.conftest import Clusters
from cluster.support import OPERATOR, PATIENCE, ROOT, locked, wait_until
from cluster.test_systemd import STEERING, Host
from testbed import built_packages, made_once, publishing

from rltuned import __version__


def run(*words: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, check=False, capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


@pytest.fixture(scope="module")
def built() -> Path:
    """A directory with the sdist, and the wheel that was made of that sdist, not of the tree."""

    def make(folder: Path) -> None:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)

    folder = made_once("sdist", make)
    assert sorted(path.name for path in folder.iterdir()) == [
        f"rltuned-{__version__}-py3-none-any.whl",
        f"rltuned-{__version__}.tar.gz",
    ]
    return folder


@pytest.fixture(scope="module")
def alone(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a new virtual environment with that wheel and what the daemon needs, as the page says."""
    venv = tmp_path_factory.mktemp("alone") / "venv"
    run(sys.executable, "-m", "venv", venv)
    lock = venv.with_name("lock")
    lock.write_text(locked("simulate"))
    run(venv / "bin/pip", "install", "-q", "--no-compile", "--require-hashes", "-r", lock)
    run(venv / "bin/pip", "install", "-q", "--no-deps", "--no-index", *built.glob("*.whl"))
    return venv / "bin"


def test_the_wheel_of_the_sdist_works_alone(alone: Path, tmp_path: Path):
    def rltuned(*words: str) -> subprocess.CompletedProcess[str]:
        # No variable of this environment: it may lead to the source tree.
        given = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "RLTUNED_STATE__DIRECTORY": str(tmp_path)}
        done = subprocess.run(
            [alone / "rltuned", *words], check=False, capture_output=True, text=True, cwd=tmp_path, env=given
        )
        assert "Traceback" not in done.stdout + done.stderr, (words, done.stderr[-2000:])
        return done

    assert rltuned("--version").stdout == f"rltuned, version {__version__}\n"
    assert "stage shadow" in rltuned("config", "check").stdout
    verified = rltuned("model", "verify", "general")
    assert verified.returncode == 0, verified.stdout
    assert "golden" in verified.stdout
    # What `config sample` prints is what is kept in deploy/ for who has no program yet.
    assert rltuned("config", "sample").stdout == (ROOT / "deploy/config.toml").read_text()
    assert rltuned("restore").returncode == 0
    (tmp_path / "config.toml").write_text(f'[slurm]\nbin_dir = "{tmp_path}"\n')
    plan = rltuned("plan", "--config", str(tmp_path / "config.toml"))
    assert plan.returncode == 5
    assert "set slurm.bin_dir" in plan.stderr
    commands = re.findall(r"(?m)^  ([a-z-]+)  ", rltuned("--help").stdout.partition("--help")[2])
    assert {"run", "doctor", "evaluate", "train"} <= set(commands)
    for command in commands:
        assert rltuned(command, "--help").returncode == 0, command


def test_what_the_lock_file_names_is_all_that_the_wheel_needs(alone: Path):
    assert run(alone / "pip", "check").stdout == "No broken requirements found.\n"


RELEASE = "24.11"
HOST = "systemd"
OLD, NEW = f"rltuned_{__version__}-1+deb13_amd64.deb", f"rltuned_{__version__}-2+deb13_amd64.deb"
SIMULATE = f"rltuned-simulate_{__version__}-1+deb13_amd64.deb"


@pytest.fixture(scope="module")
def publish() -> Path:
    """The bin directory of the environment that releases are made with."""
    return publishing()


@pytest.fixture(scope="module")
def packages() -> Path:
    """A directory with the Debian packages for Debian 13 and the RPMs, and `rltuned` as a later revision."""

    def make(folder: Path) -> None:
        for made in [built_packages("deb", "--for", "deb13"), *([built_packages("rpm")] if rpmbuild else [])]:
            shutil.copytree(made, folder, dirs_exist_ok=True)
        unpacked = folder / "unpacked"
        run("dpkg-deb", "-R", folder / OLD, unpacked)
        control = unpacked / "DEBIAN/control"
        control.write_text(control.read_text().replace("-1+deb13", "-2+deb13"))
        run("dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "-b", unpacked, folder / NEW)
        shutil.rmtree(unpacked)

    rpmbuild = shutil.which("rpmbuild")
    return made_once("packages-and-rpms" if rpmbuild else "packages", make)


@pytest.fixture
def host(clusters: Clusters, packages: Path) -> Iterator[Host]:
    """A host with systemd beside a real slurmctld that has never seen rltuned, and the packages in its /root."""
    cluster = clusters.get(RELEASE)
    cluster.reset()
    try:
        # Slurm's RPC limiter would make the test wait for tokens.
        with cluster.conf(SlurmctldParameters=None):
            host = Host(cluster, cluster.queue_longest_first())
            cluster.start_systemd_host()
            # The testbed's own; the user stays, with the id that slurmctld's host knows it by.
            host.sh("rm -rf /opt/rltuned /etc/rltuned")
            host.from_now()
            for name in (OLD, NEW, SIMULATE):
                cluster.copy_in(packages / name, f"/root/{name}", service=HOST)
            yield host
    finally:
        cluster.remove_host(HOST)
        cluster.reset()


def test_the_debian_package_from_installation_to_purge(host: Host):
    def apt(*words: str, check: bool = True) -> str:
        # No network: what the package needs is there, or apt says what is not.
        said = f"DEBIAN_FRONTEND=noninteractive apt-get {shlex.join(words)} -y -q --allow-downgrades 2>&1"
        return host.sh(f"cd /root; {said}", check=check)

    units = ("rltuned.service", "rltuned-deadman.timer")

    def active() -> list[bool]:
        return [host.show("ActiveState", unit) == "active" for unit in units]

    # What was installed by hand is in the way, and named.
    host.sh("mkdir -p /opt/rltuned/venv")
    assert "/opt/rltuned/venv is there: rltuned was installed by hand" in apt("install", f"./{OLD}", check=False)
    host.sh("rm -r /opt/rltuned; dpkg --purge rltuned 2>/dev/null", check=False)

    apt("install", f"./{OLD}")
    assert [host.systemctl("is-enabled", unit, check=False).stdout.strip() for unit in units] == ["disabled"] * 2
    assert active() == [False, False]
    assert host.owners() == ["root 755", "rltuned 750", "rltuned 750"]
    assert host.sh("rltuned --version").strip() == f"rltuned, version {__version__}"
    assert "golden" in host.sh("rltuned model verify general")
    host.sh(". /usr/share/bash-completion/completions/rltuned && complete -p rltuned")
    assert host.finding("privilege")["severity"] == "ok"

    host.configure()
    host.systemctl("enable", *units)
    host.systemctl("start", units[1])
    host.start_steering()

    # An upgrade stops what runs, and starts it again; the configuration stays.
    before, text = host.show("MainPID"), host.sh("cat /etc/rltuned/config.toml")
    apt("install", f"./{NEW}")
    assert active() == [True, True]
    assert host.show("MainPID") != before
    assert re.search(r"[1-8] jobs restored", host.journal())
    assert host.sh("cat /etc/rltuned/config.toml") == text
    # What does not run stays so; also in the other direction.
    host.systemctl("stop", "rltuned")
    apt("install", f"./{OLD}")
    assert active() == [False, True]
    host.start_steering()

    # Nobody else could give the queue back: the removal fails while slurmctld is down, and nothing changes.
    host.cluster.slurmctld.stop()
    assert "rltuned: not removed." in apt("remove", "rltuned", check=False)
    assert active() == [True, True]
    host.cluster.slurmctld.start()
    host.wait("steered")

    host.drop_in("rltuned-deadman.service", "[Service]\nExecStart=\nExecStart=false\n")
    host.systemctl("start", "rltuned-deadman.service", check=False)
    assert host.show("ActiveState", "rltuned-deadman.service") == "failed"
    apt("purge", "rltuned")
    assert host.restored()
    assert active() == [False, False]
    assert "rltuned" not in host.systemctl("--failed", "--no-legend").stdout
    host.sh("rm -r /etc/systemd/system/rltuned-deadman.service.d")
    # /home: of the testbed's own user.
    others = " ".join(f"-not -path '/{name}/*'" for name in ("root", "sys", "proc", "home"))
    assert host.sh(f"find / -xdev -iname '*rltuned*' {others}") == ""
    # The number of a user that owned files is never given to another one.
    assert host.sh("getent passwd rltuned").startswith("rltuned:")

    # A package that was removed keeps its configuration until it is purged.
    host.sh(f"cd /root && dpkg -i {OLD}")
    host.sh("echo '# ours' >>/etc/rltuned/config.toml && dpkg -r rltuned")
    assert "# ours" in host.sh("cat /etc/rltuned/config.toml; ls -d /var/lib/rltuned")
    assert host.sh("ls /opt/rltuned /usr/bin/rltuned", check=False) == ""
    host.sh("dpkg -P rltuned && ! ls /etc/rltuned /var/lib/rltuned")


def test_a_new_user_comes_to_shadow_mode_by_the_lines_of_the_readme_and_reads_no_other_page(host: Host):
    _, _, section = (ROOT / "README.md").read_text().partition("## Install it")
    lines = [line.partition("#")[0].strip() for line in section.split("```")[1].strip().splitlines()]
    assert lines[0] == "apt install ./rltuned_*.deb ./rltuned-simulate_*.deb"
    host.sh(f"rm /root/{NEW}")
    for line in [lines[0].replace("apt install", "DEBIAN_FRONTEND=noninteractive apt-get install -y -q"), *lines[1:]]:
        host.sh(f"cd /root; {line}")
    wait_until(lambda: host.events("cycle.done"), "cycles are made")
    assert {event["stage"] for event in host.events("cycle.done")} == {"shadow"}
    assert host.restored(), "nothing was written"
    assert host.show("ActiveState", "rltuned-deadman.timer") == "active"


def commands_of(*pages: str) -> dict[str, list[str]]:
    """What the pages tell one to type: the words after `rltuned`, by the command; of several forms the longest."""
    found: dict[str, list[str]] = {}
    for text in ((ROOT / page).read_text() for page in pages):
        blocks = re.findall(r"(?ms)^```\w*\n(.*?)^```", text)
        inline = re.findall(r"`([^`]+)`", re.sub(r"(?ms)^```.*?^```", "", text))
        for code in (line.partition("#")[0] for block in [*blocks, *inline] for line in block.splitlines()):
            for part in code.split("&&"):
                if written := re.fullmatch(r"(?:runuser -u rltuned -- )?rltuned ([a-z][a-z-]*.*)", part.strip()):
                    words = shlex.split(written[1])
                    found[words[0]] = max(words, found.get(words[0], []), key=len)
    return found


SMALL = {
    "gate": ["--window", "2", "--shares", "0.5", "--workers", "2"],
    "tune": ["--from-sacct", "1", "--window", "2", "--budget", "5", "--no-rltuned", "--workers", "2"],
}
"""What the jobs of the test are enough for, and two processes wherever a command may have them."""
UNPROVEN = (0, 14)
"""14: Slurm's own order is as good."""


@pytest.mark.timeout(8 * PATIENCE)  # processes that compile for half a minute and more, one after the other
def test_every_command_of_the_first_pages_works_from_the_packages_and_without_the_simulator_names_what_it_needs(
    host: Host,
):
    commands = commands_of("README.md", "docs/roll-out.md")
    assert {"doctor", "plan", "explain", "when", "restore", "gate", "report", "tune", "config"} <= set(commands)
    host.cluster.cancel_all()  # the nodes are idle again
    # `tune` wants ten windows of two jobs in the later half, `gate` likewise.
    ended = host.cluster.submit_many([("carol", "-p", "gpu", "--gres=gpu:1", "-t", "10")] * 60, command="true")
    host.cluster.wait_accounted(ended)
    host.jobs = host.cluster.queue_longest_first()

    def rltuned(*words: str, ends: Collection[int] = (0,)) -> subprocess.CompletedProcess[str]:
        # What is compiled is kept, as for the units, but for the gate, which has to do without.
        kept = [] if words[0] == "gate" else ["env", "NUMBA_CACHE_DIR=/tmp/compiled"]
        command = shlex.join(["runuser", "-u", "rltuned", "--", *kept, "rltuned", *words])
        done = host.cluster.sh(f"cd /; {command}", service=HOST, check=False)
        assert done.returncode in ends, (words, done)
        for sign in ("Traceback", "freeze_support", "worker process was killed"):
            assert sign not in done.stdout + done.stderr, (words, done)
        return done

    def all_work(*needing: str) -> None:
        """Runs them all. `needing`: those that cannot do without the simulator, which is not there."""
        for name, words in commands.items():
            # The daemon leaves a job alone for good that was given back by name.
            job = host.jobs[-1 if name == "restore" else 0]
            given = [str(job) if word == "JOBID" else word for word in words]
            ends = UNPROVEN if name in {"gate", "tune"} else (0,)
            done = rltuned(*given, *SMALL.get(name, []), ends=(1,) if name in needing else ends)
            assert ("the package rltuned-simulate" in done.stdout + done.stderr) == (
                name in needing or (name == "report" and bool(needing))
            ), (words, done)

    host.sh(f"cd /root; DEBIAN_FRONTEND=noninteractive apt-get install -y -q ./{OLD}")
    host.configure(stage="shadow")
    host.systemctl("start", "rltuned")
    wait_until(lambda: host.events("cycle.done"), "cycles are made")
    all_work("gate", "tune", "when")

    host.sh(f"cd /root; DEBIAN_FRONTEND=noninteractive apt-get install -y -q ./{SIMULATE}")
    host.from_now()  # the daemon that runs may have found half of the package
    host.systemctl("restart", "rltuned")
    wait_until(lambda: host.events("forecast.ready"), "the worker is ready")
    wait_until(lambda: rltuned("when", str(host.jobs[0]), ends=(0, 1)).returncode == 0, "start times are forecast")
    assert not host.events("forecast.failed")
    all_work()
    history = ["--from-sacct", "1", *SMALL["gate"]]
    rltuned("learn", *history, "--store", "/var/lib/rltuned/models", ends=UNPROVEN)
    trace = ["--cluster", "4x8:p100", "--out", "/var/lib/rltuned/trace.csv"]
    rltuned("traces", "generate", "philly", "--jobs", "300", *trace)
    trace = ["--cluster", "4x8:p100", "--trace", "/var/lib/rltuned/trace.csv"]
    rltuned("evaluate", *trace, "--policies", "multifactor,saf", "--windows", "2", "--window", "64", "--workers", "2")


def test_the_ansible_role_installs_configures_and_starts_it_and_changes_nothing_the_second_time(
    host: Host, packages: Path, publish: Path, tmp_path: Path
):
    # Ansible's ssh, with a container in the place of a host.
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/bash\nexec docker exec -i {host.cluster.container(HOST)} sh -c "${{@: -1}}"\n')
    ssh.chmod(0o755)
    inventory = tmp_path / "inventory"
    options = (
        f"ansible_ssh_executable={ssh} ansible_ssh_transfer_method=piped ansible_python_interpreter=/usr/bin/python3"
    )
    inventory.write_text(f"[slurm_controllers]\n{HOST} {options}\n")

    def play(configuration: str) -> subprocess.CompletedProcess[str]:
        given = {"rltuned_become": False, "rltuned_package": str(packages / OLD), "rltuned_config": configuration}
        words = [publish / "ansible-playbook", "-i", inventory, ROOT / "deploy/ansible/rltuned.yml"]
        more = {**os.environ, "ANSIBLE_PIPELINING": "1", "ANSIBLE_HOME": str(tmp_path)}
        words += ["-e", json.dumps(given)]
        return subprocess.run(words, check=False, capture_output=True, text=True, env=more)

    host.cluster.run(["sacctmgr", "-i", "modify", "user", OPERATOR, "set", "AdminLevel=None"])
    good = STEERING.format(stage="active", policy="sjf")
    done = play(good)
    assert done.returncode == 0, done.stdout[-3000:]
    host.wait("steered")
    assert host.systemctl("is-enabled", "rltuned-deadman.timer").stdout.strip() == "enabled"
    again = play(good)
    assert again.returncode == 0
    assert "changed=0" in again.stdout
    # A wrong configuration is never put in place, and the daemon runs on.
    assert "cycle.stage" in play('[cycle]\nstage = "nonsense"\n').stdout
    assert host.sh("cat /etc/rltuned/config.toml") == good
    assert host.show("ActiveState") == "active"


@pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="needs the Debian package rpm")
def test_the_rpm_has_the_files_of_the_debian_package_and_goes_without_a_trace(packages: Path, tmp_path: Path):
    (rpm,) = packages.glob("rltuned-[0-9]*.rpm")
    files = set(run("rpm", "-qpl", rpm).stdout.splitlines())
    listed = run("dpkg-deb", "-c", packages / OLD).stdout.splitlines()
    debian = {line.split()[5].removeprefix(".") for line in listed if not line.startswith("d")}

    def own(names: set[str]) -> set[str]:
        """Without what differs: the dependencies between Pythons, directories that the RPM owns, Debian's changelog."""
        differing = {"/opt/rltuned", "/etc/rltuned", "/usr/share/doc/rltuned/changelog.Debian.gz"}
        return {name for name in names if "site-packages" not in name} - differing

    assert own(files) == own(debian)
    told = ("/direct_url.json", "/uv_cache.json")
    assert not [name for name in files | debian if name.endswith(told)], "where and when it was built"
    assert run("rpm", "-qpc", rpm).stdout.split() == ["/etc/rltuned/config.toml"]
    assert "/usr/bin/python3.12" in run("rpm", "-qp", "--requires", rpm).stdout.split()
    # No Python, no systemd in there: files only.
    run("rpm", "--root", tmp_path, "-i", "--nodeps", "--noscripts", rpm)
    assert (tmp_path / "opt/rltuned/venv/bin/rltuned").read_text().startswith("#!/opt/rltuned/venv/bin/python\n")
    run("rpm", "--root", tmp_path, "-e", "--nodeps", "--noscripts", "rltuned")
    assert [path for path in tmp_path.rglob("*") if path.is_file() and not {"rpm", ".rpmdb"} & {*path.parts}] == []


def test_the_site_of_the_documentation_has_no_broken_link(publish: Path):
    run("make", "docs", f"PUBLISH={publish.parent}", "PYTHON=false", cwd=ROOT)
    page = (ROOT / "build/site/docs/installation.html").read_text()
    assert "rltuned runs on slurmctld" in page
    # The alerts lead to their sections.
    rules = (ROOT / "deploy/prometheus/rltuned.rules.yml").read_text()
    links = re.findall(r"runbook_url: https://rltuned\.example\.org/(\S+)#(\S+)", rules)
    assert len(links) == rules.count("runbook_url:") > 20
    for path, anchor in links:
        assert f'id="{anchor}"' in (ROOT / "build/site" / path).read_text(), anchor
    # Nothing is loaded from elsewhere.
    assert re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?://', page) == []
