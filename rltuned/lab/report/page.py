"""The report as one HTML page that loads nothing: style, tables and SVG charts are in it."""

from collections.abc import Mapping
from html import escape
from typing import Any, Final, NamedTuple

from rltuned.core.wording import local_time
from rltuned.lab.report.advice import Advice
from rltuned.lab.report.report_tables import Table, facts, headline, tables

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2430; --soft: #5a6675; --grid: #d5dbe3; --band: #f4f6f9;
  --real: #8b95a3; --slurm: #c2641a; --ours: #1667b7; --go: #1a7f43; --no: #b3261e; --maybe: #96690a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181e; --ink: #e4e8ee; --soft: #a3adba; --grid: #38414d;
  --band: #1d232b; --real: #8f9aa8; --slurm: #f0a05a; --ours: #6cb2f5;
  --go: #58c987; --no: #ff8a80; --maybe: #e3b650; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p { margin: .5rem 0; max-width: 46rem; }
.soft, .note, figcaption { color: var(--soft); font-size: .875rem; }
.advice { border-left: .4rem solid var(--tone); background: var(--band); padding: .8rem 1rem; margin: 1rem 0;
  border-radius: .3rem; }
.advice strong { color: var(--tone); font-size: 1.2rem; }
.advice ul { margin: .5rem 0 0; padding-left: 1.2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .875rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; line-height: 1.25rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--grid); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
td:first-child, th:first-child, .text { text-align: left; }
td:first-child { min-width: 7rem; }
td:not(.long) { white-space: nowrap; }
.long { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
figure { margin: 1rem 0; } figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: inherit; }
.narrow { display: none; }
@media (max-width: 640px) { .wide { display: none; } .narrow { display: block; } main { padding: 1rem .8rem 2rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; } th, td { padding: .3rem .45rem; }
  td:first-child, th:first-child { position: sticky; left: 0; background: var(--paper); min-width: 0; }
  .stacked thead { display: none; } .stacked tr { display: block; padding: .4rem 0;
  border-bottom: 1px solid var(--grid); }
  .stacked td { display: flex; justify-content: space-between; gap: 1rem; padding: .1rem 0; border: 0;
  position: static; }
  .stacked td:first-child { font-weight: 600; }
  .stacked td[data-of]::before { content: attr(data-of); color: var(--soft); } }
"""
_TONES: Final = {Advice.GO: "--go", Advice.NO_GO: "--no", Advice.UNDECIDED: "--maybe"}


class Section(NamedTuple):
    """A part of the page: the tables that carry its name, behind a heading and a chart where it has them."""

    name: str
    title: str = ""
    chart: str = ""
    caption: str = ""


_SECTIONS: Final = (
    Section("effect", "What rltuned gains"),
    Section(
        "by size",
        "Waiting time by size",
        "waits",
        "Mean wait by the GPUs that a job asks for: what happened, and the same jobs replayed.",
    ),
    Section("by partition"),
    Section("by qos"),
    Section("by account"),
    Section(
        "queue", "The queue over time", "queue", "Jobs of the replay that wait, means over stretches of the period."
    ),
    Section("gpus", "GPUs in use", "gpus", "GPUs that these jobs hold. The level line is the whole cluster."),
    Section("losses", "Who loses, and who lent"),
    Section(
        "predictions",
        "How well run times are predicted",
        "predictions",
        "Run times expected when the policy first saw a job, and time limits, beside what jobs took.",
    ),
    Section("log", "What the daemon did"),
    Section("faults", "Faults"),
)
_DID: Final = {"active": "What rltuned did", "canary": "What rltuned did for a part of the jobs"}


def render(report: Mapping[str, Any], charts: Mapping[str, tuple[str, str]]) -> str:
    """The page of a report, with wide and narrow SVG by name (`charts.draw`); empty where there are none."""
    by_section: dict[str, list[Table]] = {}
    for name, table in tables(report):
        by_section.setdefault(name, []).append(table)
    parts = [_advice(report), _facts(report)]
    for section in _SECTIONS:
        chart, caption = section.chart, section.caption
        found = by_section.get(section.name, [])
        if not found and chart not in charts:
            continue
        if section.title:
            parts.append(f"<h2>{escape(section.title)}</h2>")
        if chart in charts:
            wide, narrow = charts[chart]
            if report["replay"] is None and chart in {"queue", "gpus"}:
                caption = "As the daemon saw it, means over stretches of the period."
            parts.append(
                f'<figure id="chart-{chart}"><div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
                f"<figcaption>{escape(caption)}</figcaption></figure>"
            )
        parts += [_table(table) for table in found]
    program = report["program"]
    foot = (
        f"Made {local_time(report['made_at'])} by rltuned {program['version']} ({program['revision'][:12]}). "
        "docs/good-for-us.md says what each number is."
    )
    title = f"rltuned report, {local_time(report['since'])} to {local_time(report['until'])}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + f'\n<p class="soft">{escape(foot)}</p>\n</main>\n</body>\n</html>\n'
    )


def _advice(report: Mapping[str, Any]) -> str:
    def items(kind: str) -> str:
        return "".join(f"<li>{escape(sentence)}</li>" for sentence in report[kind])

    blocks = [
        f"<h3>{title}</h3><ul>{items(kind)}</ul>"
        for kind, title in (
            ("against", "Against it"),
            ("weak", "Evidence is weak"),
            ("for", "For it"),
            ("missing", "Missing in this report"),
        )
        if report[kind]
    ]
    what = _DID.get(report["mode"], "What rltuned would have done")
    tone = _TONES[Advice(report["advice"])]
    return (
        f'<h1>{what}</h1><div class="advice" style="--tone: var({tone})"><strong>{escape(headline(report))}</strong>'
        f"{''.join(blocks)}</div>"
    )


def _facts(report: Mapping[str, Any]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts(report)) + "</dl>"
    )


LONG: Final = 40  # characters: a longer cell may break


def _table(table: Table) -> str:
    texts = {0, *(index for index, column in enumerate(table.columns) if column in table.text)}

    def cell(tag: str, index: int, value: str) -> str:
        names = (["text"] if index in texts else []) + (["long"] if len(value) > LONG else [])
        style = f' class="{" ".join(names)}"' if names else ""
        if table.stacked and index:
            style += f' data-of="{escape(table.columns[index])}"'
        return f"<{tag}{style}>{escape(value)}</{tag}>"

    head = "".join(cell("th", index, column) for index, column in enumerate(table.columns))
    rows = "".join(
        "<tr>" + "".join(cell("td", index, value) for index, value in enumerate(row)) + "</tr>" for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    style = ' class="stacked"' if table.stacked else ""
    header = f"<thead><tr>{head}</tr></thead>" if any(table.columns) else ""
    body = f"<table{style}>{header}<tbody>{rows}</tbody></table>"
    return f'<h3>{escape(table.title)}</h3><div class="scroll">{body}</div>{note}'
