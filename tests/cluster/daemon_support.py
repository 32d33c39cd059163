"""The installed rltuned on a test cluster: configured, run and read as an operator would.

`Rltuned(cluster)` installs the source tree's wheel in `ctl`, gives its user an empty state directory and
writes a configuration; its methods are the commands. `start()` runs the daemon in the background.

    with Rltuned(cluster, policy={"name": "saf"}) as rltuned:
        done = rltuned.cycle()                     # `rltuned run --once`
        assert done.outcomes == {"applied": 12}
        rltuned.restore()
"""

import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from cluster.support import OPERATOR, PYTHON, RLTUNED, Background, Cluster, wait_until

from rltuned.core.config import toml_value

SLURM_USER = "slurm"
CONFIG = "/etc/rltuned/config.toml"
STATE = "/var/lib/rltuned"
MIRROR = "/run/rltuned"
Sections = dict[str, dict[str, Any]]

# What every test wants, unless it says otherwise: decisions reach Slurm, and each change is in the log.
DEFAULTS: Sections = {
    "cycle": {"stage": "active", "interval": 3600.0},
    "metrics": {"listen": "127.0.0.1:0"},
    "log": {"format": "json", "level": "debug"},
    # Expected orders are worked out from the limits; what earlier tests' jobs took must not matter.
    "estimates": {"source": "limit"},
    # As much as may be. A job that was just submitted can lend next to nothing: tests that look at one cycle have jobs
    # of one user, which pass each other freely.
    "lend": {"share": 1.0, "most": 256},
}


def recalculate(cluster: Cluster) -> dict[int, int]:
    """Makes Slurm calculate the priority of every pending job anew, as any update of one does; returns the
    priorities."""
    lines = [f"update JobId={job} SiteFactor=0" for job in cluster.priorities()]
    cluster.run(["scontrol"], input="\n".join(lines) + "\n")
    return cluster.priorities()


def settle(cluster: Cluster) -> dict[int, int]:
    """Waits until a new calculation changes no priority any more, and returns the priorities.

    Slurm's schedulers refine what a job asks for (CPUs of an exclusive one, nodes) when they first look at it, and its
    size counts in the priority from the next calculation on. Between two equal calculations backfill must have made a
    whole pass over the queue, so it needs a configuration in which no pass is cut short (bf_max_time), without ageing.
    """
    seen, passes = recalculate(cluster), cluster.backfill_passes()

    def stands_still() -> bool:
        nonlocal seen, passes
        now = recalculate(cluster)  # also what makes backfill begin another pass
        if cluster.backfill_passes() < passes + 2:  # one of these may have been under way
            return False
        same = now == seen
        seen, passes = now, cluster.backfill_passes()
        return same

    wait_until(stands_still, "priorities stand still", pause=1.0)
    return seen


def events(text: str) -> list[dict[str, Any]]:
    """The JSON lines of a log; a line that is something else is left out."""
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "event" in value:
            found.append(value)
    return found


def named(text: str, event: str) -> list[dict[str, Any]]:
    """The log's events of one name, e.g. `cycle.done`."""
    return [value for value in events(text) if value["event"] == event]


class Raise(NamedTuple):
    """One job that goes ahead, in a decision record."""

    first: int
    """The first job that it passes."""
    seconds: float
    """That it is charged for before it has ended."""
    lenders: dict[int, float]
    """GPUs by job."""


@dataclass(frozen=True)
class Record:
    """A decision record, by job id."""

    data: dict[str, Any]

    @classmethod
    def of_listing(cls, plan: dict[str, Any]) -> "Record":
        """Of what `rltuned plan --json` says."""
        jobs = plan["jobs"]
        vetoed: defaultdict[str, list[int]] = defaultdict(list)
        for job in plan["left"]:
            vetoed[job["why"]].append(job["id"])
        names = {"id": "id", "base": "slurm_priority", "target": "priority", "may_lend": "may_lend_gpu_seconds"}
        columns = {name: [job[of] for job in jobs] for name, of in names.items()}
        scored = [job["score"] for job in jobs if job["score"] is not None]
        rows = iter(range(len(scored)))
        seen = [-1 if job["score"] is None else next(rows) for job in jobs]
        raises = [
            (job["id"], job["ahead_of"], job["borrows_seconds"], [(one["id"], one["gpus"]) for one in job["lenders"]])
            for job in jobs
            if job["raised"]
        ]
        ways = {job["id"]: job["placed"] for job in jobs if job["placed"]}
        return cls(
            {
                "jobs": columns | {"rank": [job["place"] - 1 for job in jobs], "seen": seen},
                "window": {"score": scored},
                "raises": raises,
                "vetoed": vetoed,
                "changes": [
                    [change[name] for name in ("job", "field", "before", "after")] for change in plan["changes"]
                ],
                "placement": {"ways": ways},
            }
        )

    @property
    def managed(self) -> list[int]:
        return list(self.data["jobs"]["id"])

    def column(self, name: str) -> dict[int, int]:
        """A column of the managed jobs: base, current, target, rank, base_rank, stop, stopped_by, ..."""
        return dict(zip(self.data["jobs"]["id"], self.data["jobs"][name], strict=True))

    @property
    def order(self) -> list[int]:
        """The managed jobs in the planned order of the queue."""
        return sorted(self.managed, key=self.column("rank").__getitem__)

    @property
    def raises(self) -> dict[int, Raise]:
        """The jobs that go ahead, the most wanted first."""
        return {job: Raise(first, seconds, dict(lenders)) for job, first, seconds, lenders in self.data["raises"]}

    @property
    def scores(self) -> dict[int, float]:
        """Of the policy, by job; higher first."""
        found = {seen: job for job, seen in self.column("seen").items() if seen >= 0}
        return {found[row]: score for row, score in enumerate(self.data["window"]["score"])}

    @property
    def vetoes(self) -> dict[int, str]:
        """Why each pending job that is not managed is left alone."""
        return {job: reason for reason, jobs in self.data["vetoed"].items() for job in jobs}

    @property
    def changes(self) -> list[tuple[int, str, Any, Any]]:
        """(job, field, before, after), the head of the queue first."""
        return [(job, of, before, after) for job, of, before, after in self.data["changes"]]

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(outcome for fields in self.data["outcomes"].values() for outcome in fields.values())


@dataclass(frozen=True)
class Once:
    """One finished cycle: its `cycle.done` event, the whole log, and the record that it left."""

    done: dict[str, Any]
    log: str
    record: Record

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(self.done["changes"])

    @property
    def seconds(self) -> dict[str, float]:
        return dict(self.done["seconds"])


@dataclass(frozen=True)
class Daemon:
    """A running `rltuned run`."""

    program: Background
    state: str

    def log(self, event: str) -> list[dict[str, Any]]:
        return named(self.program.output(), event)

    def cycles(self) -> list[dict[str, Any]]:
        return self.log("cycle.done")

    def wait_cycles(self, count: int) -> list[dict[str, Any]]:
        """Waits until so many cycles have ended (counted from its start) and returns them all."""
        try:
            wait_until(lambda: len(self.cycles()) >= count, f"{count} cycles are done")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.program.output()[-3000:]}") from None
        return self.cycles()

    def metrics(self) -> dict[str, float]:
        """What its endpoint says: series (name with labels, as exposed) to value."""
        port = self.log("daemon.started")[0]["metrics_port"]
        service = self.program.service
        text = self.program.cluster.run(["curl", "-sf", f"http://127.0.0.1:{port}/metrics"], service=service).stdout
        rows = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {series: float(value) for series, _, value in rows}

    def stop(self) -> int:
        self.program.kill("TERM")
        return self.program.wait()


@dataclass
class Rltuned:
    """rltuned as installed in a container: one user, one configuration, one state directory."""

    cluster: Cluster
    user: str = OPERATOR
    service: str = "ctl"
    sections: Sections = field(default_factory=dict)
    _started: list[Daemon] = field(default_factory=list)

    def __init__(self, cluster: Cluster, *, user: str = OPERATOR, service: str = "ctl", **sections: Any) -> None:
        """Installs, forgets what an earlier test left, and writes the configuration: DEFAULTS with `sections`."""
        self.cluster, self.user, self.service, self._started = cluster, user, service, []
        cluster.install_rltuned(service)
        cluster.sh(
            f"""
            rm -rf {STATE} {MIRROR}
            install -d -m 755 {CONFIG.rpartition("/")[0]}
            install -d -o {user} -g {user} -m 700 {STATE} {MIRROR}
            """,
            service=service,
        )
        self.sections = {name: dict(values) for name, values in DEFAULTS.items()}
        self.configure(**sections)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def configure(self, **sections: Mapping[str, Any]) -> None:
        """Changes keys of the configuration file (a running daemon takes them over on SIGHUP)."""
        for name, values in sections.items():
            self.sections.setdefault(name, {}).update(values)
        lines: list[str] = []
        for name, values in self.sections.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {toml_value(value)}" for key, value in values.items()]
        self.cluster.write_file(CONFIG, "\n".join(lines) + "\n", service=self.service)

    def run(self, *args: str, check: bool = True, user: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.cluster.run([RLTUNED, *args], user=user or self.user, service=self.service, check=check)

    def cycle(self, *options: str) -> Once:
        """`rltuned run --once`: one cycle in the foreground. One that fails is an error of the test."""
        log = self.run("run", "--once", *options).stderr
        done = named(log, "cycle.done")
        assert len(done) == 1, log[-3000:]
        return Once(done[0], log, self.record())

    def start(self, *options: str) -> Daemon:
        """`rltuned run` in the background, once it is ready (or has ended at once)."""
        program = self.cluster.background([RLTUNED, "run", *options], user=self.user, service=self.service)
        daemon = Daemon(program, STATE)
        self._started.append(daemon)
        wait_until(lambda: program.returncode() is not None or daemon.log("daemon.started"), "rltuned starts")
        return daemon

    def kill(self) -> None:
        for daemon in self._started:
            if daemon.program.returncode() is None:
                daemon.program.kill("KILL")
        self._started.clear()

    def record(self) -> Record:
        return Record(json.loads(self.cluster.read_file(f"{STATE}/decision.json", service=self.service)))

    def plan(self) -> Record:
        return Record.of_listing(json.loads(self.run("plan", "--json").stdout))

    def restore(self, *args: str, check: bool = True) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.run("restore", "--json", *args, check=check).stdout)
        return report

    def doctor(self) -> dict[str, dict[str, str]]:
        """`rltuned doctor --json`: subject to {severity, cause, remedy}; its exit status does not matter."""
        found = json.loads(self.run("doctor", "--json", check=False).stdout)
        return {item["subject"]: item for item in found}

    def explain(self, *jobs: int) -> dict[int, dict[str, Any]]:
        """`rltuned explain --json` of each job, in one process: a start for each would take most of a test's time."""
        program = (
            "import sys; from rltuned.cli.main import cli\n"
            "for job in sys.argv[1:]: cli.main(['explain', '--json', job], standalone_mode=False); print('\\0')"
        )
        done = self.cluster.run([PYTHON, "-c", program, *map(str, jobs)], user=self.user, service=self.service)
        answers = [json.loads(text) for text in done.stdout.split("\0") if text.strip()]
        return dict(zip(jobs, answers, strict=True))
