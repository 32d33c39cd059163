"""What slurmctld and its programs say of themselves: configuration, version, load, controllers, names."""

import re
from typing import Final, NamedTuple

from rltuned.core.errors import SlurmParseError
from rltuned.core.scheduler import Health
from rltuned.slurm.notation import bad, slurm_seconds, text
from rltuned.slurm.process import Runner


def config(answer: str) -> dict[str, str]:
    """``scontrol show config``: key → value, "" for ``(null)``; section titles and the ping lines are skipped."""
    if not answer.endswith("\n"):
        raise SlurmParseError("scontrol show config: the answer is cut short or empty")
    found: dict[str, str] = {}
    for line in answer.split("\n"):
        key, equals, value = line.partition("=")
        name = key.strip()
        if equals and name and " " not in name:
            found.setdefault(name, text(value.strip()))
    if "ClusterName" not in found or "SLURM_VERSION" not in found:
        raise SlurmParseError("scontrol show config: no ClusterName or SLURM_VERSION in the answer")
    return found


def parameters(value: str) -> dict[str, str]:
    """``a,b=1,c=x`` as a mapping; a word without ``=`` has the value ""."""
    found: dict[str, str] = {}
    for word in text(value).split(","):
        key, _, setting = word.strip().partition("=")
        if key:
            found[key] = setting
    return found


_SECONDS = re.compile(r"([0-9]{1,12}) sec\Z", re.ASCII)


def config_seconds(value: str) -> float:
    """A duration of scontrol show config: ``00:01:00``, ``7-00:00:00``, ``30 sec``."""
    match = _SECONDS.match(value)
    return float(match.group(1)) if match else slurm_seconds(value)


_VERSION = re.compile(r"(?:slurm(?:-wlm)?\s+)?([0-9]{2})\.([0-9]{2})\.([0-9A-Za-z.\-]{1,24})\s*\Z", re.ASCII)


def version(value: str) -> tuple[str, tuple[int, int]]:
    """``slurm-wlm 24.11.5`` → ("24.11.5", (24, 11))."""
    match = _VERSION.match(value)
    if match is None:
        raise bad("version", value)
    year, month, rest = match.groups()
    return f"{year}.{month}.{rest}", (int(year), int(month))


def release(runner: Runner) -> tuple[int, int]:
    """Release of the installed commands, (24, 11)."""
    return version(runner.ask("version"))[1]


class Load(NamedTuple):
    """What sdiag(1) says about slurmctld."""

    health: Health
    jobs_pending: int  # slurmctld counts every half minute
    jobs_running: int


_SINCE = re.compile(r"^Data since\s[^(\n]*\(([0-9]{1,15})\)", re.MULTILINE | re.ASCII)
_DIAGNOSTIC = re.compile(r"\s*([A-Za-z][A-Za-z ()_]{1,60}):\s*([0-9]{1,15})\s*\Z", re.ASCII)


def diagnostics(answer: str) -> Load:
    """The answer of sdiag. Mean cycles are 0 before the first cycle."""
    found: dict[str, int] = {}
    section = ""
    for line in answer.split("\n"):
        if match := _DIAGNOSTIC.match(line):
            found.setdefault(f"{section}{match.group(1)}", int(match.group(2)))
        elif line.startswith("Main schedule statistics"):
            section = "main "
        elif line.startswith("Backfilling stats"):
            section = "backfill "
        elif line.startswith("Remote Procedure Call"):
            break
    if "Server thread count" not in found or "Agent queue size" not in found:
        raise SlurmParseError("sdiag: no server thread count or agent queue size in the answer")
    since = _SINCE.search(answer)
    health = Health(
        server_threads=found["Server thread count"],
        agent_queue=found["Agent queue size"],
        backfill_mean_us=found.get("backfill Mean cycle", 0),
        since=int(since[1]) if since else 0,
    )
    return Load(health, found.get("Jobs pending", 0), found.get("Jobs running", 0))


def backfills(answer: str) -> bool:
    """Whether a pass of backfill is under way, by the answer of sdiag."""
    return "in the middle of backfilling" in answer


_CONTROLLER = re.compile(r"Slurmctld\([^)\n]{1,40}\) at (\S{1,255}) is (UP|DOWN)\Z", re.ASCII)


def controllers(answer: str) -> list[tuple[str, bool]]:
    """``scontrol ping``: each controller and whether it answers, the primary first."""
    return [(match[1], match[2] == "UP") for line in answer.splitlines() if (match := _CONTROLLER.match(line))]


_FEDERATION = re.compile(r"^Federation:\s*(\S{1,255})\s*$", re.MULTILINE | re.ASCII)


def federation(answer: str) -> str:
    """``scontrol show federation``: its name; "" when the answer is empty, which it is for a cluster in none."""
    match = _FEDERATION.search(answer)
    return match[1] if match else ""


_OF_LINES: Final = {"partitions": "PartitionName=", "reservations": "ReservationName="}


def names(what: str, answer: str) -> frozenset[str]:
    """The names that an answer lists, one on each line."""
    begins = _OF_LINES.get(what, "")
    return frozenset(line.removeprefix(begins).split(" ")[0] for line in answer.splitlines() if line.startswith(begins))
