"""What priority/multifactor adds up for each job, from sprio."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from rltuned.core.unread import RowKind, Unread
from rltuned.slurm import notation
from rltuned.slurm.commands import SITE_FIELDS
from rltuned.slurm.process import Runner, failure
from rltuned.slurm.separated import by_job


class Factors(NamedTuple):
    """What priority/multifactor adds up for one job."""

    site: int
    bases: tuple[int, ...]
    """The other terms together, before Slurm's floor of 1: of each partition, each value once, ascending."""
    decided: str
    """Terms of nice, partition, QOS and association that are not 0, "nice=20 partition=1000"; " or " between them."""

    def beside(self, other: "Factors") -> "Factors":
        """Of a job that stands in the queue at two places: another partition's, another task's. A task that was
        requeued may lack its array's site factor, or its array what the task has.
        """
        several = " or ".join(sorted({*self.decided.split(" or "), *other.decided.split(" or ")}))
        return Factors(self.site or other.site, tuple(sorted({*self.bases, *other.bases})), several)


def multifactor(runner: Runner, unread: Unread) -> dict[int, Factors | None]:
    """Factors of each job that is under multifactor: pending, eligible, not held, no explicit priority.

    sprio lists a job with an explicit priority with every term 0 and nothing for TRES (measured on all releases): None
    here, and so is one under multifactor that looks like it. Empty under priority/basic.
    """
    answer = runner.run("site-factors")
    if answer.code != 0:
        said = answer.stderr.lower()
        if "unable to find jobs" in said or "priority plugin" in said or "multifactor" in said:
            return {}
        raise failure(answer)
    return by_job(answer.stdout, SITE_FIELDS, "sprio", (RowKind.SITE_FACTOR, 1), _factors, unread)


def _factors(table: Sequence[Sequence[str]]) -> dict[int, Factors | None]:
    ids, sites, shown, tres, *terms = table
    numbers = list(map(notation.named_job, ids))
    site_of = {site: notation.integer(site) for site in set(sites)}
    for column in (shown, *terms):
        for number in set(column):
            notation.integer(number)
    for weighted in set(tres):
        notation.tres_terms(weighted)
    nothing = ("0",) * (len(terms) + 1)
    found: dict[int, Factors | None] = {}
    for job, site, priority, of_tres, *others in zip(numbers, sites, shown, tres, *terms, strict=True):
        if not of_tres and (site, *others) == nothing:
            found.setdefault(job)
            continue
        factor = site_of[site]
        base = _base(int(priority), factor, of_tres, others)
        known, one = found.get(job), Factors(factor, (base,), _decided(others[0], *others[4:]))
        found[job] = one.beside(known) if known else one
    return found


@lru_cache(maxsize=4096)
def _decided(nice: str, partition: str, qos: str, association: str) -> str:
    """As `Factors.decided`. Few differ, but a user may set any nice: hence the bound."""
    terms = {"nice": nice, "partition": partition, "qos": qos, "association": association}
    return " ".join(f"{name}={term}" for name, term in terms.items() if term != "0")


def _base(shown: int, site: int, tres: str, terms: Sequence[str]) -> int:
    """Slurm's sum without the site factor, fractions dropped: of one row of sprio, so of one moment."""
    base = shown - site
    if shown > 1:
        return base
    # Slurm shows 1 for every sum below 2, so only the terms tell. Each is rounded, and the sum is no more than `base`.
    nice, *others = (int(term) for term in terms)
    return min(base, sum(others) - nice + sum(notation.tres_terms(tres).values()))
