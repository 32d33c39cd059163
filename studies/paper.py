"""The part of the page that stands beside the RLTune paper."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rltuned.evaluate.settings import PLAIN, STRICT
from studies.catalogue import (
    BASES,
    NETWORK,
    NOISY,
    RAW_BASE,
    RAW_COLUMNS,
    STRICT_TARGETS,
    TOP_K,
    Part,
    Study,
    base_label,
)
from studies.tables import Together, heading, number, ratio_text, row, verdict

PHILLY: Final = {"FIFO": (142391.0, 169651.0, 1298.0), "RLTune": (34200.0, 85762.0, 232.8)}
"""The paper's Philly row: mean wait (s), mean completion time (s), mean bounded slowdown."""

_METRICS: Final = ("wait_mean", "jct_mean", "bsld_mean")

_INTRODUCTION: Final = """\
RLTune: Dongare et al., "Hybrid Learning and Optimization-Based Dynamic Scheduling for DL Workloads on Heterogeneous GPU
Clusters", SoCC'25, doi 10.1145/3772052.3772257, arXiv 2512.10271; the authors' code is github.com/dshruti20/RLTune.

**What was found of it.** When this page was written, the paper's abstract and the code's README were at hand, and of
its results only the Philly row below, as this project's yardstick quotes it. The abstract claims GPU utilisation up to
+20 %, queueing delay up to −81 %, completion time up to −70 %. The cells of Fig. 12 and of Tables 6 to 9 could not be
looked up, so they are not repeated here; nothing below is a number of the paper unless it says so. Table 7 is
understood to show models that were trained with one base policy and tested against another. The other three are
understood to be about the comparison with RLScheduler and SchedInspector, the policy with and without the integer
program, raw against sampled features (both § 5.1), and utilisation; which number belongs to which could not be
verified. So the sections below go by subject.

**Why the numbers cannot be put in one column.** The paper's FIFO is strict (no backfill) and places by worst fit while
its learned policy places by best fit; its windows are other jobs than ours; its "utilisation" is busy 8-GPU nodes, not
per cent; WFP3 and UNICEP are inverted in its code. What can be compared is how far each is below a strict FIFO of its
own, and that says little: plain rules are as far below."""


def paper(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[str]:
    """`of`: results by the name of the protocol."""
    yield from ["## The paper's figures and tables, by subject", "", _INTRODUCTION, ""]
    yield from ["### Fig. 12 and the Philly row: wait, completion time, slowdown", "", *_philly(of), ""]
    yield from ["### Table 7: trained with one base policy, tested against another", "", *_bases(of, studies), ""]
    yield from ["### RLScheduler and SchedInspector", "", *_peers(of, studies), ""]
    yield from ["### With and without the integer program (§ 5.1)", "", *_milp(of, studies), ""]
    yield from ["### Raw and sampled features (§ 5.1)", "", *_raw(of, studies), ""]
    yield from ["### Utilisation", "", *_utilization(of)]


def _raw(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[str]:
    yield (
        "The paper samples 8 of its features by a heuristic from cycle to cycle; here the 8 are always the same "
        "(docs/features.md, decision 0010). Compared are two networks "
        f"that correct no rule, trained alike with the base policy {RAW_BASE} (`rltuned train --rule {RAW_BASE} "
        f"--columns …`): one sees all 8, the other only what a job says of "
        f"itself ({', '.join(RAW_COLUMNS)}). Mean wait; both without rollouts."
    )
    yield ""
    yield from heading(
        ("protocol", "8 columns over the best rule", "raw over the best rule", "raw over 8 columns", "slowdown"), 4
    )
    for study in studies:
        if study.part is not Part.RAW:
            continue
        one, sampled = of.get(study.protocol.name), base_label(RAW_BASE)
        if one is None or not {study.label, sampled} <= one.parts.keys():
            yield row((study.protocol.name, _absent(True), *[""] * 3))
            continue
        ratios = (
            one.ratio(sampled, one.best),
            one.ratio(study.label, one.best),
            one.ratio(study.label, sampled),
            one.ratio(study.label, sampled, "bsld_mean"),
        )
        yield row((study.protocol.name, *map(ratio_text, ratios)))


def _philly(of: Mapping[str, Together]) -> Iterator[str]:
    names = ("wait s", "completion s", "slowdown")
    yield from heading(
        (
            "Philly, 160 GPUs, 1,024 jobs, true run times",
            *names,
            "wait −%",
            "completion −%",
            "slowdown −%",
        ),
        6,
    )
    for name, theirs in PHILLY.items():
        less = [
            "" if name == "FIFO" else f"{100 * (1 - a / b):.0f}" for a, b in zip(theirs, PHILLY["FIFO"], strict=True)
        ]
        yield row((f"the paper's {name}", *(number(cell, int(k == 2)) for k, cell in enumerate(theirs)), *less))
    one = of.get("philly-20x8-true-easy")
    if one is None:
        yield ""
        yield "Ours: not run yet."
        return
    for label in dict.fromkeys((STRICT, "fifo", one.best, "multifactor", *one.parts)):
        ratios = [one.ratio(label, STRICT, metric).ratio for metric in _METRICS]
        saved = ["" if label == STRICT or r is None else f"{100 * (1 - r):.0f}" for r in ratios]
        cells = [number(one.mean(label, metric), 1 if metric == "bsld_mean" else 0) for metric in _METRICS]
        yield row((f"ours: {label}{', the best plain rule' if label == one.best else ''}", *cells, *saved))
    yield ""
    targets = [
        f"{metric.removesuffix('_mean')} ≤ {most:.2f} of {STRICT}: {ratio_text(one.ratio('rl', STRICT, metric))}, "
        f"{verdict(one.ratio('rl', STRICT, metric), most)}"
        for metric, most in STRICT_TARGETS.items()
    ]
    yield f"Targets of `rl`: {'; '.join(targets)}. Box plots: the images of philly-20x8-true-easy below."


def _bases(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[str]:
    yield (
        "Mean wait of the model over that of each rule, without rollouts. The shipped model starts from SAF; the "
        "authors' code trains with "
        f"{', '.join(BASES)} (`rltuned train --rule`). Beside SJF the network corrects the rule; beside the others it "
        f"stands alone."
    )
    for protocol in dict.fromkeys(study.protocol for study in studies if study.part is Part.BASE):
        one = of.get(protocol.name)
        yield from ["", *heading((f"{protocol.name}: trained with", *PLAIN), len(PLAIN))]
        for label, title in [(NETWORK, "saf (shipped)"), *((base_label(base), base) for base in BASES)]:
            if one is None or label not in one.parts:
                yield row((title, _absent(title in BASES), *[""] * (len(PLAIN) - 1)))
            else:
                yield row((title, *(ratio_text(one.ratio(label, rule)) for rule in PLAIN)))


def _peers(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[str]:
    yield (
        "Trained on our simulator with their own hyper-parameters and the same budget (docs/peers.md). Mean wait over "
        "that "
        "of the best plain rule, and of `rl` over theirs."
    )
    yield ""
    yield from heading(("protocol", "peer", "over the best rule", "slowdown over the best rule's", "`rl` over it"), 3)
    for study in studies:
        if study.part is not Part.PEER:
            continue
        one = of.get(study.protocol.name)
        if one is None or study.label not in one.parts:
            yield row((study.protocol.name, study.label, _absent(True), "", ""))
            continue
        ratios = (
            one.ratio(study.label, one.best),
            one.ratio(study.label, one.best, "bsld_mean"),
            one.ratio("rl", study.label),
        )
        yield row((study.protocol.name, study.label, *map(ratio_text, ratios)))


def _milp(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[str]:
    yield (
        "`rl` places by best fit; `rl+milp` lets the integer program name the nodes of its first K jobs. Both without "
        "rollouts, which would try to mend the "
        "order that either is given. Below 1.000 the program is worth its time. Seconds are of the machine that made "
        "the results."
    )
    yield ""
    yield from heading(
        (
            f"protocol, σ = {NOISY.partition(':')[2]}",
            "K",
            "wait over `rl`",
            "slowdown",
            "p99 wait",
            "GPU %",
            "s per window",
        ),
        6,
    )
    for study in studies:
        if study.part is not Part.MILP:
            continue
        one, name = of.get(study.protocol.name), study.protocol.name
        if one is None or not {study.label, NETWORK} <= one.parts.keys():
            yield row((name, str(study.top_k), _absent(False), *[""] * 4))
            continue
        if study.top_k == TOP_K[0]:
            seconds = one.reports[f"{name}-{Part.ORDER}"]["policies"]["rl"]["seconds"]
            plain = number(one.mean(NETWORK, "utilization"), 1), number(seconds, 1)
            yield row((name, "none", "", "", "", *plain))
        ratios = [one.ratio(study.label, NETWORK, metric) for metric in ("wait_mean", "bsld_mean", "wait_p99")]
        seconds = one.reports[study.name]["policies"]["rl+milp"]["seconds"]
        used = number(one.mean(study.label, "utilization"), 1), number(seconds, 1)
        yield row((name, str(study.top_k), *map(ratio_text, ratios), *used))


def _utilization(of: Mapping[str, Together]) -> Iterator[str]:
    yield (
        "GPU-seconds held in % of what the cluster had, from the first submission to the last end: one long job at "
        "the end lowers it for everybody, "
        "and a policy that keeps it high by letting others wait gains nothing. The paper claims up to +20 %."
    )
    yield ""
    if not of:
        yield "Not run yet."
        return
    yield from heading(
        ("protocol", STRICT, "fifo", "best plain rule", "rl", "rl over fifo-strict", "rl over best rule"), 6
    )
    for name, one in of.items():
        cells = [number(one.mean(label, "utilization"), 1) for label in (STRICT, "fifo", one.best, "rl")]
        ratios = [ratio_text(one.ratio("rl", other, "utilization")) for other in (STRICT, one.best)]
        yield row((name, *cells, *ratios))


def _absent(training: bool) -> str:
    return "not trained here yet" if training else "not run yet"
