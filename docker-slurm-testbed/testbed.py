#!/usr/bin/env python3
"""Real Slurm clusters in containers: build, bring up, load with jobs, look at, take down.

Needs Python 3.11 and nothing else; engine.sh gets the container engine. The nodes are shaped like
the paper's cluster (2 x 4 P100, 2 x 2 K80, 1 x 1 M40, stub devices), with --scale N are N nodes
of 4 GPUs in one container (--scale NxG: of G), with --profile mixed one of each kind that real
sites have. See README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import itertools
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

# Debian's packages decide the release of Slurm.
SUITES = {"22.05": "bookworm", "24.11": "trixie", "26.05": "forky"}
PACKAGES = {"22.05": "deb12", "24.11": "deb13", "26.05": "deb14"}
"""rltuned's package for each (packaging/build.py)."""
NOT_INSTALLED = frozenset({"build", "dist", "docker-slurm-testbed", "studies", "tests"})
"""Parts of the source tree that are in no wheel and no package."""
# The stages of the Dockerfile, in its order; and the image of deploy/Dockerfile.
STAGES = ("slurm", "systemd", "forecast", "prometheus")
TARGETS = (*STAGES, "daemon")
DAEMON_FILE = "deploy/Dockerfile"
SOURCE = "rltuned-testbed.source"
OPERATOR_UID = 2010
REPOSITORY = "rltuned-testbed"
DEFAULT_RELEASE = "24.11"
DEFAULT_PROJECT = "rltuned-testbed"
USERS = ("alice", "bob", "carol", "dave")
NODES_OF = {"paper": 5, "mixed": 12, "pair": 4, "site": 11}
COMPOSE_OF = {"paper": "compose.yaml", "site": "compose.mixed.yaml"}
"""Of other profiles: `compose.PROFILE.yaml`."""
TARGET_OF = {"site": "systemd"}
"""Stage of the image of a profile; "slurm" of others. rltuned's package depends on systemd."""
END_SLURMCTLD = """
pkill -TERM -x 'slurmctld(-wlm)?'
for second in $(seq 90); do
    timeout 2 scontrol ping >/dev/null
    pgrep -x 'slurmctld(-wlm)?' >/dev/null || break
    sleep 0.5
done
pkill -KILL -x 'slurmctld(-wlm)?'
true"""
"""One that is told to end between two connections may wait for another one first, on a cluster at rest for good; one
that does not end is killed after a minute and a half, as by systemd."""
SCALE_GPUS = 4
READY_SECONDS = 300


class TestbedError(Exception):
    """Something outside this program did not do what it should; the text says what."""


def say(text: str) -> None:
    """Prints a line about progress."""
    print(f"testbed: {text}", file=sys.stderr, flush=True)


def run(
    command: Sequence[str | Path],
    *,
    check: bool = True,
    env: dict[str, str] | None = None,
    text_input: str | None = None,
    timeout: float | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command and keeps its output; a failure becomes a TestbedError with its last words."""
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        env=env,
        input=text_input,
        timeout=timeout,
        cwd=cwd,
    )
    if check and done.returncode != 0:
        last_words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        message = f"{shlex.join(str(part) for part in command)} failed ({done.returncode}):\n{last_words}"
        raise TestbedError(message)
    return done


# --- images ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """What an image is built from."""

    base: str
    files: dict[str, Path]
    """By their path in the build context."""
    authority: str = "extra-ca.crt"
    """Path in the context for the certificate of this network, which leaves nothing in the image."""
    options: tuple[str, ...] = ()
    """Of `docker build`."""

    def name(self, release: str, target: str) -> str:
        """The name of an image says what it was built from: `rltuned-testbed:24.11-slurm-` and a digest.

        Two source trees that differ have two images, and no name ever moves to another image under a running cluster.
        """
        base = run(["docker", "image", "inspect", "-f", "{{.Id}}", self.base]).stdout.strip()
        digest = hashlib.sha256(" ".join([base, *self.options]).encode())
        for name, path in sorted(self.files.items()):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"\n{name} {os.access(path, os.X_OK)} {content}".encode())
        return f"{REPOSITORY}:{release}-{target}-{digest.hexdigest()[:12]}"

    def build(self, name: str) -> None:
        """Builds the image."""
        began = time.monotonic()
        say(f"building {name}")
        with tempfile.TemporaryDirectory(prefix="rltuned-testbed-") as scratch:
            context = Path(scratch)
            for part, path in self.files.items():
                copy = context / part
                copy.parent.mkdir(exist_ok=True, parents=True)
                shutil.copy(path, copy)
                # Owner-only scratch files would be another layer on another machine.
                copy.chmod(0o755 if os.access(path, os.X_OK) else 0o644)
            (context / self.authority).write_bytes(extra_authority())
            (context / self.authority).chmod(0o644)
            # An -f is relative to here.
            command = ["docker", "build", "-t", name, "--build-arg", f"BASE={self.base}", *self.options]
            for variable in ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL"):
                if os.environ.get(variable):
                    command += ["--build-arg", variable]
            # The classic builder finds a local base image without asking a registry, on every engine.
            run([*command, "."], env={**os.environ, "DOCKER_BUILDKIT": "0"}, cwd=context)
        say(f"built {name} in {time.monotonic() - began:.0f} s")


def recipe(release: str, target: str) -> Recipe:
    """Of a stage of the testbed's Dockerfile, or of the daemon's image with a wheel of this source tree."""
    base = f"debian:{SUITES[release]}-slim"
    if target in STAGES:
        parts = [path for part in ("etc", "image") for path in (HERE / part).rglob("*") if path.is_file()]
        files = {str(path.relative_to(HERE)): path for path in [HERE / "Dockerfile", *parts]}
        files["requirements.lock"] = ROOT / "requirements.lock"
        return Recipe(base, files, options=("--target", target))
    wheel = built_wheel()
    names = (DAEMON_FILE, "deploy/entrypoint.sh", "requirements.lock", ".dockerignore")
    files = {name: ROOT / name for name in names} | {f"dist/{wheel.name}": wheel}
    # The label is for who removes those of earlier states of the source: each has a copy of all packages.
    options = ("-f", DAEMON_FILE, "--build-arg", f"UID={OPERATOR_UID}", "--label", f"{SOURCE}={ROOT}")
    return Recipe(base, files, "deploy/extra-ca.crt", options)


def image_exists(name: str) -> bool:
    """Whether the engine has an image of that name."""
    return run(["docker", "image", "inspect", name], check=False).returncode == 0


@contextlib.contextmanager
def locked(what: str) -> Iterator[None]:
    """One process at a time, of all source trees of this user on this machine."""
    path = Path(tempfile.gettempdir()) / f"{REPOSITORY}-{what}.{os.getuid()}.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure_engine() -> None:
    """Installs and starts a container engine where that is possible and needed."""
    done = subprocess.run([HERE / "engine.sh"], check=False)
    if done.returncode != 0:
        message = "no container engine (see above)"
        raise TestbedError(message)


def extra_authority() -> bytes:
    """The CA bundle that this machine's own tools were told to use, or nothing."""
    for variable in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        path = os.environ.get(variable)
        if path and Path(path).is_file():
            return Path(path).read_bytes()
    return b""


def build(release: str, target: str = "slurm") -> str:
    """Builds the image of one release and target, unless it is there already. Returns its name."""
    if subprocess.run([HERE / "base-image.sh", SUITES[release]], check=False).returncode != 0:
        message = f"no base image for Slurm {release}"
        raise TestbedError(message)
    wanted = recipe(release, target)
    name = wanted.name(release, target)
    if image_exists(name):
        return name
    # The classic builder builds all stages above the wanted one. Made first, one by one, each is made only once.
    if target in STAGES[1:]:
        build(release, STAGES[STAGES.index(target) - 1])
    # Not only of one digest: what differs a little finds most of its layers made by the other.
    with locked(f"{release}-{target}"):
        if not image_exists(name):
            wanted.build(name)
            if target == "daemon":
                remove_images("--filter", f"label={SOURCE}={ROOT}", keep={name})
    return name


def remove_images(*filters: str, keep: set[str]) -> None:
    """Removes images of the testbed, but for those to keep and those that a container uses."""
    listed = run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", *filters, REPOSITORY]).stdout.split()
    used = set(run(["docker", "ps", "-a", "--format", "{{.Image}}"]).stdout.split())
    for name in sorted(set(listed) - used - keep):
        if run(["docker", "rmi", name], check=False).returncode == 0:
            say(f"removed {name}")


# --- clusters ----------------------------------------------------------------------------------


class Project:
    """One cluster: a compose project of one release."""

    def __init__(
        self, name: str, release: str, image: str, scale: int = 0, profile: str = "paper", gpus: int = SCALE_GPUS
    ) -> None:
        self.name = name
        self.release = release
        self.image = image
        self.scale, self.gpus = scale, gpus
        self.profile = "scale" if scale else profile

    def compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs compose on this project."""
        files = COMPOSE_OF.get(self.profile, f"compose.{self.profile}.yaml")
        env = {**os.environ, "RLTUNED_TESTBED_IMAGE": self.image, "RLTUNED_TESTBED_PROFILE": self.profile}
        if self.scale:
            env |= {"RLTUNED_TESTBED_SCALE": str(self.scale), "RLTUNED_TESTBED_SCALE_GPUS": str(self.gpus)}
        return run([HERE / "compose.sh", "-p", self.name, "-f", HERE / files, *arguments], env=env)

    def container(self, service: str = "ctl") -> str:
        """The id of a service's container, whatever compose called it."""
        labels = {"com.docker.compose.project": self.name, "com.docker.compose.service": service}
        filters = [part for key, value in labels.items() for part in ("--filter", f"label={key}={value}")]
        found = run(["docker", "ps", "-aq", *filters]).stdout.split()
        if not found:
            message = f"the cluster {self.name} has no container {service}: is it up?"
            raise TestbedError(message)
        return found[0]

    def execute(
        self, command: str, *, service: str = "ctl", text_input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs a shell command as root in a service's container."""
        return run(
            ["docker", "exec", "-i", self.container(service), "bash", "-c", command],
            check=check,
            text_input=text_input or "",
        )

    def install_rltuned(self) -> None:
        """Installs the source tree's rltuned in ctl, with /etc/rltuned and empty directories for its state."""
        wheel = built_wheel()
        run(["docker", "cp", wheel, f"{self.container()}:/tmp/{wheel.name}"])
        self.execute(
            f"""
            set -e
            /opt/rltuned/venv/bin/pip install -q --no-deps --no-index --force-reinstall /tmp/{wheel.name}
            rm /tmp/{wheel.name}
            rm -rf /var/lib/rltuned /run/rltuned
            install -d -m 755 /etc/rltuned
            install -d -o rltuned -g rltuned -m 700 /var/lib/rltuned /run/rltuned
            """
        )

    def install_package(self) -> None:
        """Installs the source tree's rltuned in ctl from its Debian package, in the place of what the image has."""
        package = next(built_packages("deb", "--for", PACKAGES[self.release]).glob("rltuned_*.deb"))
        run(["docker", "cp", package, f"{self.container()}:/tmp/rltuned.deb"])
        self.execute("rm -rf /opt/rltuned /{etc,var/lib,run}/rltuned; dpkg -i /tmp/rltuned.deb && rm /tmp/rltuned.deb")

    def up(self) -> None:
        """Starts the cluster and waits until every node is usable: idle, or busy where it was up already."""
        began = time.monotonic()
        self.compose("up", "-d")
        wanted = self.scale or NODES_OF[self.profile]
        usable = "0"
        while time.monotonic() - began < READY_SECONDS:
            probe = r"sinfo -h -N -o '%N %T' 2>/dev/null | sort -u | grep -cvE ' .*(unk|down|drain|inval|\*)'"
            usable = self.execute(probe, check=False).stdout.strip() or "0"
            if usable == str(wanted):
                say(f"{self.name}: Slurm {self.release}, {wanted} nodes ready after {time.monotonic() - began:.1f} s")
                return
            time.sleep(0.3)
        state = self.execute("sinfo -N -l; tail -20 /var/log/slurm/slurmctld.log", check=False)
        message = f"{self.name}: {usable} of {wanted} nodes ready after {READY_SECONDS} s\n{state.stdout}{state.stderr}"
        raise TestbedError(message)

    def down(self) -> None:
        """Removes the containers and all that was in them; once more where the engine has not let go of one yet."""
        words = ("down", "-v", "--remove-orphans", "-t", "1")
        try:
            self.compose(*words)
        except TestbedError:
            time.sleep(2.0)
            self.compose(*words)


def cluster(name: str, release: str, scale: int = 0, gpus: int = SCALE_GPUS, *, profile: str = "paper") -> Project:
    """A project with its image, which is built where it is missing."""
    return Project(name, release, build(release, TARGET_OF.get(profile, "slurm")), scale, profile, gpus)


def discover(name: str) -> Project:
    """The project of that name as it runs now: release and size are read from its containers."""
    labels = (f"label=com.docker.compose.project={name}", "label=com.docker.compose.service=ctl")
    found = run(["docker", "ps", "-aq", *(part for label in labels for part in ("--filter", label))]).stdout.split()
    if not found:
        message = f"no cluster of the name {name} is up"
        raise TestbedError(message)
    described = json.loads(run(["docker", "inspect", found[0]]).stdout)[0]["Config"]
    environment = dict(entry.split("=", 1) for entry in described["Env"])
    release = described["Image"].rpartition(":")[2].split("-")[0]
    scale = int(environment.get("TESTBED_SCALE_NODES", "0"))
    gpus = int(environment.get("TESTBED_SCALE_GPUS", SCALE_GPUS))
    return Project(name, release, described["Image"], scale, environment.get("TESTBED_PROFILE", "paper"), gpus)


# --- workload ----------------------------------------------------------------------------------

GPU_TYPES = ("p100", "p100", "p100", "k80", "k80", "m40")
MOST_OF_TYPE = {"p100": 8, "k80": 4, "m40": 1}
PER_NODE = {"p100": 4, "k80": 2, "m40": 1}


def one_job(rng: random.Random, user: str, partitions: Sequence[str], longest: int) -> str:
    """The sbatch arguments of one job of the mix. Every job can run on the paper's cluster."""
    arguments = [f"-p {rng.choices(partitions, weights=[6, *[1] * (len(partitions) - 1)])[0]}"]
    kind = rng.choice(GPU_TYPES)
    per_node, most = PER_NODE[kind], MOST_OF_TYPE[kind]
    shape = rng.random()
    if arguments[0] == "-p k80":
        kind, per_node, most = "k80", 2, 4
    if shape < 0.12:  # no GPU at all
        arguments.append(f"-n {rng.choice((1, 2, 8))}")
    elif shape < 0.45:  # typed, on one node
        arguments.append(f"--gres=gpu:{kind}:{rng.randint(1, per_node)}")
    elif shape < 0.65:  # any type
        arguments.append(f"--gres=gpu:{rng.randint(1, 2)}")
    elif shape < 0.8:  # --gpus: Slurm chooses the nodes
        arguments.append(f"--gpus={kind}:{rng.randint(1, most)}")
    elif shape < 0.92 and most > per_node:  # two whole nodes
        arguments.append(f"-N 2 --gres=gpu:{kind}:{per_node}")
    else:
        arguments.append(f"-n {rng.choice((1, 2))} --gpus-per-task=1")
    arguments.append(f"-c {rng.choice((1, 2, 4))}")
    if rng.random() < 0.3:
        arguments.append(f"--mem={rng.choice((2000, 8000, 32000))}")
    arguments.append(f"-t {rng.choice((5, 10, 30, 60, 120, 600, 1440))}")
    arguments.append(f"--qos={rng.choices(('normal', 'high', 'low'), weights=(6, 2, 2))[0]}")
    extra = rng.random()
    if extra < 0.08:
        arguments.append(f"--array=1-{rng.randint(2, 6)}%2")
    elif extra < 0.14:
        arguments.append("${last:+--dependency=afterany:$last}")
    elif extra < 0.18:
        arguments.append("--begin=now+1hour")
    elif extra < 0.24:
        arguments.append(f"--nice={rng.randint(1, 500)}")
    elif extra < 0.28:
        arguments.append("--constraint=gpu")
    if user == "bob" and rng.random() < 0.1:
        arguments.append("--account=capped")
    return " ".join(arguments) + f" --wrap='sleep {rng.randint(max(1, longest // 10), longest)}'"


def workload_script(jobs: int, seed: int, *, scale: bool = False, longest: int = 60) -> str:
    """A shell script (for root, in ctl) that submits the mix, one loop per user side by side.

    The same seed gives the same jobs; which user's job gets which id is up to the scheduler of the
    operating system. Prints the job ids.
    """
    rng = random.Random(seed)  # noqa: S311  # a workload to repeat, no secret
    partitions = ("gpu", "share", "urgent") if scale else ("gpu", "share", "force", "excl", "urgent", "k80", "endless")
    scripts: dict[str, list[str]] = {user: ["cd /tmp", "last="] for user in USERS}
    for number in range(jobs):
        user = USERS[number % len(USERS)]
        arguments = one_job(rng, user, partitions, longest)
        if scale:
            for kind in ("k80", "m40"):
                arguments = arguments.replace(f"gpu:{kind}:", "gpu:p100:").replace(f"--gpus={kind}:", "--gpus=p100:")
        sbatch = f"sbatch --parsable --uid={user} -o /dev/null -J job{number} {arguments}"
        scripts[user].append(f"last=$({sbatch}) && echo $last")
    lines = ["set -u"]
    # Root submits in the users' names: the rate limiter would let each of them have two jobs a second.
    lines += [f"bash -c {shlex.quote(chr(10).join(script))} &" for script in scripts.values()]
    return "\n".join([*lines, "wait"]) + "\n"


def submit_workload(project: Project, jobs: int, seed: int, longest: int) -> list[int]:
    """Submits the mix and returns the job ids, ascending. A refused job is an error."""
    script = workload_script(jobs, seed, scale=bool(project.scale), longest=longest)
    done = project.execute("bash -s", text_input=script)
    ids = sorted(int(word.split(";")[0]) for word in done.stdout.split())
    if len(ids) != jobs:
        message = f"{len(ids)} of {jobs} jobs were accepted:\n{done.stderr[-2000:]}"
        raise TestbedError(message)
    return ids


# --- the daemon, as an operator installs it ---

METRICS_PORT = 9815
PROMETHEUS_PORT = 9090
# What Prometheus' own page of graphs opens with. Grafana's dashboards (deploy/grafana) ask for more of the same.
PANELS = (
    '{__name__=~"rltuned_(pending|managed|raised)_jobs"}',
    "rltuned:job_wait_seconds:mean_1d",
    "sum by (outcome) (increase(rltuned_changes_total[5m]))",
)
CONFIGURATION = f"""\
# The testbed's rltuned. Every key is explained by `rltuned config sample`.
[cycle]
# The RPC limiter lets about 40 changes into each cycle, the head of the queue first.
interval = 60.0
stage = "active"

[metrics]
# Not only the loopback: the machine that runs the containers looks in from outside.
listen = "0.0.0.0:{METRICS_PORT}"

[log]
format = "text"
"""

# As the package's unit and its sysusers and tmpfiles entries would do it: a user of its own (it is
# an operator in slurmdbd), a state directory that only it can read, the daemon started as it.
CONFIGURE = """
set -e
install -o rltuned -g rltuned -m 640 /dev/null /var/log/rltuned.log
ln -sf /opt/rltuned/venv/bin/rltuned /usr/local/bin/rltuned
cat >/etc/rltuned/config.toml
runuser -u rltuned -- rltuned config check
"""
STOP = 'while pkill -u rltuned -f "rltuned run"; do sleep 0.2; done'
"""Ends the daemon, which first finishes its cycle."""
UNDO = f"{STOP}; runuser -u rltuned rltuned restore"
"""What `systemctl stop rltuned` does on a host with systemd."""
START = """
STOP
runuser -u rltuned -- bash -c 'nohup setsid rltuned run >>/var/log/rltuned.log 2>&1 </dev/null &'
for attempt in $(seq 300); do
    curl -sf -o /dev/null http://127.0.0.1:METRICS_PORT/metrics && exit 0
    sleep 0.2
done
tail -30 /var/log/rltuned.log >&2
exit 1
""".replace("METRICS_PORT", str(METRICS_PORT)).replace("STOP", STOP)


def project_python() -> str:
    """The project's own Python: the .venv that `make venv` makes, or the one that this runs in."""
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists():
        return str(python)
    if importlib.util.find_spec("build") is None:
        message = "the project's .venv is missing: run `make venv` first"
        raise TestbedError(message)
    return sys.executable


def made_once(what: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` has filled from this source tree; made again only when a file of the tree has changed."""
    digest = hashlib.sha256()
    for part in sorted(ROOT.iterdir()):
        if part.name.startswith(".") or part.name in NOT_INSTALLED:
            continue
        for path in [part] if part.is_file() else sorted(part.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(ROOT)} {os.access(path, os.X_OK)}\n".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    folder = ROOT / "build/testbed" / what / digest.hexdigest()[:12]
    with locked(what):
        if not folder.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
            unfinished = folder.with_name("unfinished")
            unfinished.mkdir(parents=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder


def built_wheel() -> Path:
    """The wheel of the source tree, built with the project's Python."""

    def make(folder: Path) -> None:
        run([project_python(), "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT])

    return next(made_once("wheel", make).glob("*.whl"))


def publishing() -> Path:
    """The directory with the programs that releases are made with."""
    with locked("publish"):
        run(["make", "-C", ROOT, "build/publish/.installed"])
    return ROOT / "build/publish/bin"


def built_packages(kind: str, *options: str) -> Path:
    """A folder with packages of the source tree: what packaging/build.py makes of its wheel."""

    def make(folder: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{publishing()}:{os.environ['PATH']}"}
        words = [project_python(), ROOT / "packaging/build.py", kind, *options]
        run([*words, "--wheel", built_wheel(), "--out", folder], env=env)

    return made_once("-".join([kind, *options[1:]]), make)


def install_and_start(project: Project) -> str:
    """Installs the source tree's rltuned in ctl and starts it; returns the address of its metrics."""
    project.install_rltuned()
    project.execute(CONFIGURE, text_input=CONFIGURATION)
    project.execute(START)
    address = project.execute("hostname -i").stdout.split()[0]
    return f"http://{address}:{METRICS_PORT}/metrics"


def start_prometheus(project: Project) -> str:
    """Adds a Prometheus that scrapes rltuned by the shipped rules; returns the address of its graphs."""
    image = build(DEFAULT_RELEASE, "prometheus")
    name = f"{project.name}-prometheus"
    subprocess.run(["docker", "rm", "-f", name], check=False, capture_output=True)
    # compose takes it for one of its own that its file does not name: `testbed down` removes it.
    labels = {"project": project.name, "service": "prometheus", "oneoff": "False", "config-hash": "none"}
    marked = [part for key, value in labels.items() for part in ("--label", f"com.docker.compose.{key}={value}")]
    run(["docker", "run", "-d", "--init", "--name", name, "--network", f"{project.name}_default", *marked, image])
    shipped = ROOT / "deploy" / "prometheus"
    scrape = (shipped / "scrape.yml").read_text().replace("localhost:9815", f"ctl:{METRICS_PORT}")
    rules = shipped / "rltuned.rules.yml"
    run(["docker", "cp", rules, f"{project.container('prometheus')}:/tmp/{rules.name}"])
    project.execute(START_PROMETHEUS, service="prometheus", text_input=f"rule_files: [{rules.name}]\n{scrape}")
    address = project.execute("hostname -i", service="prometheus").stdout.split()[0]
    graphs = ((f"g{at}.expr", expression) for at, expression in enumerate(PANELS))
    asked = [*graphs, *((f"g{at}.{key}", value) for at in range(len(PANELS)) for key, value in GRAPH.items())]
    return f"http://{address}:{PROMETHEUS_PORT}/classic/graph?{urllib.parse.urlencode(asked)}"


GRAPH = {"tab": "0", "range_input": "1h"}
START_PROMETHEUS = f"""
cat >/tmp/prometheus.yml
nohup prometheus --config.file=/tmp/prometheus.yml --storage.tsdb.path=/tmp/data >/tmp/prometheus.log 2>&1 </dev/null &
for attempt in $(seq 100); do
    promtool check ready --url=http://127.0.0.1:{PROMETHEUS_PORT} >/dev/null 2>&1 && exit
    sleep 0.2
done
tail /tmp/prometheus.log >&2
exit 1
"""

HOW_TO_LOOK = """
A Slurm {release} of five nodes is up, {jobs} jobs of four users are in its queue, and rltuned steers it.

  its sentences       docker-slurm-testbed/testbed exec{name} tail -f /var/log/rltuned.log
  the queue           docker-slurm-testbed/testbed exec{name} squeue -o '%.8i %.10P %.6u %.8q %.10Q %.4t %R'
  why is a job there  docker-slurm-testbed/testbed exec{name} --user rltuned rltuned explain {example}
  the next plan       docker-slurm-testbed/testbed exec{name} --user rltuned rltuned plan
  is all well         docker-slurm-testbed/testbed exec{name} --user rltuned rltuned doctor
  undo everything     docker-slurm-testbed/testbed exec{name} bash -c '{undo}'
  metrics             curl {metrics}
  graphs and alerts   {graphs}
  more jobs           docker-slurm-testbed/testbed workload{name} --jobs 100 --seed 2
  a shell in it       docker-slurm-testbed/testbed exec{name}
  take it down        docker-slurm-testbed/testbed down{name}
"""


# --- commands ----------------------------------------------------------------------------------


def command_build(options: argparse.Namespace) -> int:
    """`testbed build`: side by side, which is measured: three images in half the time, on two cores."""
    ensure_engine()
    wanted = dict.fromkeys(options.slurm or SUITES, options.target)
    if options.all:
        wanted = {release: TARGETS if release == DEFAULT_RELEASE else STAGES[:2] for release in SUITES}
    # The stages of a release one after the other, each is the cache of the next. The daemon's image shares none of
    # them.
    chains = [
        (release, chain)
        for release, targets in wanted.items()
        for chain in (
            [target for target in STAGES if target in targets],
            [target for target in targets if target not in STAGES],
        )
    ]
    with ThreadPoolExecutor() as pool:
        made = pool.map(lambda chain: [build(chain[0], target) for target in chain[1]], chains)
        for name in itertools.chain.from_iterable(made):
            print(name, flush=True)
    return 0


def command_prune(_: argparse.Namespace) -> int:
    """`testbed prune`: an image that a container uses stays, and so do those of this state of the source."""
    ensure_engine()
    own = set()
    for release, target in itertools.product(SUITES, STAGES):
        of = recipe(release, target)
        if image_exists(of.base):
            own.add(of.name(release, target))
    remove_images(keep=own)
    return 0


def command_up(options: argparse.Namespace) -> int:
    """`testbed up`."""
    ensure_engine()
    cluster(options.project, options.slurm or DEFAULT_RELEASE, *options.scale, profile=options.profile).up()
    return 0


def command_down(options: argparse.Namespace) -> int:
    """`testbed down`; a cluster that is not up is no error."""
    try:
        project = discover(options.project)
    except TestbedError as error:
        say(str(error))
        # A "down" that was interrupted leaves the network and the volume. No image is needed to remove them.
        project = Project(options.project, DEFAULT_RELEASE, "none")
    project.down()
    return 0


def command_exec(options: argparse.Namespace) -> int:
    """`testbed exec`; the exit status is that of the command."""
    container = discover(options.project).container(options.service)
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    user = ["-u", options.user] if options.user else []
    return subprocess.run(
        ["docker", "exec", "-i", *terminal, *user, container, *(options.command or ["bash"])], check=False
    ).returncode


def command_logs(options: argparse.Namespace) -> int:
    """`testbed logs`."""
    container = discover(options.project).container(options.service)
    follow = ["-f"] if options.follow else []
    return subprocess.run(["docker", "logs", *follow, container], check=False).returncode


def command_status(options: argparse.Namespace) -> int:
    """`testbed status`."""
    project = discover(options.project)
    say(f"{project.name}: Slurm {project.release}")
    show = "sinfo -N -o '%N %T %G %C' | sort -u; echo; squeue -h -o '%T %P %q' | sort | uniq -c"
    print(project.execute(show).stdout, end="")
    return 0


def command_workload(options: argparse.Namespace) -> int:
    """`testbed workload`."""
    began = time.monotonic()
    ids = submit_workload(discover(options.project), options.jobs, options.seed, options.longest)
    say(f"submitted {len(ids)} jobs in {time.monotonic() - began:.1f} s (ids {ids[0]} to {ids[-1]})")
    return 0


def become(python: str, script: str, arguments: Sequence[str]) -> NoReturn:
    """Goes on as another program of this folder. Not beside it: it removes its clusters when it is interrupted."""
    sys.stdout.flush()
    os.execv(python, [python, str(HERE / script), *arguments])  # noqa: S606 - no shell is what is wanted


def command_replay(options: argparse.Namespace) -> int:
    """`testbed replay`: replay.py, which needs the project's .venv (the others need nothing)."""
    become(project_python(), "replay.py", options.arguments)


def command_soak(options: argparse.Namespace) -> int:
    """`testbed soak`: soak.py."""
    become(sys.executable, "soak.py", options.arguments)


def command_lending(options: argparse.Namespace) -> int:
    """`testbed lending`: lending.py."""
    become(sys.executable, "lending.py", options.arguments)


def command_site(options: argparse.Namespace) -> int:
    """`testbed site`: site_soak.py."""
    become(sys.executable, "site_soak.py", options.arguments)


def command_ab(options: argparse.Namespace) -> int:
    """`testbed ab`: ab.py, which needs the project's .venv, too."""
    become(project_python(), "ab.py", options.arguments)


def command_demo(options: argparse.Namespace) -> int:
    """`testbed demo`: a cluster with a queue, steered by the source tree's rltuned."""
    ensure_engine()
    release = options.slurm or DEFAULT_RELEASE
    project = Project(options.project, release, build(release))
    project.up()
    ids = submit_workload(project, options.jobs, options.seed, options.longest)
    say(f"submitted {len(ids)} jobs")
    metrics = install_and_start(project)
    graphs = start_prometheus(project)
    # The last one is most likely still pending.
    name = "" if options.project == DEFAULT_PROJECT else f" --project {options.project}"
    print(
        HOW_TO_LOOK.format(
            release=release,
            jobs=len(ids),
            example=ids[-1],
            metrics=metrics,
            graphs=graphs,
            name=name,
            undo=UNDO,
        )
    )
    return 0


def nodes_and_gpus(text: str) -> tuple[int, int]:
    """Of `--scale`: 32, or 16x8. A ValueError is the parser's."""
    nodes, _, gpus = text.partition("x")
    return int(nodes), int(gpus or SCALE_GPUS)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="testbed", description=__doc__.split("\n\n", maxsplit=1)[0])
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, function: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(function=function)
        # compose lowercases the names of its projects
        sub.add_argument(
            "--project", type=str.lower, default=DEFAULT_PROJECT, help="name of the cluster (default: %(default)s)"
        )
        return sub

    sub = add("build", command_build, "build the images that are missing, and print their names")
    sub.add_argument("--slurm", choices=SUITES, nargs="+", help="releases (default: all)")
    sub.add_argument("--target", choices=TARGETS, nargs="+", default=["slurm"])
    sub.add_argument("--all", action="store_true", help="all that the tests need, whatever the other options say")
    add("prune", command_prune, "remove the images of other states of the source that no container uses")
    sub = add("up", command_up, "bring a cluster up and wait until its nodes are idle")
    sub.add_argument("--slurm", choices=SUITES, help=f"release (default: {DEFAULT_RELEASE})")
    sub.add_argument(
        "--scale",
        type=nodes_and_gpus,
        default=(0, SCALE_GPUS),
        metavar="N[xGPUS]",
        help=f"N nodes in one container instead, of {SCALE_GPUS} GPUs unless it says",
    )
    sub.add_argument(
        "--profile",
        choices=NODES_OF,
        default="paper",
        help="mixed: kinds of node that real sites have; pair: two controllers; site: a site's settings, all at once",
    )
    sub = add("demo", command_demo, "bring a cluster up, submit a workload, install rltuned and let it steer")
    sub.add_argument("--slurm", choices=SUITES, help=f"release (default: {DEFAULT_RELEASE})")
    sub.add_argument("--jobs", type=int, default=300)
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--longest", type=int, default=120, help="longest run time in seconds (default: %(default)s)")
    add("down", command_down, "remove the cluster and all that is in it")
    sub = add("exec", command_exec, "run a command in one of its containers (default: a shell in ctl)")
    sub.add_argument("--service", default="ctl")
    sub.add_argument("--user", help="user to run it as (default: root)")
    sub.add_argument("command", nargs=argparse.REMAINDER)
    sub = add("logs", command_logs, "show what a container wrote (ctl: slurmctld's log)")
    sub.add_argument("--service", default="ctl")
    sub.add_argument("-f", "--follow", action="store_true")
    add("status", command_status, "nodes and queue at a glance")
    sub = commands.add_parser(
        "replay", add_help=False, help="run a workload with every time written down, for the simulator"
    )
    sub.set_defaults(function=command_replay)
    sub = commands.add_parser(
        "soak", add_help=False, help="seeded faults for so many minutes, and what holds after each"
    )
    sub.set_defaults(function=command_soak)
    sub = commands.add_parser(
        "lending", add_help=False, help="a long queue for an hour: writes, raised jobs, and the book of loans"
    )
    sub.set_defaults(function=command_lending)
    sub = commands.add_parser("site", add_help=False, help="the same on a site with everything, from its package")
    sub.set_defaults(function=command_site)
    sub = commands.add_parser(
        "ab", add_help=False, help="the same jobs on clusters of their own, with and without rltuned"
    )
    sub.set_defaults(function=command_ab)
    sub = add("workload", command_workload, "submit a mixed workload from several users")
    sub.add_argument("--jobs", type=int, default=300)
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--longest", type=int, default=60, help="longest run time in seconds (default: %(default)s)")
    return top


def main() -> int:
    """Runs one command; 0, 1 with the reason on stderr, or the status of what `exec` ran."""
    options, more = parser().parse_known_args()
    if options.function in {command_replay, command_soak, command_lending, command_site, command_ab}:
        options.arguments = more
    elif more:
        parser().error(f"unrecognized arguments: {' '.join(more)}")
    try:
        return int(options.function(options))
    except TestbedError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
