"""`rltuned config`: check a configuration, show what is in force, print a file to start from."""

import os
from pathlib import Path

import click

from rltuned.cli.common import FILE, config_option, emit, json_option, load
from rltuned.core.config import DEFAULT_PATH, Effective, sample, toml_value
from rltuned.core.errors import ConfigError, RltunedError, SlurmError

_PROGRAMS = ("squeue", "scontrol", "sprio", "sdiag", "sacctmgr", "sacct")


@click.group()
def config() -> None:
    """Check a configuration, show what is in force, print a sample."""


@config.command("check")
@click.argument("path", required=False, type=FILE)
@config_option
@json_option
def config_check(path: Path | None, config_path: Path | None, *, as_json: bool) -> None:
    """Validate a configuration file, and the environment.

    Nothing is started. PATH is the same as --config PATH. Checked are names and values, and what they say of this host:
    directories, files and the model are there; and, where Slurm can be asked, that it has what [scope] names.
    """
    if path is not None and config_path is not None and path != config_path:
        raise click.UsageError("PATH and --config name two files")
    chosen = path or config_path
    try:
        effective = load(chosen)
        from rltuned.controller.cycle.auto_policy import Refused
        from rltuned.controller.cycle.policy import load_policy

        remarks = _of_this_host(effective)
        if chosen is None and not DEFAULT_PATH.exists():
            remarks.append(f"{DEFAULT_PATH}: there is no such file: every value is a default, or of the environment")
        policy = load_policy(effective.config)
    except RltunedError as error:
        if not as_json:
            raise
        emit({"ok": False, "path": str(chosen or DEFAULT_PATH), "errors": str(error).splitlines(), "notes": []})
        raise click.exceptions.Exit(error.exit_code) from error
    verdict = None if policy.evidence is None else policy.evidence.verdict
    if isinstance(verdict, Refused):
        remarks.append(f"{verdict.why}; until there is one, Slurm's own order stays")
    config = effective.config
    if as_json:
        found = {"stage": config.cycle.stage, "policy": config.policy.name, "errors": [], "notes": remarks}
        emit({"ok": True, "path": str(chosen or DEFAULT_PATH), **found})
        return
    click.echo(f"{chosen or DEFAULT_PATH}: ok, stage {config.cycle.stage}, policy {config.policy.name}")
    for remark in remarks:
        click.echo(f"note: {remark}")


def _of_this_host(effective: Effective) -> list[str]:
    """Remarks about what may not work on this host; ConfigError has a line for each mistake."""
    from rltuned.controller.health.prerequisites import Severity
    from rltuned.controller.shown.checks import scope_names
    from rltuned.slurm.connect import open_reader

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
    try:
        for key, finding in scope_names(open_reader(config.slurm), config):
            if finding.severity is Severity.NOTE:
                remarks.append(f"scope.{key}: {finding.cause}")
            else:
                say(f"scope.{key}", finding.cause)
    except SlurmError as error:
        remarks.append(f"[scope]: its names could not be compared with those of Slurm: {error}")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return remarks


@config.command("show")
@config_option
@json_option
def config_show(config_path: Path | None, *, as_json: bool) -> None:
    """The configuration in force, and where each value comes from."""
    effective = load(config_path)
    tree = effective.config.model_dump(mode="json")
    if as_json:
        emit({"config": tree, "sources": dict(effective.sources)})
        return
    for section, values in tree.items():
        click.echo(f"[{section}]")
        for key in values:
            shown = toml_value(getattr(getattr(effective.config, section), key))
            click.echo(f"{key} = {shown}  # {effective.sources.get(f'{section}.{key}', 'default')}")
        click.echo("")


@config.command("sample")
def config_sample() -> None:
    """A file with every key, its meaning and its default."""
    click.echo(sample(), nl=False)
