"""docs/reference.md: settings, commands, metrics and alerts, from where they are defined.

``python -m studies.reference > docs/reference.md`` writes it (`make pages`); a test holds the committed page equal.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import annotated_types
import click
from prometheus_client.metrics_core import Metric
from pydantic.fields import FieldInfo

from rltuned.cli.main import cli
from rltuned.controller.tell.metrics import Metrics
from rltuned.core.config import Config, toml_value
from rltuned.decide.place.outcome import SolveOutcome
from rltuned.decide.scope import Veto
from studies.manpage import commands

RULES: Final = Path(__file__).resolve().parents[1] / "deploy" / "prometheus" / "rltuned.rules.yml"
_BOUNDS: Final = ((annotated_types.Ge, "at least {0.ge:,}"), (annotated_types.Gt, "above {0.gt:,}"))
_ENDS: Final = ((annotated_types.Le, "at most {0.le:,}"), (annotated_types.Lt, "below {0.lt:,}"))
_HEAD: Final = """\
# Reference

Made by `make pages` from the program; do not edit. [Exit codes](exit-codes.md) and [state files](state-files.md) have
pages of their own.
"""


def page() -> str:
    """The page, ending in a newline."""
    return "\n".join([_HEAD, *_settings(), *_commands(), *_metrics(), *_alerts()]) + "\n"


def _settings() -> Iterator[str]:
    yield "## Settings\n"
    yield "Of `/etc/rltuned/config.toml` ([all of them, to copy](../deploy/config.toml)). `RLTUNED_CYCLE__STAGE=shadow`"
    yield "in the environment overrides `stage` of `[cycle]`.\n"
    for name, section in Config.model_fields.items():
        yield f"### `[{name}]`\n"
        yield _linked(" ".join((section.default.__doc__ or "").split())) + "\n"
        yield from ("| key | default | meaning |", "| --- | --- | --- |")
        for key, item in section.default.__class__.model_fields.items():
            yield f"| `{key}` | `{_cell(toml_value(item.default))}` | {_linked(_cell(_meaning(item)))} |"
        yield ""


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", text)


def _meaning(item: FieldInfo) -> str:
    told = " ".join((item.description or "").split())
    bounds = [text.format(each) for kinds in (_BOUNDS, _ENDS) for kind, text in kinds for each in item.metadata
              if isinstance(each, kind)]  # fmt: skip
    return " ".join(part for part in (told, f"({', '.join(bounds)})" if bounds else "") if part)


def _commands() -> Iterator[str]:
    yield "## Commands\n"
    yield "`rltuned COMMAND --help`, or rltuned(1), has the options.\n"
    yield from ("| command | does |", "| --- | --- |")
    # click keeps the names of --help from the first context that a command is seen in.
    for context in commands(cli, click.Context(cli, info_name="rltuned", **cli.context_settings)):
        yield f"| `{context.command_path}` | {_cell(context.command.get_short_help_str(200))} |"
    yield ""


def _metrics() -> Iterator[str]:
    yield "## Metrics\n"
    yield "At `metrics.listen` ([monitoring](monitoring.md)). No job, user or account is ever a label.\n"
    yield from ("| metric | labels | meaning |", "| --- | --- | --- |")
    for family in Metrics((veto.value for veto in Veto), (one.value for one in SolveOutcome)).registry.collect():
        if not family.name.endswith("_created"):
            name = family.name + ("_total" if family.type == "counter" else "")
            yield f"| `{name}` | {_labels(family)} | {_cell(family.documentation)} |"
    yield ""
    yield "Recorded by `rltuned.rules.yml`:\n"
    yield from ("| series | is |", "| --- | --- |")
    for name, body in re.findall(r"- record: (\S+)\n\s+expr: (.*?)(?=\n      - |\n\n)", RULES.read_text(), re.DOTALL):
        yield f"| `{name}` | `{_cell(body.removeprefix('|-'))}` |"
    yield ""


def _labels(family: Metric) -> str:
    """Each label with its values, which are a closed set; what tells a release apart is not."""
    values: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            if label != "le":
                values.setdefault(label, {})[value] = None
    return "; ".join(
        f"`{label}`" + ("" if label == "version" else f": {', '.join(found)}") for label, found in values.items()
    )


def _alerts() -> Iterator[str]:
    yield "## Alerts\n"
    yield "Of `deploy/prometheus/rltuned.rules.yml`. Only critical ones are worth waking somebody.\n"
    yield from ("| alert | severity | after | says |", "| --- | --- | --- | --- |")
    for name, body in re.findall(r"- alert: (\w+)\n(.*?)(?=      - alert: |\Z)", RULES.read_text(), re.DOTALL):
        (severity,) = re.findall(r"severity: (\w+)", body)
        after = re.search(r"\n +for: (\w+)", body)
        (told,) = re.findall(r" summary: (?:>-)?(.*?)(?=\n +\w+: )", body, re.DOTALL)
        said = re.sub(r" on \{\{ \$labels\.instance \}\}", "", " ".join(told.split()).strip('"'))
        said = re.sub(r"\{\{.*?\}\}", "…", said)
        yield f"| [`{name}`](runbook.md#{name.lower()}) | {severity} | {after[1] if after else ''} | {_cell(said)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
