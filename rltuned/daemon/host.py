"""What a configuration says of this host, held against the host: for `rltuned check-config`; what runs here."""

import os
from pathlib import Path

from rltuned.config import Effective
from rltuned.errors import ConfigError

_PROGRAMS = ("squeue", "scontrol", "sprio", "sdiag", "sacctmgr", "sacct")


def check(effective: Effective) -> list[str]:
    """Refuse what cannot work on this host; returns remarks about what may.

    A directory that is not there yet is no mistake: the daemon makes its own.

    Raises:
        ConfigError: a line for each mistake, which names the source and the key.
    """
    config, wrong, remarks = effective.config, [], []

    def say(key: str, trouble: str) -> None:
        wrong.append(f"{effective.sources.get(key, 'default')}: {key}: {trouble}")

    if not config.slurm.bin_dir.is_dir():
        say("slurm.bin_dir", f"there is no directory {config.slurm.bin_dir}; name the one that has squeue and scontrol")
    elif missing := [name for name in _PROGRAMS if not os.access(config.slurm.bin_dir / name, os.X_OK)]:
        remarks.append(f"slurm.bin_dir: {config.slurm.bin_dir} has no {', '.join(missing)}: Slurm cannot be read here")
    files = {"slurm.conf": config.slurm.conf} | {
        f"metrics.{name}": getattr(config.metrics, name) for name in ("tls_cert", "tls_key", "tls_client_ca")
    }
    for key, path in files.items():
        if path is not None and not path.is_file():
            say(key, f"there is no file {path}")
    directory, mirror = config.state.directory, config.state.mirror
    for key, path in (("state.directory", directory), ("state.mirror", mirror)):
        if path is not None and path.exists() and not path.is_dir():
            say(key, f"{path} is no directory")
    if mirror is not None and mirror.exists() and directory.exists() and mirror.samefile(directory):
        say("state.mirror", f"{mirror} is the same directory as {directory}")
    users = config.users.directory
    if users is not None and not users.is_dir():
        remarks.append(f"users.directory: there is no directory {users}: users see nothing until there is")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return remarks


def slurmctld_runs(processes: Path = Path("/proc")) -> bool:
    """Whether slurmctld runs on this host, whoever's it is: long work must leave it the processor."""
    for comm in processes.glob("[0-9]*/comm"):
        try:
            if comm.read_text(encoding="utf-8", errors="replace").strip() == "slurmctld":
                return True
        except OSError:
            continue  # it has ended, or is hidden
    return False
