"""Tables and sentences for people: what the commands print when nobody asked for JSON."""

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from rltuned.core.reasons import parse
from rltuned.core.wording import duration, gpu_hours, local_time, plain, table, waited

if TYPE_CHECKING:  # most of these tables need no NumPy
    from rltuned.controller.health.prerequisites import Finding
    from rltuned.controller.shown.status import Status
    from rltuned.decide.decision import ProbeRecord
    from rltuned.decide.explain import Explanation
    from rltuned.decide.user_record import UserRecord
    from rltuned.records.model_files import ModelInfo
    from rltuned.simulate.forecast.start_offer import JobAnswer, LimitAnswer, StartOffer


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
    """`controller.shown.status.Status`: a line for each thing, and one for each alarm."""
    last, said = found.last, {item.subject: item for item in found.findings}
    stage, cycle, raised = f"{found.configured} is configured", "-", "-"
    if last is None:
        cycle = "none in the decision log of the last 24 hours: one comes soon after a start, else ask `rltuned doctor`"
    else:
        stage = last.stage + (f": {found.configured} is configured, but {last.held_back}" if last.held_back else "")
        cycle = f"{duration(max(found.now - last.time, 0.0))} ago, {last.outcome}: {last.sentence}"
    if last is not None and last.wanted is not None:
        raised = f"{last.wanted.raised} jobs wanted, {'-' if found.in_force is None else found.in_force} in force"
    share = "" if found.share is None else f"; a job may lend {found.share:g} of its wait"
    daemon = said["daemon"]
    lines = {
        "stage": stage,
        "daemon": daemon.cause + (f": {daemon.remedy}" if daemon.remedy else ""),
        "paused": found.paused or "no",
        "last cycle": cycle,
        "raised": raised,
        "lent": f"{gpu_hours(found.lent)} GPU-hours in {found.loans} loans of the last 24 hours{share}",
        "alarms": "" if found.alarms else "none that the files show (`rltuned doctor` asks Slurm, too)",
    }
    for name, text in lines.items():
        console.print(f"[bold]{name:<10}[/bold] {plain(text)}")
    findings(console, found.alarms)


def explanation(console: Console, answer: "Explanation") -> None:
    """Why a job stands where it stands: a few sentences, and tables of what its score is made of."""
    when = datetime.fromtimestamp(answer.time, UTC).astimezone()
    console.print(f"[bold]Job {answer.job_id}[/bold]: {answer.verdict.value} (decision of {when:%Y-%m-%d %H:%M:%S})")
    for sentence in _sentences(answer):
        console.print(f"  {sentence}")
    if answer.rank is None:
        return
    if answer.terms:
        parts = [
            (item.name, f"{item.value:.3f}", f"{item.coefficient:+.3f}", f"{item.product:+.3f}")
            for item in answer.terms
            if item.coefficient
        ]
        names = ("term", "this job", "coefficient now", "product")
        console.print(f"What its score {answer.score:.4g} is the sum of:", table("", names, parts, right=names[1:]))
    if answer.features:
        rows = [(item.name, f"{item.value:.3f}", f"{item.median:.3f}") for item in answer.features]
        columns = ("feature", "this job", "median of queue")
        console.print("What the policy saw (0 to 1; docs/ranking.md says what each means):")
        console.print(table("", columns, rows, right=columns[1:]))


def _sentences(answer: "Explanation") -> Iterator[str]:
    if answer.veto:
        yield f"Why: {plain(answer.veto)}."
        yield "rltuned does not touch it; its place is what Slurm gives it."
    elif answer.rank is None and answer.priority is None:
        yield "It was not in the queue then: it runs, has ended, or Slurm does not know it."
    elif answer.rank is None:
        yield "The next cycle looks at it; `rltuned explain --fresh` does now."
    else:
        wants = f"; with rltuned it is at {answer.rank} (priority {answer.target_priority})"
        same = answer.rank == answer.slurm_rank and answer.target_priority == answer.slurm_priority
        yield (
            f"Of {answer.queue_size} managed jobs, Slurm alone has it at place {answer.slurm_rank} (priority "
            f"{answer.slurm_priority}){', and so has rltuned' if same else wants}."
        )
    if answer.priority is not None:
        site = "none that sprio shows" if answer.site_factor is None else answer.site_factor
        force = f": {answer.force}" if answer.force else ""
        yield f"Priority {answer.priority}, site factor {site} at that reading{force}."
        if answer.rank is None:
            yield f"Slurm's reason, {plain(answer.reason or 'none')}: {plain(parse(answer.reason).meaning)}"
    if answer.may_lend is not None and (answer.veto or answer.rank is not None):
        waits = "" if answer.wait is None else f"waits {waited(answer.wait)}; "
        ids = ", ".join(map(str, answer.borrowers))
        yield f"It {waits}{lending(answer.may_lend, answer.lent, answer.loans, f' ({ids})' if ids else '')}."
        if answer.lends_for:
            ahead = ", ".join(map(str, answer.lends_for))
            yield f"It is passed by {ahead}, and lends to each of them that starts."
    if answer.rank is not None:
        yield from _of_a_managed_job(answer)


def _of_a_managed_job(answer: "Explanation") -> Iterator[str]:
    if answer.passes is not None and not answer.lenders:
        yield f"It passes job {answer.passes} and those between. Nobody lends: they are its user's, or cannot start."
    elif answer.passes is not None:
        seconds = answer.charged or 0.0
        lenders = ", ".join(f"{gpu_hours(lender.gpus * seconds)} of job {lender.id}" for lender in answer.lenders)
        yield (
            f"It passes job {answer.passes} and those between. When it starts it borrows for {duration(seconds)}, in "
            f"GPU-hours: {lenders}; what it really uses counts in the end."
        )
    if answer.stopped:
        by = f" (job {answer.stopped_by})" if answer.stopped_by is not None else ""
        yield f"It goes no further ahead: {answer.stopped}{by}."
    if answer.score is not None:
        source = f"{'its' if answer.estimated_from == 'time limit' else 'such'} {answer.estimated_from}"
        if answer.run_time_low is not None and answer.run_time_high is not None:
            source += f"; with 80 % {duration(answer.run_time_low)} to {duration(answer.run_time_high)}"
        yield (
            f"Policy '{plain(answer.policy)}' scores it {answer.score:.4g}; {answer.better_scored} jobs score higher. "
            f"It takes {_gpus(answer.gpus or 0)} for an expected {duration(answer.run_time_estimate)} (from {source})."
        )
    if answer.start is not None and answer.start.low is not None:
        between = until(answer.start.low, answer.start.high, answer.time)
        yield f"Expected to start {between} after that, with 80 % (`rltuned when {answer.job_id}`)."
        if answer.start.not_simulated:
            yield _unknown(answer.start.not_simulated)
    if answer.policy_terms:
        yield f"By the policy, {plain(answer.policy_terms)} goes first."
    if answer.policy_why:
        yield f"Why this policy: {plain(answer.policy_why)}"
    if answer.placement:
        yield f"Placement: {plain(answer.placement)}."
    if answer.outcome:
        yield f"Last write: {plain(answer.outcome)}."
    elif answer.stage in {"shadow", "observe"}:
        why = f" ({plain(answer.held_back)})" if answer.held_back else ""
        yield f"Stage '{answer.stage}'{why}: nothing was written to Slurm."


def lending(may_lend: float, lent: float, loans: int, who: str = "") -> str:
    """What a waiting job may lend and has lent, GPU-seconds, to so many jobs; `who` they are."""
    has = f"has lent {gpu_hours(lent)} to {loans} job{'' if loans == 1 else 's'}{who}"
    if not loans:  # the loans themselves are not known any more, or were made while another job waited for it
        has = f"counts as having lent {gpu_hours(lent)} before" if lent > 0 else "has lent nothing"
    return f"may be passed until it has lent {gpu_hours(may_lend)} GPU-hours; {has}"


def _gpus(count: float) -> str:
    return f"{count:g} GPU{'' if count == 1 else 's'}"


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
        facts = [f"waits for {waited(job.waited)}", _gpus(job.gpus), f"time limit {duration(job.time_limit)}"]
        if job.place is not None:
            alone = f" (Slurm alone: {job.slurm_place})" if job.slurm_place != job.place else ""
            facts.insert(0, f"place {job.place} of {found.managed}{alone}")
        if job.start is not None:
            facts.append(f"expected to start {until(job.start[0], job.start[1], now)}")
        console.print(f"[bold]Job {job.job_id}[/bold]: {', '.join(facts)}.")
        console.print(f"  Slurm's reason, {plain(job.reason or 'none')}: {plain(job.meaning)}")
        if job.may_lend is not None:
            console.print(f"  It {lending(job.may_lend, job.lent, job.loans)}.")
        if job.lenders is not None:
            who = f"{job.lenders} job{' lends' if job.lenders == 1 else 's lend'} for that"
            console.print(f"  It goes ahead now; {who if job.lenders else 'nobody has to lend for that'}.")
        if job.note:
            about = "It goes no further ahead" if job.place is not None else "Left to Slurm"
            console.print(f"  {about}: {plain(job.note)}.")
        for help_ in job.help:
            console.print(f"  What helps: {plain(help_.replace('JOBID', str(job.job_id)))}", soft_wrap=True)
    if found.not_simulated and any(job.start is not None for job in found.jobs):
        console.print(f"  {_unknown(found.not_simulated)}")
    if found.left_out:
        console.print(f"{found.left_out} more are further back and are not shown.")


def start_answer(console: Console, answer: "JobAnswer", now: float) -> None:
    """When a pending job starts."""
    if answer.start is None:
        console.print(f"[bold]Job {answer.job_id}[/bold]: {plain(answer.waits_for)}")
        return
    console.print(f"[bold]Job {answer.job_id}[/bold] {_starts(*answer.start, answer.likely, now)}.")
    console.print(f"  It waits: {plain(answer.waits_for)}")
    _rests_on(console, answer.outcomes, answer.not_simulated)
    _says_if_old(console, answer.time, now)


def limit_answer(console: Console, answer: "LimitAnswer", now: float) -> None:
    """When a pending job would start with another time limit."""
    job, found = answer.job, answer.found
    name = f"[bold]Job {job.job_id}[/bold]"
    if found is None:
        console.print(f"{name} with a time limit of {duration(answer.asked)}: {plain(answer.meaning)}")
    else:
        starts = _starts(found.low, found.high, found.middle, now)
        console.print(f"{name} with a time limit of up to {duration(found.time_limit)} {starts}.")
    if job.start is not None:
        of = "" if answer.own is None else f" of {duration(answer.own)}"
        console.print(f"  With its own{of} it {_starts(*job.start, job.likely, now)}.")
    if job.start is not None or found is not None:
        _rests_on(console, job.outcomes, job.not_simulated)
        console.print("  All of them were of jobs with their own limits. Its place in the queue is taken to stay.")
    _says_if_old(console, job.time, now)


def own_starts(console: Console, found: "UserRecord", now: float) -> None:
    """When a user's pending jobs start, also with shorter limits, and what the last jobs took of theirs."""
    from rltuned.simulate.forecast.start_offer import telling_limits

    many = len(found.jobs) + found.left_out
    said = f"Your {many} pending jobs" if many > 1 else "Your pending job" if many else "You have no pending jobs"
    console.print(f"{said}, as of {duration(max(now - found.time, 0.0))} ago{':' if many else '.'}")
    for job in found.jobs:
        starts = "no start is forecast" if job.start is None else _starts(*job.start, job.likely, now)
        console.print(f"[bold]Job {job.job_id}[/bold] (time limit {duration(job.time_limit)}): {starts}.")
        for one in telling_limits(job.shorter):
            sooner = f"{until(one.low, one.high, now)}, {_likely(one.middle, now)}"
            console.print(f"  With a limit of up to {duration(one.time_limit)}: {sooner}.")
    if any(job.start is not None for job in found.jobs):
        _rests_on(console, found.outcomes, found.not_simulated)
    if found.left_out:
        console.print(f"{found.left_out} more are further back and are not shown.")
    if (used := found.limits_used) is not None:
        jobs = f"{used.jobs} jobs" if used.jobs > 1 else "job"
        console.print(
            f"Your last {jobs} that ended ran for {duration(used.ran)} of the {duration(used.asked)} that their time "
            f"limits asked for ({used.ran / used.asked * 100:.0f} %); {used.reached or 'none'} of them reached it."
        )


def _starts(low: float, high: float | None, likely: float | None, now: float) -> str:
    between = f"after {local_time(low)}" if high is None else f"between {local_time(low)} and {local_time(high)}"
    return f"starts {between} with 80 % ({until(low, high, now)}), {_likely(likely, now)}"


def _says_if_old(console: Console, time: float, now: float) -> None:
    if now - time > 300.0:
        console.print(f"  This is of {duration(now - time)} ago: no cycle has ended since.")


def offer(console: Console, found: "StartOffer", now: float) -> None:
    """When a job would start that nobody has submitted."""
    if found.found is None:
        where = f" in partition {plain(found.asked.partition)}" if found.asked.partition else ""
        console.print(
            f"Nothing that was simulated{where} asks for so much: it fits on no usual nodes, or its time limit "
            "is longer than allowed."
        )
        return
    console.print(f"{_probe(found.found, now)}.")
    for probe in found.sooner:
        console.print(f"  Sooner: {_probe(probe, now)}.")
    _rests_on(console, found.outcomes, found.not_simulated)


def offers(console: Console, found: Sequence["StartOffer"], now: float) -> None:
    """The same with each of several time limits."""
    for one in found:
        if one.found is not None:
            console.print(f"{_probe(one.found, now)}.")
    _rests_on(console, found[0].outcomes, found[0].not_simulated)


def _probe(probe: "ProbeRecord", now: float) -> str:
    """What was simulated, and when that starts."""
    gpus = f"{_gpus(probe.gpus)}, " if probe.gpus else ""
    nodes = "1 node" if probe.nodes == 1 else f"{probe.nodes} nodes, on each"
    starts = "starts later than the forecast goes"
    if probe.low is not None:
        starts = f"starts {until(probe.low, probe.high, now)} with 80 %, {_likely(probe.middle, now)}"
    return (
        f"Up to {nodes} {gpus}{probe.cpus} CPUs, {probe.mem / 1024:.0f} GiB for {duration(probe.time_limit)} in "
        f"partition {plain(probe.partition)}: {starts}"
    )


def _likely(middle: float | None, now: float) -> str:
    if middle is None:
        return "most likely later than the forecast goes"
    return f"most likely at {local_time(middle)} (in {duration(max(middle - now, 0.0))})"


def _rests_on(console: Console, outcomes: int, not_simulated: str) -> None:
    rest = f"on {outcomes} earlier forecasts" if outcomes else "on no earlier forecast yet: take it as a guess"
    console.print(f"  The interval rests {rest}.")
    if not_simulated:
        console.print(f"  {_unknown(not_simulated)}")


def _unknown(not_simulated: str) -> str:
    """What a forecast does not know of the site."""
    return f"{plain(not_simulated[:1].upper() + not_simulated[1:])}."


def model(console: Console, info: "ModelInfo") -> None:
    """What a model file is."""
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
    _facts(console, info.name, rows)


def _facts(console: Console, title: str, rows: Sequence[tuple[str, object]]) -> None:
    """A line for each; a value that is wider than a terminal goes on below its beginning."""
    console.print(plain(title), style="italic")
    widest = max(len(label) for label, _ in rows)
    for label, value in rows:
        head = f"{plain(label):<{widest}}  "
        text = textwrap.fill(plain(value), console.width, initial_indent=head, subsequent_indent=" " * len(head))
        console.print(text, soft_wrap=True)


SYMBOL: Final = {
    "ok": "[green]ok[/green]",
    "note": "[cyan]note[/cyan]",
    "warning": "[yellow]warn[/yellow]",
    "error": "[red]FAIL[/red]",
}


def findings(console: Console, items: Iterable["Finding"]) -> None:
    """Severity, what, and the remedy."""
    for item in items:
        console.print(f"{SYMBOL[item.severity.value]:>4}  {plain(item.subject)}: {plain(item.cause)}")
        if item.remedy:
            console.print(f"      → {plain(item.remedy)}")


def workload(console: Console, described: Mapping[str, Any]) -> None:
    """What a trace is like (`rltuned.simulate.workload.describe`). What does not occur is not worth a line."""
    counts = described["gpu_counts"]
    described = {**described, "users": described["users"] or None, "partitions": described["partitions"] or None}
    hidden = {key for key in ("cpu_jobs", "unknown_run_time", "left_out", "skipped") if not described[key]}
    hidden |= {key for key in ("limit_used", "limit_reached") if described[key] is None}
    shown = ", ".join(f"{gpus}: {jobs:,}" for gpus, jobs in list(counts.items())[:10])
    rest = sum(list(counts.values())[10:])
    days, percent = 1 / 86_400, 100.0
    rows = [
        (label, "-" if described[key] is None else f"{described[key] * factor:{form}}{unit}")
        for label, key, form, unit, factor in (
            ("jobs", "jobs", ",", "", 1),
            ("  of no GPUs", "cpu_jobs", ",", "", 1),
            ("  of unknown run time (taken as 0; not replayed)", "unknown_run_time", ",", "", 1),
            ("not counted: never ran or not ended", "left_out", ",", "", 1),
            ("not counted: lines that cannot be read", "skipped", ",", "", 1),
            ("span", "span", ",.1f", " d", days),
            ("mean wait", "wait_mean", ",.1f", " s", 1),
            ("mean run time", "run_mean", ",.1f", " s", 1),
            ("median run time", "run_median", ",.0f", " s", 1),
            ("longest run time", "run_max", ",.2f", " d", days),
            ("mean GPUs", "gpus_mean", ".3f", "", 1),
            ("most GPUs", "gpus_max", ",", "", 1),
            ("GPUs of all jobs", "gpus_total", ",", "", 1),
            ("jobs of one GPU", "one_gpu", ".1f", " %", percent),
            ("arrivals", "arrival_rate", ".6f", " jobs/s", 1),
            ("demand", "demand", ",.1f", " GPUs busy if nobody waits", 1),
            ("users", "users", ",", "", 1),
            ("partitions", "partitions", ",", "", 1),
            ("jobs with a time limit", "limit_known", ".1f", " %", percent),
            ("  of which they use", "limit_used", ".1f", " % on average", percent),
            ("  and reach it", "limit_reached", ".1f", " % of these jobs", percent),
        )
        if key not in hidden
    ]
    rows.append(("jobs by GPUs", shown + (f", other: {rest:,}" if rest else "")))
    _facts(console, f"{described['name']} ({described['form']}, sha256 {described['sha256'][:12]})", rows)


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
