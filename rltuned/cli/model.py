"""`rltuned model`: look at model files, check them, and choose among the versions of the model store."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from rltuned.cli.common import STORE_OPTION, config_option, console, emit, json_option, model_store
from rltuned.core.config import DEFAULT_MODEL


@click.group()
def model() -> None:
    """Look at model files, check them, choose one of the model store."""


@model.command("info")
@click.argument("name", metavar="NAME|PATH", default=DEFAULT_MODEL)
@json_option
def model_info(name: str, *, as_json: bool) -> None:
    """What a model is, what it was trained on, how it measured.

    NAME: a shipped model, or a manifest's path.
    """
    from rltuned.cli import show
    from rltuned.records import model_files as files

    info = files.info(_model(name))
    if as_json:
        emit(asdict(info))
    else:
        show.model(console(), info)


@model.command("verify")
@click.argument("name", metavar="NAME|PATH", default=DEFAULT_MODEL)
@json_option
def model_verify(name: str, *, as_json: bool) -> None:
    """Check a model file as the daemon does before it uses it.

    That is its format, features, weights and golden vector. Exit code 4: refused; the message says which file and why.
    """
    import numpy as np

    from rltuned.records import model_files as files

    path, found = files.verify(_model(name))
    if as_json:
        checks = [{"name": check, "detail": detail} for check, detail in found.items()]
        emit({"path": path, "checks": checks, "numpy": np.__version__})
        return
    for check, detail in found.items():
        click.echo(f"ok  {check}: {detail}")
    click.echo(f"ok  numpy: the golden scores were computed with NumPy {np.__version__}")


@model.command("list")
@STORE_OPTION
@config_option
@json_option
def model_list(root: Path | None, config_path: Path | None, *, as_json: bool) -> None:
    """The versions of the model store: which is in force, and why.

    docs/learning.md explains the store.
    """
    from rltuned.controller.cycle.auto_policy import understood

    store = model_store(root, config_path)
    current, uses = store.current(), store.uses()
    told: list[dict[str, Any]] = []
    for version in store.versions():
        last = next((use for use in reversed(uses) if use.version == version.number), None)
        told.append(
            {
                "version": version.number,
                "in_force": current is not None and version.number == current.number,
                "made_at": version.made_at,
                "origin": version.origin,
                "manifest_sha256": version.manifest_sha256,
                "verdict": understood(version.verdict),
                "in_force_since": None if last is None else last.since,
                "why": "" if last is None else last.why,
            }
        )
    if as_json:
        emit(told)
        return
    for one in told:
        mark = "*" if one["in_force"] else " "
        why = f"; {one['why']}" if one["why"] else ""
        made = datetime.fromtimestamp(one["made_at"], UTC).strftime("%Y-%m-%d %H:%M")
        click.echo(f"{mark} {one['version']}  {made} UTC  {one['origin']}; verdict: {one['verdict']}{why}")
    if not told:
        click.echo(f"{store.root}: no version yet; `rltuned learn` makes one, `rltuned model use NAME` puts one there")


@model.command("use")
@click.argument("name", metavar="VERSION|NAME|PATH")
@STORE_OPTION
@config_option
def model_use(name: str, root: Path | None, config_path: Path | None) -> None:
    """Bring a version of the model store into force.

    A model by name or path is put into the store first. The daemon takes it with its next cycle. With policy.name =
    "auto" the version's own verdict counts: without one Slurm's own order stays until `rltuned learn` has judged it.
    """
    from rltuned.controller.health.clock import SystemClock

    store, now = model_store(root, config_path), SystemClock().time()
    with store.locked():
        version = store.version(int(name)) if name.isdigit() else store.add(_model(name), now, f"given: {name}")
        store.use(version, now, "chosen by an admin")
    click.echo(f"version {version.number} is in force; the daemon takes it with its next cycle")


@model.command("rollback")
@STORE_OPTION
@config_option
def model_rollback(root: Path | None, config_path: Path | None) -> None:
    """Bring back the version that was in force before. The daemon takes it with its next cycle."""
    from rltuned.controller.health.clock import SystemClock

    store = model_store(root, config_path)
    with store.locked():
        version = store.rollback(SystemClock().time(), "brought back by an admin")
    click.echo(f"version {version.number} is in force again; the daemon takes it with its next cycle")


def _model(name: str) -> str:
    """As `rltuned.records.model_files` takes it: a name, or an absolute path."""
    return str(Path(name).absolute()) if name.endswith(".json") else name
