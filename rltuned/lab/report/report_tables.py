"""The report's tables and sentences: titles, columns and rows of texts, the same in the terminal and on the page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Console

from rltuned.core.wording import duration, gpu_hours, local_time, plain
from rltuned.core.wording import table as text_table
from rltuned.decide.raising import STOP_MEANING
from rltuned.lab.evaluate.bootstrap import Comparison
from rltuned.lab.evaluate.evaluation_settings import ASK_TUNE
from rltuned.lab.report.advice import METRICS, Advice, in_words

REPLAYS = {"real": "what happened", "slurm": "Slurm's order, replayed", "rltuned": "rltuned, replayed"}
"""What the same jobs are seen in."""
KINDS = {"size": "GPUs of the job", "partition": "partition", "qos": "QOS", "account": "account"}
WORDS = {
    ("shadow", Advice.GO): "Go: let rltuned write, beginning with stage canary.",
    ("shadow", Advice.NO_GO): "No go: leave rltuned in stage shadow.",
    ("shadow", Advice.UNDECIDED): "Undecided: leave rltuned in stage shadow, and look again.",
    ("canary", Advice.GO): "Go: let rltuned write for all jobs, with stage active.",
    ("canary", Advice.NO_GO): "Step back: set stage shadow and look for the cause.",
    ("canary", Advice.UNDECIDED): "Undecided: leave rltuned in stage canary, and look again.",
    ("active", Advice.GO): "Keep: rltuned is worth its place.",
    ("active", Advice.NO_GO): "Step back: set stage shadow and look for the cause.",
    ("active", Advice.UNDECIDED): "Undecided: the evidence does not say whether rltuned is worth its place.",
}

WIDTH: Final = 150  # columns where the text does not go to a terminal


class Table(NamedTuple):
    """One table. The first column is text, the others are numbers unless `text` names them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    text: Sequence[str] = ()
    stacked: bool = False  # on a narrow screen each row becomes a list: no column may be out of sight


def headline(report: Mapping[str, Any]) -> str:
    """The advice in a sentence."""
    return WORDS[report["mode"], Advice(report["advice"])]


def show_report(console: Console, report: Mapping[str, Any]) -> None:
    """All but the charts, in a terminal."""
    if not console.is_terminal:
        console.width = WIDTH
    console.print(f"[bold]{plain(headline(report))}[/bold]")
    for kind, mark in (("against", "−"), ("weak", "?"), ("for", "+")):
        for sentence in report[kind]:
            console.print(f"  {mark} {plain(sentence)}")
    if report["weak"]:
        console.print("  Evidence is weak, for the reasons marked with ?.")
    for sentence in report["missing"]:
        console.print(f"  Missing: {plain(sentence)}")
    console.print()
    for name, value in facts(report):
        console.print(f"{name:<10}{plain(value)}")
    for _, table in tables(report):
        console.print()
        numbers = [column for column in table.columns[1:] if column not in table.text]
        console.print(text_table(table.title, table.columns, table.rows, right=numbers))
        if table.note:
            console.print(f"[dim]{plain(table.note)}[/dim]")


def facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the report is about."""
    log, replay = report["log"], report["replay"]
    found = [("period", f"{local_time(report['since'])} to {local_time(report['until'])}")]
    found += [("cluster", report["cluster"])] if report["cluster"] else []
    policy, replayed_as = report["policy"] or "not known", report["replayed_as"]
    said = policy if replayed_as == report["policy"] else f"{policy}, replayed as {replayed_as}"
    found.append(("policy", said if report["share"] is None else f"{said}; lend.share {report['share']:g}"))
    if log is not None:
        stages = ", ".join(f"{name} {count:,}" for name, count in log["stages"].items())
        found.append(("cycles", f"{stages}; the log covers {log['covered']:.0%} of the period"))
    if replay is not None:
        jobs = f"{replay['jobs']:,} of {replay['jobs_in_period']:,} jobs"
        found.append(("replayed", f"{jobs}, in {replay['blocks']} blocks"))
    return found


_COUNTED: Final = (
    ("results", "Changes by what became of them", ("outcome", "changes"), ",d"),
    ("stopped", "Why jobs went no further ahead", ("reason", "jobs in a cycle, mean"), ",.1f"),
    ("vetoed", "Jobs left to Slurm", ("reason", "jobs in a cycle, mean"), ",.1f"),
)


def tables(report: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    """Each table behind the name of its section."""
    log, replay = report["log"], report["replay"]
    if replay is not None:
        yield "effect", effect(report)
        if replay["canary"] is not None:
            yield "effect", _canary(replay["canary"])
        for kind, rows in replay["groups"].items():
            if len(rows) > 1:
                yield f"by {kind}", _group(kind, rows)
        if replay["losses"]:
            yield "losses", _losses(replay["losses"])
        yield "losses", _fairness(replay["fairness"])
        if replay["lending"]:
            yield "losses", _lending(replay["lending"])
        if replay["predictions"] is not None:
            yield "predictions", _predictions(replay["predictions"])
    if log is not None:
        yield "log", _ranks(report["mode"], log)
        meaning = {stop.name.lower(): text for stop, text in STOP_MEANING.items()}
        for name, title, columns, form in _COUNTED:
            if log[name]:
                words = meaning if name == "stopped" else {}
                rows = [(words.get(what, what), f"{count:{form}}") for what, count in log[name].items()]
                yield "log", Table(title, columns, rows)
        for name, title in (("faults", "Faults"), ("held_back", "Why nothing was written")):
            if log[name]:
                yield "faults", Table(title, ("what", "cycles", "first", "last"), [_fault(one) for one in log[name]])


def _fault(one: Mapping[str, Any]) -> tuple[str, ...]:
    what = one["what"] or f"stage {one['stage']}: {one['outcome']}"
    return what, f"{one['count']:,}", local_time(one["first"]), local_time(one["last"])


def effect(report: Mapping[str, Any]) -> Table:
    """The three: what happened, and the two replays."""
    replay = report["replay"]
    means = [replay["means"][of] for of in REPLAYS]
    rows = [
        (name, *(_value(metric, of[metric]) for of in means), in_words(Comparison(**replay["effect"][metric])))
        for metric, name in METRICS.items()
    ]
    how = {"active": " (with rltuned)", "canary": " (with rltuned for a part)"}.get(report["mode"], "")
    return Table(
        "The same jobs",
        ("", REPLAYS["real"] + how, REPLAYS["slurm"], REPLAYS["rltuned"], "rltuned / Slurm's order"),
        rows,
        f"Of all {replay['jobs']:,} jobs together; GPUs in use: mean over {replay['blocks']} blocks of consecutive "
        "jobs. Ratios are with their 95 % interval (paired bootstrap over the blocks); below 1 rltuned has less. "
        + ASK_TUNE,
        stacked=True,
    )


def _value(metric: str, value: float | None) -> str:
    is_time = metric not in {"bsld_mean", "utilization"}
    return duration(value) if is_time and value is not None else _or_dash(value, ",.1f")


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def _signed(seconds: float) -> str:
    return ("−" if seconds < 0 else "+") + duration(abs(seconds)) if round(seconds) else "0 s"


def _waits(row: Mapping[str, Any]) -> Iterator[str]:
    return (duration(row[f"wait_{of}"]) for of in REPLAYS)


def _group(kind: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        f"Who gains and who loses: {KINDS[kind]}",
        (KINDS[kind], "jobs", "change", "real wait", "Slurm's order", "rltuned", "sooner", "later"),
        [
            (
                *(row["name"], f"{row['jobs']:,}", _signed(row["change"]), *_waits(row)),
                *(f"{row['sooner']:,}", f"{row['later']:,}"),
            )
            for row in rows
        ],
        "Mean waits. The change is that of the two replays; sooner and later count jobs that differ by over a minute.",
    )


def _losses(rows: Sequence[Mapping[str, Any]]) -> Table:
    waits = ("waits more", "real wait", "Slurm's order", "rltuned")
    return Table(
        f"The {len(rows)} largest losses",
        ("job", "user", *waits, "GPUs", "ran", "account", "partition", "QOS"),
        [
            (
                *(str(row["job"]), row["user"], _signed(row["more"]), *_waits(row)),
                *(str(row["gpus"]), duration(row["run_time"]), row["account"], row["partition"], row["qos"]),
            )
            for row in rows
        ],
        "By the two replays. One job's wait is less certain than a mean over many.",
        text=("user", "account", "partition", "QOS"),
    )


_FORMS: Final = (".1%", ".2f", ".1%", ".2f")  # of `rltuned.lab.evaluate.window_metrics.AgainstSlurm`


def _fairness(found: Mapping[str, Mapping[str, float | None]]) -> Table:
    names = {"rltuned": "rltuned", "chance": "Slurm's order once more (chance)"}
    return Table(
        "Between accounts",
        ("over Slurm's order", "accounts worse off", "worst tenth", "late jobs", "95th percentile"),
        [
            (name, *(_or_dash(value, form) for value, form in zip(found[of].values(), _FORMS, strict=True)))
            for of, name in names.items()
        ],
        "Worse off: of five jobs and more, with a mean wait that is a tenth and five minutes longer. Worst tenth: the "
        "90th percentile over these accounts of the ratio of mean waits, five minutes added. Late: an hour and a tenth "
        "of the wait later. 95th percentile: over the jobs, of the ratio of waits, five minutes added.",
    )


def _lending(rows: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        "Who lent, and to whom",
        ("", "GPU-h lent", "lenders", "real wait", "Slurm's order", "rltuned", "GPU-h borrowed", "borrowers"),
        [
            (
                *(row["name"] or "all", gpu_hours(row["lent"]), f"{row['lenders']:,}", *_waits(row)),
                *(gpu_hours(row["borrowed"]), f"{row['borrowers']:,}"),
            )
            for row in rows
        ],
        "Of the replayed jobs, by the decisions that the log has. Lent is as it was when the lender was seen last, "
        "borrowed as it was when the loan was seen open last. Waits are the means of the lenders.",
    )


def _predictions(found: Mapping[str, Any]) -> Table:
    return Table(
        "Prediction quality",
        ("of the run time", "within a factor of 2"),
        [
            ("expected when the policy first saw the job", _or_dash(found["within_2_predicted"], ".0%")),
            ("time limit", _or_dash(found["within_2_limit"], ".0%")),
        ],
        f"{found['jobs']:,} jobs whose expectation the log has and that have ended; for {found['learned']:,} it rested "
        "on finished jobs, for the others on the time limit.",
    )


def _canary(found: Mapping[str, Any]) -> Table:
    over = Comparison(found["ratio"], found["lo"], found["hi"])
    return Table(
        "Stage canary: what really happened",
        ("", "jobs", "mean wait"),
        [
            ("canary", f"{found['jobs']:,}", duration(found["wait"])),
            ("others", f"{found['others']:,}", duration(found["wait_others"])),
        ],
        f"Canary / others {in_words(over)}. Fair only where scope.canary is a part of the jobs, drawn by lot; "
        "its partitions differ from the others in any case. The two share the cluster, so one's gain may be the "
        "other's loss.",
    )


def _ranks(mode: str, log: Mapping[str, Any]) -> Table:
    queue, jobs = log["queue"], log["jobs"]
    would = "would have been" if mode == "shadow" else "were"
    rows = [
        ("pending jobs, mean", f"{queue['pending_mean']:,.1f}"),
        ("pending jobs, most", f"{queue['pending_most']:,}"),
        ("managed jobs, mean", f"{queue['managed_mean']:,.1f}"),
        ("raised jobs, mean", f"{queue['raised_mean']:,.1f}"),
        ("changes wanted in a cycle, mean", f"{queue['changes_mean']:,.1f}"),
        ("longest wait seen", duration(queue["oldest"])),
        ("jobs that were managed", f"{jobs['managed']:,}"),
        (f"of these {would} raised at some time", f"{jobs['raised']:,}"),
        ("jobs that lent, and that borrowed", f"{jobs['lenders']:,}, {jobs['borrowers']:,}"),
        ("GPU-hours lent", gpu_hours(log["lent"])),
    ]
    if log["restored"]:
        rows.append(("given back to Slurm", f"{log['restored']:,}"))
    return Table(
        "What was seen and wanted",
        ("", ""),
        rows,
        f"Of {sum(log['cycles'].values()):,} cycles; jobs are counted from the {log['decisions']:,} decisions that the "
        "log has room for.",
    )
