"""`rltuned check-config`, `show-config`, `metrics-user`."""

from pathlib import Path

import click

from rltuned.commands.common import config_option, emit, json_option, load
from rltuned.config import DEFAULT_PATH, sample, toml_value


@click.command("check-config")
@click.argument("path", required=False, type=click.Path(dir_okay=False, path_type=Path))
def check_config(path: Path | None) -> None:
    """Validate a configuration file (and the environment) without starting anything."""
    effective = load(path)
    from rltuned.daemon.loop import load_policy
    from rltuned.daemon.rollout import check as check_rollout
    from rltuned.daemon.verdict import Auto

    policy = load_policy(effective.config.policy)
    check_rollout(effective.config.rollout)
    click.echo(
        f"{path or DEFAULT_PATH}: ok, stage {effective.config.cycle.stage}, policy {effective.config.policy.name}"
    )
    if isinstance(policy, Auto) and policy.reading.trouble:
        click.echo(f"note: {policy.reading.trouble}; until there is one, Slurm's own order stays")


@click.command("show-config")
@config_option
@click.option("--sample", "as_sample", is_flag=True, help="Print a file with every key, its meaning and its default.")
@json_option
def show_config(config_path: Path | None, *, as_sample: bool, as_json: bool) -> None:
    """Print the configuration in force and where each value comes from."""
    if as_sample:
        click.echo(sample(), nl=False)
        return
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


@click.command("metrics-user")
@click.argument("name")
@click.password_option(help="Asked for when it is not given; on the command line others can see it.")
def metrics_user(name: str, password: str) -> None:
    """Print a line for the file `metrics.users`: who may read the metrics, with a hash of the password."""
    import secrets

    from rltuned.daemon.endpoint import user_line

    try:
        click.echo(user_line(name, password, secrets.token_bytes(16)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
