"""Tables and sentences for people: what the commands print when nobody asked for JSON."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from rltuned.core.reasons import parse
from rltuned.core.wording import duration, gpu_hours, moment, plain, table, waited

if TYPE_CHECKING:  # most of these tables need no NumPy
    from rltuned.controller.health.status import Status
    from rltuned.decide.explain import Explanation
    from rltuned.decide.user_record import UserRecord


def plan_diff(console: Console, plan: Mapping[str, Any], limit: int) -> None:
    """Whom a plan (`decide.listing`) raises above Slurm's own order, at most `limit` of them; how many others wait.

    A line for each job, which fits into 80 columns with the longest ids and priorities that Slurm has.
    """
    raised, left = [job for job in plan["jobs"] if job["raised"]], Counter(job["why"] for job in plan["left"])
    console.print(
        f"[bold]{len(raised)}[/bold] jobs go ahead, {len(plan['changes'])} changes to write; policy "
        f"{plain(plan['policy'])}, lend.share {plan['lend']['share']:g}, lend.most {plan['lend']['most']}"
    )
    if plan["policy_why"]:
        console.print(f"  policy auto: {plain(plan['policy_why'])}")
    rows = [
        (
            job["id"],
            f"{job['slurm_place']} → {job['place']}",
            f"{job['slurm_priority']} → {job['priority']}",
            job["ahead_of"],
            len(job["lenders"]),
            gpu_hours(job["borrows_seconds"] * sum(lender["gpus"] for lender in job["lenders"])),
        )
        for job in raised[:limit]
    ]
    if rows:
        columns = ("job", "place", "priority", "ahead of", "lenders", "GPU-h")
        console.print(table("", columns, rows, right=columns))
    if len(raised) > limit:
        console.print(f"… {len(raised) - limit} more (--limit)")
    for job in [job for job in plan["jobs"] if job["placed"]][:limit]:
        way = job["placed"]
        console.print(f"  job {job['id']} starts now as planned: {way['kind']} on {plain(','.join(way['nodes']))}")
    reasons = ", ".join(f"{count} {why}" for why, count in left.items())
    console.print(
        f"{len(plan['jobs']) + left.total()} jobs wait: {len(plan['jobs'])} managed, {left.total()} left to Slurm"
        + (f" ({reasons})" if reasons else "")
    )


def status(console: Console, found: "Status") -> None:
    """`controller.health.status.Status`: a line for each thing, and one for each alarm."""
    last, said = found.last, {item.subject: item for item in found.findings}
    stage, cycle, raised = f"{found.configured} is configured", "-", "-"
    if last is None:
        cycle = "none in the decision log of the last 24 hours: `rltuned doctor` says what is missing"
    else:
        stage = last.stage + (f": {found.configured} is configured, but {last.held_back}" if last.held_back else "")
        cycle = f"{duration(max(found.now - last.time, 0.0))} ago, {last.outcome}: {last.sentence}"
    if last is not None and last.wanted is not None:
        raised = f"{last.wanted.raised} jobs wanted, {'-' if found.in_force is None else found.in_force} in force"
    daemon = said["daemon"]
    lines = {
        "stage": stage,
        "daemon": daemon.cause + (f": {daemon.remedy}" if daemon.remedy else ""),
        "paused": found.paused or "no",
        "last cycle": cycle,
        "raised": raised,
        "lent": f"{gpu_hours(found.lent)} GPU-hours in {found.loans} loans of the last 24 hours",
        "alarms": "" if found.alarms else "none that the files show (`rltuned doctor` asks Slurm, too)",
    }
    for name, text in lines.items():
        console.print(f"[bold]{name:<10}[/bold] {plain(text)}", soft_wrap=True)
    findings(console, found.alarms)


def explanation(console: Console, answer: "Explanation") -> None:
    """Why a job stands where it stands: a few sentences, and a table of features."""
    when = datetime.fromtimestamp(answer.time, UTC).astimezone()
    console.print(f"[bold]Job {answer.job_id}[/bold]: {answer.verdict.value} (decision of {when:%Y-%m-%d %H:%M:%S})")
    if answer.veto:
        console.print(f"  Why: {plain(answer.veto)}.")
        console.print("  rltuned does not touch it; its place is what Slurm gives it.")
        _reading(console, answer)
        _lending(console, answer)
        return
    if answer.rank is None:
        new = "The next cycle looks at it; `rltuned explain --fresh` does now."
        gone = "It was not in the queue then: it runs, has ended, or Slurm does not know it."
        console.print(f"  {gone if answer.priority is None else new}")
        _reading(console, answer)
        return
    wants = f"with rltuned it is at {answer.rank} (priority {answer.target_priority})"
    same = answer.rank == answer.slurm_rank and answer.target_priority == answer.slurm_priority
    console.print(
        f"  Of {answer.queue_size} managed jobs, Slurm alone has it at place {answer.slurm_rank} (priority "
        f"{answer.slurm_priority}){', and so has rltuned' if same else f'; {wants}'}."
    )
    _reading(console, answer)
    _lending(console, answer)
    if answer.passes is not None:
        _passing(console, answer)
    if answer.stopped:
        by = f" (job {answer.stopped_by})" if answer.stopped_by is not None else ""
        console.print(f"  It goes no further ahead: {answer.stopped}{by}.")
    if answer.score is not None:
        source = f"{'its' if answer.estimated_from == 'time limit' else 'such'} {answer.estimated_from}"
        if answer.run_time_low is not None and answer.run_time_high is not None:
            source += f"; with 80 % {duration(answer.run_time_low)} to {duration(answer.run_time_high)}"
        console.print(
            f"  Policy '{plain(answer.policy)}' scores it {answer.score:.4g}; {answer.better_scored} jobs score "
            f"higher. It takes {answer.gpus:g} GPU{'' if answer.gpus == 1 else 's'} for an expected "
            f"{duration(answer.run_time_estimate)} (from {source})."
        )
    if answer.start is not None and answer.start.low is not None:
        between = until(answer.start.low, answer.start.high, answer.time)
        console.print(f"  Expected to start {between} after that, with 80 % (`rltuned when {answer.job_id}`).")
        _unknown(console, answer.start.not_simulated)
    if answer.policy_terms:
        console.print(f"  By the policy, {plain(answer.policy_terms)} goes first.")
    if answer.policy_why:
        console.print(f"  Why this policy: {plain(answer.policy_why)}")
    if answer.placement:
        console.print(f"  Placement: {plain(answer.placement)}.")
    if answer.outcome:
        console.print(f"  Last write: {plain(answer.outcome)}.")
    elif answer.stage in {"shadow", "observe"}:
        why = f" ({plain(answer.held_back)})" if answer.held_back else ""
        console.print(f"  Stage '{answer.stage}'{why}: nothing was written to Slurm.")
    _numbers(console, answer)


def _reading(console: Console, answer: "Explanation") -> None:
    """What Slurm showed of the job when it was read."""
    if answer.priority is not None:
        site = "none that sprio shows" if answer.site_factor is None else answer.site_factor
        force = f": {answer.force}" if answer.force else ""
        console.print(f"  Priority {answer.priority}, site factor {site} at that reading{force}.")
        if answer.rank is None:
            reason = plain(answer.reason or "none")
            console.print(f"  Slurm's reason, {reason}: {plain(parse(answer.reason).meaning)}", soft_wrap=True)


def _lending(console: Console, answer: "Explanation") -> None:
    """How long a job waits, what it may lend for that, and what it has lent."""
    if answer.may_lend is None:
        return
    waits = "" if answer.wait is None else f"waits {waited(answer.wait)}; "
    ids = ", ".join(map(str, answer.borrowers))
    console.print(f"  It {waits}{lending(answer.may_lend, answer.lent, answer.loans, f' ({ids})' if ids else '')}.")
    if answer.lends_for:
        ahead = ", ".join(map(str, answer.lends_for))
        console.print(f"  It is passed by {ahead}, and lends to each of them that starts.")


def lending(may_lend: float, lent: float, loans: int, who: str = "") -> str:
    """What a waiting job may lend and has lent, GPU-seconds, to so many jobs; `who` they are."""
    has = f"has lent {gpu_hours(lent)} to {loans} job{'' if loans == 1 else 's'}{who}"
    if not loans:  # the loans themselves are not known any more, or were made while another job waited for it
        has = f"counts as having lent {gpu_hours(lent)} before" if lent > 0 else "has lent nothing"
    return f"may be passed until it has lent {gpu_hours(may_lend)} GPU-hours; {has}"


def _passing(console: Console, answer: "Explanation") -> None:
    """Whom a raised job passes, and what each lends."""
    passes = f"  It passes job {answer.passes} and those between."
    if not answer.lenders:
        console.print(f"{passes} Nobody lends: they are its user's, or cannot start.")
        return
    seconds = answer.charged or 0.0
    lenders = ", ".join(f"{gpu_hours(lender.gpus * seconds)} of job {lender.id}" for lender in answer.lenders)
    console.print(
        f"{passes} When it starts it borrows for {duration(seconds)}, in GPU-hours: {lenders}; what it really uses "
        "counts in the end."
    )


def _numbers(console: Console, answer: "Explanation") -> None:
    """What the score of a job is made of, and what the policy saw of it."""
    if answer.terms:
        parts = [
            (item.name, f"{item.value:.3f}", f"{item.coefficient:+.3f}", f"{item.product:+.3f}")
            for item in answer.terms
            if item.coefficient
        ]
        names = ("term", "this job", "coefficient now", "product")
        console.print(table(f"What its score {answer.score:.4g} is the sum of", names, parts, right=names[1:]))
    if answer.features:
        rows = [(item.name, f"{item.value:.3f}", f"{item.median:.3f}") for item in answer.features]
        columns = ("feature", "this job", "median of queue")
        title = "What the policy saw (0 to 1; docs/ranking.md says what each means)"
        console.print(table(title, columns, rows, right=columns[1:]))


def until(low: float, high: float | None, now: float) -> str:
    """Between two moments, seen from now; `high` None: nobody knows."""
    early = duration(max(low - now, 0.0))
    return f"in {early} or later" if high is None else f"in {early} to {duration(max(high - now, 0.0))}"


def user_record(console: Console, found: "UserRecord", now: float, *, only: bool) -> None:
    """`decide.user_record.UserRecord` for its user; `only`: one job was asked for."""
    age = max(now - found.time, 0.0)
    if not found.jobs:
        console.print(f"You have no pending jobs (as of {duration(age)} ago).")
    elif not only:
        console.print(f"Your {len(found.jobs) + found.left_out} pending jobs, as of {duration(age)} ago:")
    if age > 3 * found.interval + 60:
        console.print("This is old: rltuned has not ended a cycle since. If it was stopped, Slurm's own order counts.")
    if found.jobs and not found.moves:
        console.print("rltuned only watches just now: the places are those of Slurm's own order.")
    for job in found.jobs:
        facts = [
            f"waits for {waited(job.waited)}",
            f"{job.gpus} GPU{'' if job.gpus == 1 else 's'}",
            f"time limit {duration(job.time_limit)}",
        ]
        if job.place is not None:
            facts.insert(0, f"place {job.place} of {found.managed}")
            if job.slurm_place != job.place:
                facts[0] += f" (Slurm alone: {job.slurm_place})"
        if job.start is not None:
            facts.append(f"expected to start {until(job.start[0], job.start[1], now)}")
        console.print(f"[bold]Job {job.job_id}[/bold]: {', '.join(facts)}.", soft_wrap=True)
        console.print(f"  Slurm's reason, {plain(job.reason or 'none')}: {plain(job.meaning)}", soft_wrap=True)
        if job.may_lend is not None:
            console.print(f"  It {lending(job.may_lend, job.lent, job.loans)}.", soft_wrap=True)
        if job.lenders is not None:
            who = f"{job.lenders} job{' lends' if job.lenders == 1 else 's lend'} for that"
            console.print(f"  It goes ahead now; {who if job.lenders else 'nobody has to lend for that'}.")
        if job.note:
            about = "It goes no further ahead" if job.place is not None else "Left to Slurm"
            console.print(f"  {about}: {plain(job.note)}.", soft_wrap=True)
        for help_ in job.help:
            console.print(f"  What helps: {plain(help_.replace('JOBID', str(job.job_id)))}", soft_wrap=True)
    if any(job.start is not None for job in found.jobs):
        _unknown(console, found.not_simulated)
    if found.left_out:
        console.print(f"{found.left_out} more are further back and are not shown.")


def start_answer(console: Console, answer: Any, now: float) -> None:
    """`simulate.forecast.start_offer.JobAnswer`."""
    if answer.start is None:
        console.print(f"[bold]Job {answer.job_id}[/bold]: {plain(answer.waits_for)}", soft_wrap=True)
        return
    low, high = answer.start
    between = f"after {moment(low)}" if high is None else f"between {moment(low)} and {moment(high)}"
    console.print(
        f"[bold]Job {answer.job_id}[/bold] starts {between} with 80 % ({until(low, high, now)}), "
        f"{_likely(answer.likely, now)}.",
        soft_wrap=True,
    )
    console.print(f"  It waits: {plain(answer.waits_for)}", soft_wrap=True)
    _rests_on(console, answer.outcomes, answer.not_simulated)
    if now - answer.time > 300.0:
        console.print(f"  This is of {duration(now - answer.time)} ago: no cycle has ended since.")


def offer(console: Console, found: Any, now: float) -> None:
    """`simulate.forecast.start_offer.Offer`."""
    if found.found is None:
        where = f" in partition {plain(found.asked.partition)}" if found.asked.partition else ""
        console.print(
            f"Nothing that was simulated{where} asks for so much: it fits on no usual nodes, or its time limit "
            "is longer than allowed.",
            soft_wrap=True,
        )
        return
    console.print(f"{_request(found.found)}: {_start_of(found.found, now)}.", soft_wrap=True)
    for probe in found.sooner:
        console.print(f"  Sooner: {_request(probe)}: {_start_of(probe, now)}.", soft_wrap=True)
    _rests_on(console, found.outcomes, found.not_simulated)


def _request(probe: Any) -> str:
    gpus = f"{probe.gpus} GPU{'' if probe.gpus == 1 else 's'}, " if probe.gpus else ""
    nodes = "1 node" if probe.nodes == 1 else f"{probe.nodes} nodes, on each"
    return (
        f"Up to {nodes} {gpus}{probe.cpus} CPUs, {probe.mem / 1024:.0f} GiB for {duration(probe.time_limit)} in "
        f"partition {plain(probe.partition)}"
    )


def _start_of(probe: Any, now: float) -> str:
    if probe.low is None:
        return "starts later than the forecast goes"
    return f"starts {until(probe.low, probe.high, now)} with 80 %, {_likely(probe.middle, now)}"


def _likely(middle: float | None, now: float) -> str:
    if middle is None:
        return "most likely later than the forecast goes"
    return f"most likely at {moment(middle)} (in {duration(max(middle - now, 0.0))})"


def _rests_on(console: Console, outcomes: int, not_simulated: str) -> None:
    rest = f"on {outcomes} earlier forecasts" if outcomes else "on no earlier forecast yet: take it as a guess"
    console.print(f"  The interval rests {rest}.")
    _unknown(console, not_simulated)


def _unknown(console: Console, not_simulated: str) -> None:
    """What a forecast does not know of the site, where there is anything."""
    if not_simulated:
        console.print(f"  {plain(not_simulated[:1].upper() + not_simulated[1:])}.", soft_wrap=True)


def model(console: Console, info: Any) -> None:
    """`records.model_files.ModelInfo`."""
    rows = [
        ("order", info.summary),
        ("manifest", info.path),
        ("weights", f"sha256 {info.sha256}"),
        ("format", info.format_version),
        ("columns", ", ".join(info.columns)),
        ("network", f"{info.hidden} hidden units" if info.hidden else "none: the same rule at every moment"),
        ("method", info.method),
        ("data", info.data),
        *((f"  {name}", f"sha256 {digest}") for name, digest in info.traces.items()),
        ("seed", info.seed),
        ("revision", info.revision),
        ("settings", ", ".join(f"{name}={value}" for name, value in info.settings.items())),
        *((f"  {name}", f"{value:.6g}") for name, value in info.metrics.items()),
    ]
    console.print(table(plain(info.name), ("", "value"), rows))


SYMBOL: Final = {
    "ok": "[green]ok[/green]",
    "note": "[cyan]note[/cyan]",
    "warning": "[yellow]warn[/yellow]",
    "error": "[red]FAIL[/red]",
}


def findings(console: Console, items: Iterable[Any]) -> None:
    """Findings of `doctor`: severity, what, and the remedy. In a file or a pipe each is on one line: grep finds it."""
    whole = not console.is_terminal
    for item in items:
        symbol = SYMBOL.get(item.severity.value, item.severity.value)
        console.print(f"{symbol:>4}  {plain(item.subject)}: {plain(item.cause)}", soft_wrap=whole)
        if item.remedy:
            console.print(f"      → {plain(item.remedy)}", soft_wrap=whole)


def workload(console: Console, described: Mapping[str, Any]) -> None:
    """What a trace is like (`rltuned.simulate.workload.describe`)."""

    def number(key: str, form: str, unit: str = "", factor: float = 1) -> str:
        value = described[key]
        return "-" if value is None else f"{value * factor:{form}}{unit}"

    counts = described["gpu_counts"]
    histogram = ", ".join(f"{gpus}: {jobs:,}" for gpus, jobs in list(counts.items())[:10])
    rest = sum(list(counts.values())[10:])
    # What does not occur is not worth a line.
    rows = [("jobs", number("jobs", ","))]
    for key, label in (
        ("cpu_jobs", "  of no GPUs"),
        ("unknown_run_time", "  of unknown run time (taken as 0; not replayed)"),
        ("left_out", "not counted: never ran or not ended"),
        ("skipped", "not counted: lines that cannot be read"),
    ):
        if described[key]:
            rows.append((label, number(key, ",")))
    rows += [
        ("span", number("span", ",.1f", " d", 1 / 86_400)),
        ("mean wait", number("wait_mean", ",.1f", " s")),
        ("mean run time", number("run_mean", ",.1f", " s")),
        ("median run time", number("run_median", ",.0f", " s")),
        ("longest run time", number("run_max", ",.2f", " d", 1 / 86_400)),
        ("mean GPUs", number("gpus_mean", ".3f")),
        ("most GPUs", number("gpus_max", ",")),
        ("GPUs of all jobs", number("gpus_total", ",")),
        ("jobs of one GPU", number("one_gpu", ".1f", " %", 100)),
        ("arrivals", number("arrival_rate", ".6f", " jobs/s")),
        ("demand", number("demand", ",.1f", " GPUs busy if nobody waits")),
        ("users", number("users", ",") if described["users"] else "-"),
        ("partitions", number("partitions", ",") if described["partitions"] else "-"),
        ("jobs with a time limit", number("limit_known", ".1f", " %", 100)),
    ]
    if described["limit_used"] is not None:
        rows.append(("  of which they use", number("limit_used", ".1f", " % on average", 100)))
        rows.append(("  and reach it", number("limit_reached", ".1f", " % of these jobs", 100)))
    rows.append(("jobs by GPUs", histogram + (f", other: {rest:,}" if rest else "")))
    title = f"{plain(described['name'])} ({plain(described['form'])}, sha256 {described['sha256'][:12]})"
    console.print(table(title, ("", "value"), rows))


_DEMO_METRICS: Final = (
    ("wait_mean", "mean wait", duration),
    ("wait_p50", "median wait", duration),
    ("wait_p99", "99th percentile", duration),
    ("wait_max", "longest wait", duration),
    ("jct_mean", "mean completion time", duration),
    ("bsld_mean", "bounded slowdown", "{:.1f}".format),
    ("utilization", "GPUs in use, %", "{:.1f}".format),
)


def demo_summary(console: Console, summary: Mapping[str, Any], kept: Path | None, program: str) -> None:
    """What came of the demonstration (`lab.demo.demo_clusters.Demo.summary`), and where to look further. `kept`: its
    files; `program`: what the user types for rltuned.
    """
    cut = ", cut short" if summary["interrupted"] else ""
    console.print(
        f"\n{summary['jobs']['compared']} jobs that ran in both, {summary['cluster']['gpus']} GPUs, "
        f"{summary['virtual_seconds'] / 3600:.0f} h of cluster time in {summary['cycles']} cycles{cut}"
    )
    rows = []
    for name, text, form in _DEMO_METRICS:
        both = [summary[order][name] for order in ("multifactor", "rltuned")]
        change = summary["relative"].get(name)
        shown = [form(value) if math.isfinite(value) else "-" for value in both]
        rows.append((text, *shown, "" if change is None else f"{change:+.0%}"))
    columns = ("", "Slurm's multifactor", "with rltuned", "change")
    console.print(table("", columns, rows, right=columns[1:]))
    proof = summary["restore"]
    verdict = "[green]every one of them is again as Slurm and its users alone would have it[/green]"
    if proof["left"]:
        verdict = f"[red]{proof['left']} jobs are not as they were: this is a defect, please report it[/red]"
    theirs = f"; left alone, because people had changed them: {proof['others']}" if proof["others"] else ""
    console.print(
        f"\nUndo: at {proof['time'] / 3600:.1f} h the daemon was stopped and `rltuned restore` ran. "
        f"Of {proof['pending']} pending jobs {proof['changed']} carried a change, "
        f"{proof['restored']} were given back{theirs}; {verdict}."
    )
    if kept is not None and summary["example_job"] is not None:
        explain = f"{program} explain {summary['example_job']} --config {kept / 'config.toml'}"
        console.print(
            f"\nWhy a job stood where it stood: [bold]{plain(explain)}[/bold]\n"
            f"The page of `rltuned report`, of this demonstration: [bold]{plain(kept / 'report.html')}[/bold]\n"
            f"Is your own cluster ready, and what is missing: [bold]{plain(program)} doctor[/bold]",
            soft_wrap=True,
        )
