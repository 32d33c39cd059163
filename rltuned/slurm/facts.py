"""What `doctor` and the start-up checks need to know about a cluster."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rltuned.core.errors import SlurmError, SlurmParseError
from rltuned.core.notation import tres_name
from rltuned.core.safe_files import user_name
from rltuned.core.scheduler import whole_number
from rltuned.slurm import controller, not_simulated, notation
from rltuned.slurm.port import ClusterFacts, Privilege
from rltuned.slurm.process import Runner, failure

_USER = re.compile(r".*\((?P<uid>[0-9]{1,10})\)\Z")  # ``slurm(64030)``
_HOST = re.compile(r"SlurmctldHost\[([0-9]{1,3})\]\Z")
_INCLUDE = re.compile(r"include\s+(\S+)\Z", re.IGNORECASE)
_PINGED: Final = re.compile(r"^Slurmctld\([^)\n]*\) at .* is (?:UP|DOWN)$", re.MULTILINE)
"""The last line of ``scontrol show config``."""
_PLAIN: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")
DEFAULT_PORT: Final = 6817
_LEVELS: Final = {"operator": Privilege.OPERATOR, "admin": Privilege.ADMIN, "administrator": Privilege.ADMIN}


def read_facts(runner: Runner, known: ClusterFacts | None = None, user: int | None = None) -> ClusterFacts:
    """Version, plugins, limiter from ``scontrol show config``, privilege from ``sacctmgr``, which may be out of reach.

    `user`: whose privilege, by default that of this process. `known`: what ``scontrol show config`` does not say is of
    these, and nothing else is asked.
    """
    answer = runner.run("config")
    # scontrol asks slurmctld for the configuration, prints it, and only then pings. Where the RPC limiter turns the
    # ping away (measured on 24.11) it ends with 1, although all of the configuration is there.
    if answer.code != 0 and _PINGED.search(answer.stdout) is None:
        raise failure(answer)
    return facts_from(controller.config(answer.stdout), runner, os.geteuid() if user is None else user, known)


def facts_from(config: Mapping[str, str], runner: Runner, uid: int, known: ClusterFacts | None = None) -> ClusterFacts:
    """Facts from a parsed configuration, for the user `uid`; the rest is asked, or `known`."""
    user = user_name(uid)
    version, release = controller.version(config["SLURM_VERSION"])
    limiter = controller.parameters(config.get("SlurmctldParameters", ""))
    period = whole_number(limiter, "rl_refill_period", 1.0)
    controllers = _controllers(config)
    storage = config.get("AccountingStorageType", "")
    accounting = storage.endswith("slurmdbd")
    level, reachable, federation = Privilege.NONE, False, ""
    if known is not None:
        level, reachable, federation = known.privilege, known.accounting_reachable, known.federation
    elif accounting:
        (level, reachable), federation = _admin_level(runner, user), _federation(runner)
    slurm_user = _USER.match(config.get("SlurmUser", ""))
    if uid == 0 or (slurm_user is not None and int(slurm_user["uid"]) == uid):
        level = Privilege.SLURM_USER
    return ClusterFacts(
        version=version,
        release=release,
        cluster_name=config["ClusterName"],
        user=user,
        privilege=level,
        priority_type=config.get("PriorityType", ""),
        site_factor_plugin=_plugin(config.get("PrioritySiteFactorPlugin", ""))
        or _plugin(_in_files(Path(config.get("SLURM_CONF", "")), "PrioritySiteFactorPlugin")),
        scheduler_type=config.get("SchedulerType", ""),
        scheduler_parameters=controller.parameters(config.get("SchedulerParameters", "")),
        rate_limiter="rl_enable" in limiter,
        rate_bucket=int(whole_number(limiter, "rl_bucket_size", 30.0)),
        rate_refill=whole_number(limiter, "rl_refill_rate", 2.0) / max(period, 1.0),
        accounting=accounting,
        accounting_reachable=reachable,
        accounting_tres=tuple(tres_name(part) for part in config.get("AccountingStorageTRES", "").split(",") if part),
        priority_calc_period=controller.config_seconds(config.get("PriorityCalcPeriod", "00:05:00")),
        half_life=controller.config_seconds(config.get("PriorityDecayHalfLife", "7-00:00:00")),
        started=_boot_time(config.get("BOOT_TIME", "")),
        priority_flags=tuple(part for part in _plugin(config.get("PriorityFlags", "")).split(",") if part),
        priority_weights=priority_weights(config),
        job_submit_plugins=_plugin(notation.text(config.get("JobSubmitPlugins", ""))),
        controllers=tuple(name for name, _ in controllers),
        addresses=tuple(address for _, address in controllers),
        federation=federation,
        not_simulated=tuple(not_simulated.of_config(config)),
        select_type=config.get("SelectType", ""),
        free_accounts="associations" not in config.get("AccountingStorageEnforce", "associations"),
        preempts_by=_preempts_by(config, runner, known),
        private_jobs="jobs" in config.get("PrivateData", "").lower().split(","),
    )


_WEIGHTS: Final = {
    "PriorityWeightAge": "age",
    "PriorityWeightFairShare": "fairshare",
    "PriorityWeightJobSize": "job_size",
    "PriorityWeightPartition": "partition",
    "PriorityWeightQOS": "qos",
}


def priority_weights(config: Mapping[str, str]) -> dict[str, float]:
    """As `ClusterFacts.priority_weights`."""
    pairs = [(name, config.get(key, "")) for key, name in _WEIGHTS.items()]
    found = {name: float(value) for name, value in pairs if _PLAIN.fullmatch(value) and float(value) > 0.0}
    tres = notation.tres_weights(config.get("PriorityWeightTRES", ""))
    found |= {name: weight for name, weight in tres.items() if weight}
    times = {"max_age": config.get("PriorityMaxAge", ""), "half_life": config.get("PriorityDecayHalfLife", "")}
    found |= {name: controller.config_seconds(value) for name, value in times.items() if value}
    if config.get("PriorityFavorSmall", "").lower() == "yes":
        found["favor_small"] = 1.0
    flags = config.get("PriorityFlags", "").split(",")
    found |= {name.lower(): 1.0 for name in ("SMALL_RELATIVE_TO_TIME", "MAX_TRES") if name in flags}
    return found


_BY_PRIORITY: Final = re.compile(r"\b(?:PRIORITY|WITHIN)\b", re.IGNORECASE)


def _preempts_by(config: Mapping[str, str], runner: Runner, known: ClusterFacts | None) -> str:
    """As `ClusterFacts.preempts_by`. Beside slurm.conf's, preempt_qos.c goes by the modes of QOS, and
    preempt_partition_prio.c by those of partitions.
    """
    kind, mode = _plugin(config.get("PreemptType", "")), config.get("PreemptMode", "")
    if not kind:
        return ""
    if _BY_PRIORITY.search(mode):
        return f"PreemptMode={mode} in slurm.conf"
    if known is not None:
        return known.preempts_by
    if kind != "preempt/qos":
        modes, where = re.findall(r" PreemptMode=(\S+)", runner.ask("partitions")), "a partition"
    else:
        try:
            modes, where = runner.ask("preemption").split(), "a QOS"
        except SlurmError:
            return "the PreemptMode of each QOS is not known, because slurmdbd does not answer"
    return next((f"PreemptMode={mode} of {where}" for mode in modes if _BY_PRIORITY.search(mode)), "")


def _boot_time(value: str) -> float:
    """Epoch seconds; 0 where it cannot be understood."""
    try:
        return notation.known_epoch(value)
    except SlurmParseError:
        return 0.0


def _controllers(config: Mapping[str, str]) -> list[tuple[str, tuple[str, int]]]:
    """Name and address of each, in their order: ``SlurmctldHost[0] = ctl(10.0.0.1)``, ``SlurmctldPort = 6817-6820``."""
    lines = {int(match[1]): value for key, value in config.items() if (match := _HOST.match(key)) and value}
    port = config.get("SlurmctldPort", "").partition("-")[0]
    names = [
        (name, address.rstrip(")") or name) for name, _, address in (lines[at].partition("(") for at in sorted(lines))
    ]
    return [(name, (address, int(port) if port.isdecimal() else DEFAULT_PORT)) for name, address in names]


def _federation(runner: Runner) -> str:
    """Slurmdbd makes federations; what it says of this one, slurmctld knows."""
    try:
        return controller.federation(runner.ask("federation"))
    except SlurmError:  # slurmctld has just told all the rest: it has none to tell of
        return ""


def _admin_level(runner: Runner, user: str) -> tuple[Privilege, bool]:
    """AdminLevel of the user, and whether slurmdbd answered."""
    try:
        answer = runner.ask("privilege", f"user={user}")
    except SlurmError:
        return Privilege.NONE, False
    for line in answer.splitlines():
        name, _, level = line.partition("|")
        if name == user:
            return _LEVELS.get(level.strip().lower(), Privilege.NONE), True
    return Privilege.NONE, True


def _in_files(path: Path, key: str, depth: int = 5) -> str:
    """A setting as slurm.conf(5) has it (the last one counts, ``Include`` is followed); "" where none can be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    found = ""
    for line in lines:
        plain = line.partition("#")[0].strip()
        if match := _INCLUDE.match(plain):
            found = (_in_files(path.parent / match[1], key, depth - 1) if depth else "") or found
            continue
        name, equals, value = plain.partition("=")
        if equals and name.strip().lower() == key.lower():
            found = value.strip().strip('"')
    return found


def _plugin(value: str) -> str:
    """Empty where none is configured; releases differ in how they say so."""
    return "" if value.rpartition("/")[2] in {"", "none"} else value
