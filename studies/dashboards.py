"""The Grafana dashboards in ``deploy/grafana``, as ``python -m studies.dashboards`` writes them.

Two questions, two dashboards: is rltuned healthy (fleet), and what does it do (benefit). They are made with Grafana's
own library, which knows the schema. Tests hold the files equal to this module and ask a real Prometheus every query.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.variants import Dataquery as AnyQuery
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FOLDER: Final = Path(__file__).resolve().parents[1] / "deploy" / "grafana"
WIDTH: Final = 24
"""Columns of Grafana's grid."""
HERE: Final = 'job="rltuned",instance=~"$instance"'
"""Matchers of what the user of a dashboard has chosen."""
SOURCE: Final = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
_NAMES: Final = "{{instance}}"

ANSWERS: Final[list[dashboard.ValueMapping]] = [
    dashboard.ValueMap(
        {
            "1": dashboard.ValueMappingResult(text="yes", color="green"),
            "0": dashboard.ValueMappingResult(text="no", color="red"),
        }
    )
]

Panel = timeseries.Panel | stat.Panel | statetimeline.Panel | heatmap.Panel | table.Panel


@dataclass(frozen=True)
class Query:
    """One expression of a panel, and the name of its series; ``{{label}}`` stands for a label."""

    expr: str
    legend: str = _NAMES


@dataclass(frozen=True)
class Steps:
    """Colours of a value: green up to `warn`, orange up to `bad`, then red. None: there is no such colour."""

    warn: float | None = None
    bad: float | None = None

    def build(self) -> build.ThresholdsConfig:
        """As Grafana has it."""
        steps = [dashboard.Threshold(color="green")]
        steps += [
            dashboard.Threshold(value, color) for value, color in ((self.warn, "orange"), (self.bad, "red")) if value
        ]
        return build.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _targets(queries: Sequence[Query], *, instant: bool) -> list[Builder[AnyQuery]]:
    targets: list[Builder[AnyQuery]] = []
    for number, query in enumerate(queries):
        one = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + number))
        targets.append(one.instant() if instant else one.range())
    return targets


def number(
    title: str,
    says: str,
    *queries: Query,
    unit: str = "short",
    steps: Steps = Steps(),
    name: bool = False,
    width: int = 4,
) -> stat.Panel:
    """A number of now; `name`: the name of the series instead."""
    shows = common.BigValueTextMode.NAME if name else common.BigValueTextMode.AUTO
    return (
        stat.Panel()
        .title(title)
        .description(says)
        .datasource(SOURCE)
        .targets(_targets(queries, instant=True))
        .unit(unit)
        .thresholds(steps.build())
        .reduce_options(options.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE if not name else common.BigValueColorMode.NONE)
        .text_mode(shows)
        .no_value("–")
        .height(4)
        .span(width)
    )


def lines(
    title: str,
    says: str,
    *queries: Query,
    unit: str = "short",
    stacked: bool = False,
    width: int = 12,
    low: float | None = 0,
) -> timeseries.Panel:
    """Values over time; `low`: the axis begins there or below. None: anywhere."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(says)
        .datasource(SOURCE)
        .targets(_targets(queries, instant=False))
        .unit(unit)
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .show_points(common.VisibilityMode.NEVER)
        .stacking(options.StackingConfig().mode(common.StackingMode.NORMAL if stacked else common.StackingMode.NONE))
        .legend(
            options.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
        .tooltip(options.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
        .height(8)
        .span(width)
    )
    return panel if low is None else panel.axis_soft_min(low)


def states(title: str, says: str, *queries: Query, width: int = 12) -> statetimeline.Panel:
    """Which of several states there was, over time: a row for each, coloured while its value is 1."""
    names = {
        "1": dashboard.ValueMappingResult(text="yes", color="green"),
        "0": dashboard.ValueMappingResult(text=" ", color="transparent"),
    }
    return (
        statetimeline.Panel()
        .title(title)
        .description(says)
        .datasource(SOURCE)
        .targets(_targets(queries, instant=False))
        .mappings([dashboard.ValueMap(names)])
        .show_value(common.VisibilityMode.NEVER)
        .merge_values(merge_values=True)
        .legend(options.VizLegendOptions().show_legend(show_legend=False))
        .height(6)
        .span(width)
    )


def distribution(title: str, says: str, expr: str, unit: str, width: int = 12) -> heatmap.Panel:
    """The buckets of a histogram over time."""
    query = (
        prometheus.Dataquery().expr(expr).legend_format("{{le}}").ref_id("A").range().format(PromQueryFormat.HEATMAP)
    )
    return (
        heatmap.Panel()
        .title(title)
        .description(says)
        .datasource(SOURCE)
        .with_target(query)
        .calculate(calculate=False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(32))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .height(8)
        .span(width)
    )


def rows(title: str, says: str, expr: str, width: int = WIDTH) -> table.Panel:
    """The labels of some series of now, a row for each."""
    query = prometheus.Dataquery().expr(expr).ref_id("A").instant().format(PromQueryFormat.TABLE)
    hidden = dict.fromkeys(("Time", "Value", "__name__", "job"), True)
    return (
        table.Panel()
        .title(title)
        .description(says)
        .datasource(SOURCE)
        .with_target(query)
        .with_transformation(dashboard.DataTransformerConfig(id_val="organize", options={"excludeByName": hidden}))
        .no_value("none")
        .height(6)
        .span(width)
    )


def _of(name: str, **labels: str) -> str:
    """The series of a metric that the user has chosen, and that have these labels."""
    more = "".join(f',{label}="{value}"' for label, value in labels.items())
    return f"rltuned_{name}{{{HERE}{more}}}"


def _base(title: str, uid: str, says: str, since: str, other: str) -> build.Dashboard:
    stages = f"{_of('stage')} == 1 unless ({_of('stage')} offset 5m == 1)"
    return (
        build.Dashboard(title)
        .uid(uid)
        .description(says)
        .tags(["rltuned", "slurm"])
        .refresh("1m")
        .time(since, "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(build.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            build.QueryVariable("instance")
            .label("daemon")
            .query('label_values(rltuned_build_info{job="rltuned"}, instance)')
            .datasource(SOURCE)
            .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(multi=True)
            .include_all(include_all=True)
            .all_value(".*")
            .current(dashboard.VariableOption(text="All", value="$__all"))
        )
        .annotation(
            build.AnnotationQuery()
            .name("stage")
            .datasource(SOURCE)
            .enable(enable=True)
            .icon_color("purple")
            .expr(stages)
        )
        .link(
            build.DashboardLink(other)
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags(["rltuned"])
            .include_vars(include_vars=True)
            .keep_time(keep_time=True)
        )
    )


def _filled(board: build.Dashboard, parts: Sequence[tuple[str, Sequence[Panel]]]) -> build.Dashboard:
    """The dashboard with rows of panels, and an id for each."""
    for title, panels in parts:
        board.with_row(build.Row(title))
        for panel in panels:
            board.with_panel(panel)
    for at, made in enumerate(board.build().panels or [], start=1):
        made.id_val = at
    return board


def fleet() -> build.Dashboard:
    """Is it healthy?"""
    board = _base(
        "rltuned: is it healthy?",
        "rltuned-fleet",
        "The daemon, its way with Slurm, and the way back. docs/monitoring.md, docs/runbook.md.",
        "now-6h",
        "rltuned",
    )
    now = (
        number("Answers", "Whether the last scrape was answered.", Query(f"up{{{HERE}}}"), width=3).mappings(ANSWERS),
        number(
            "Stage",
            "Stage in force: only canary and active write.",
            Query(f"{_of('stage')} == 1", "{{stage}}"),
            name=True,
            width=3,
        ),
        number(
            "Since a good cycle",
            "Alert RltunedNoSuccess at 15 intervals.",
            Query(f"time() - {_of('last_success_timestamp_seconds')}"),
            unit="s",
            steps=Steps(180, 900),
            width=3,
        ),
        number(
            "Alerts",
            "Alerts of rltuned that fire now; the table at the end names them.",
            Query('count(ALERTS{alertname=~"Rltuned.*",alertstate="firing",severity!="info"}) or vector(0)', "firing"),
            steps=Steps(1, 3),
            width=3,
        ),
        number(
            "Not given back",
            "Pending jobs that are to be given back to Slurm and could not be yet.",
            Query(_of("unreturned_jobs")),
            steps=Steps(bad=1),
            width=3,
        ),
        number(
            "Missing prerequisites",
            "What keeps the daemon in shadow mode: `rltuned doctor` names each.",
            Query(_of("prerequisite_errors")),
            steps=Steps(1),
            width=3,
        ),
        number(
            "Verdict",
            "What the verdict is worth to policy auto.",
            Query(f"{_of('verdict_state')} == 1", "{{state}}"),
            name=True,
            width=3,
        ),
        number("Version", "Of the daemon that runs.", Query(_of("build_info"), "{{version}}"), name=True, width=3),
    )
    cycles = (
        lines(
            "Cycles",
            "By how they ended: shed and standby write nothing, waiting and failed could not.",
            Query(f"sum by (outcome) (increase({_of('cycles_total')}[$__rate_interval]))", "{{outcome}}"),
            stacked=True,
        ),
        lines(
            "Duration of a cycle",
            "Mean of each phase, and what 99 of 100 whole cycles took at most.",
            Query(
                f"sum by (phase) (rate({_of('cycle_duration_seconds_sum')}[$__rate_interval]))"
                f" / sum by (phase) (rate({_of('cycle_duration_seconds_count')}[$__rate_interval]))",
                "{{phase}}",
            ),
            Query(f"rltuned:cycle_duration_seconds:p99_1h{{{HERE}}}", "p99 {{instance}}"),
            unit="s",
        ),
        states("Stage", "Stage in force.", Query(_of("stage"), "{{stage}} {{instance}}")),
        states(
            "Circuit breaker",
            "Open: Slurm is left alone after failed cycles.",
            Query(_of("breaker_state"), "{{state}} {{instance}}"),
        ),
    )
    slurm = (
        lines(
            "Failed reads and writes",
            "By kind, in an hour.",
            Query(f"sum by (kind) (increase({_of('slurm_errors_total')}[1h]))", "{{kind}}"),
            width=8,
        ),
        lines(
            "What became of changes",
            "In an hour. failed and denied are to be 0; throttled waits for Slurm's RPC limiter.",
            Query(f"sum by (outcome) (rltuned:changes:increase1h{{{HERE}}})", "{{outcome}}"),
            stacked=True,
            width=8,
        ),
        lines(
            "Rows that cannot be understood",
            "Of Slurm's answers; their jobs, nodes and partitions are left alone.",
            Query(_of("skipped_rows"), "{{kind}} {{instance}}"),
            width=8,
        ),
        lines(
            "Write budget, overruns",
            "RPCs that may be sent now, and cycles in an hour that took longer than their interval.",
            Query(_of("write_budget_tokens"), "budget {{instance}}"),
            Query(f"increase({_of('cycle_overruns_total')}[1h])", "overruns {{instance}}"),
            width=8,
        ),
        lines(
            "Unable",
            "Time for which Slurm has answered but no plan could be carried out.",
            Query(_of("unable_seconds")),
            unit="s",
            width=8,
        ),
        lines(
            "Age of finished jobs",
            "How long ago the last job ended that run-time predictions know of.",
            Query(f"time() - ({_of('history_timestamp_seconds')} > 0)"),
            unit="s",
            width=8,
        ),
    )
    back = (
        lines(
            "Jobs in the journal",
            "What the way back knows of, and jobs that others changed.",
            Query(_of("journal_jobs"), "journal {{instance}}"),
            Query(_of("foreign_jobs"), "foreign {{instance}}"),
            Query(_of("orphan_jobs"), "orphans {{instance}}"),
            Query(_of("unreturned_jobs"), "not given back {{instance}}"),
            width=8,
        ),
        lines(
            "Trouble with the journal",
            "Copies that cannot be written, and lines that could not be read at start: to be 0.",
            Query(_of("journal_failed_copies"), "failed copies {{instance}}"),
            Query(_of("journal_damaged_lines"), "damaged lines {{instance}}"),
            width=8,
        ),
        lines(
            "Given back, demotions, refused reloads",
            "Jobs given back by the running daemon, falls to shadow, and refused configurations, in an hour.",
            Query(f"increase({_of('restored_jobs_total')}[1h])", "given back {{instance}}"),
            Query(f"increase({_of('demotions_total')}[1h])", "demotions {{instance}}"),
            Query(f"increase({_of('reloads_total', result='refused')}[1h])", "refused {{instance}}"),
            width=8,
        ),
    )
    process = (
        lines(
            "Memory",
            "Of the daemon; the worker that forecasts is a process of its own.",
            Query(_of("process_resident_memory_bytes")),
            unit="bytes",
            width=8,
        ),
        lines(
            "CPU",
            "Of the daemon, in cores.",
            Query(f"rate({_of('process_cpu_seconds_total')}[$__rate_interval])"),
            unit="percentunit",
            width=8,
        ),
        lines(
            "File descriptors",
            "Open ones, as a share of what the daemon may open.",
            Query(f"{_of('process_open_fds')} / {_of('process_max_fds')}"),
            unit="percentunit",
            width=8,
        ),
        rows(
            "Alerts",
            "What fires, or is about to. docs/runbook.md has a section for each.",
            'ALERTS{alertname=~"Rltuned.*"}',
        ),
    )
    return _filled(
        board,
        (("Now", now), ("Cycles", cycles), ("Slurm", slurm), ("The way back", back), ("Process, alerts", process)),
    )


def benefit() -> build.Dashboard:
    """What does it do?"""
    board = _base(
        "rltuned: what does it do?",
        "rltuned-benefit",
        "Waiting times as measured, and what is lent. docs/monitoring.md#is-it-worth-it.",
        "now-7d",
        "rltuned",
    )
    now = (
        number(
            "Stage", "Only canary and active change the queue.", Query(f"{_of('stage')} == 1", "{{stage}}"), name=True
        ),
        number("Pending jobs", "At the last reading.", Query(_of("pending_jobs"))),
        number(
            "Managed",
            "Share of the pending jobs that the last plan manages.",
            Query(f"{_of('managed_jobs')} / ({_of('pending_jobs')} > 0)"),
            unit="percentunit",
        ),
        number(
            "Raised", "Jobs that the last plan wants ahead of their place in Slurm's order.", Query(_of("raised_jobs"))
        ),
        number(
            "Mean wait",
            "Measured: of the managed jobs that started in the last day, by rank of the priority tier.",
            Query(f"rltuned:job_wait_seconds:mean_1d{{{HERE}}}", "{{tier}}"),
            unit="s",
        ),
    )
    waiting = (
        lines(
            "Waiting time",
            "Measured: managed jobs that started in the last day, by rank of the priority tier. Compare before and"
            " after a change of the stage; the load differs, too.",
            Query(f"rltuned:job_wait_seconds:mean_1d{{{HERE}}}", "mean, {{tier}}"),
            Query(f"rltuned:job_wait_seconds:p50_1d{{{HERE}}}", "median, {{tier}}"),
            Query(f"rltuned:job_wait_seconds:p90_1d{{{HERE}}}", "9 of 10, {{tier}}"),
            unit="s",
        ),
        distribution(
            "How many waited how long",
            "Managed jobs that started, by how long they had waited.",
            f"sum by (le) (increase({_of('job_wait_seconds_bucket')}[$__rate_interval]))",
            "s",
        ),
        lines(
            "Managed jobs that started",
            "In an hour, by rank of the priority tier.",
            Query(f"sum by (tier) (increase({_of('job_wait_seconds_count')}[1h]))", "{{tier}}"),
            stacked=True,
        ),
        states("Stage", "In force: what is measured belongs to it.", Query(_of("stage"), "{{stage}} {{instance}}")),
    )
    queue = (
        lines(
            "Queue",
            "Pending jobs, and those that the plan manages.",
            Query(_of("pending_jobs"), "pending {{instance}}"),
            Query(_of("managed_jobs"), "managed {{instance}}"),
        ),
        lines(
            "Why jobs are left to Slurm",
            "Pending jobs that are not managed, by reason (docs/jobs.md).",
            Query(f"{_of('vetoed_jobs')} > 0", "{{reason}} {{instance}}"),
            stacked=True,
        ),
        lines(
            "Raised jobs",
            "Ahead of their place in Slurm's order, as the plan wants them and as squeue shows them; and the loans of"
            " jobs that started so.",
            Query(_of("raised_jobs"), "wanted {{instance}}"),
            Query(_of("raised_jobs_in_force"), "in force {{instance}}"),
            Query(_of("open_loans"), "open loans {{instance}}"),
        ),
        lines(
            "Lent",
            "GPU-hours that the jobs that wait now have lent to jobs that passed them.",
            Query(f"{_of('lent_gpu_seconds')} / 3600"),
        ),
    )
    decided = (
        lines(
            "Predictions",
            "Share of the pending jobs whose run time is predicted from finished ones.",
            Query(f"{_of('predicted_jobs')} / ({_of('pending_jobs')} > 0)"),
            unit="percentunit",
        ),
        lines(
            "Placements",
            "By how the solver ended, in an hour; none without placement.apply.",
            Query(f"sum by (outcome) (increase({_of('placements_total')}[1h]))", "{{outcome}}"),
            stacked=True,
        ),
    )
    return _filled(
        board, (("Now", now), ("Measured", waiting), ("The queue", queue), ("Run times, placement", decided))
    )


DASHBOARDS: Final[dict[str, Callable[[], build.Dashboard]]] = {"fleet.json": fleet, "benefit.json": benefit}


def text(board: build.Dashboard) -> str:
    """The dashboard as JSON, as Grafana imports and provisions it."""
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in DASHBOARDS.items():
        (FOLDER / name).write_text(text(make()))


if __name__ == "__main__":
    main()
