"""What jobs are called, as kinds that tell no name: name and work directory are made a number here, and go no further.

A name may hold newlines, separators, whole rows that look like Slurm's. So the columns are separated by a word that is
drawn for the one command: it stands behind each column, and a text that does not hold it changes no other column. Who
looks at the host's processes could see the word, and name a job by it while squeue is on its way. That costs the kinds
of this answer, or makes a job appear twice, which then has none.
"""

import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rltuned.core.errors import SlurmError, SlurmParseError
from rltuned.core.name_kinds import NameKind
from rltuned.slurm import notation
from rltuned.slurm.commands import ENDED_NAMES, WAITING_NAMES
from rltuned.slurm.process import Runner
from rltuned.slurm.sacct import answers

MOST_ASKED: Final = 2000
"""Jobs of one command: their texts are at most 11 MB (slurmctld takes names of 1,024 bytes, paths of 4,096), but those
of an array may be as much again for each of its tasks that was changed."""

Kinds = dict[tuple[int, float], int]
"""By job (of tasks that wait: their array) and submission or end, epoch seconds."""

_WORD = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class JobNames:
    """Reads them. Raises as `port.SlurmReader` does; each method may be called from another thread."""

    runner: Runner
    kind: NameKind
    draw: Callable[[], str] = secrets.token_hex
    """A word that nobody can know, of 64 hexadecimal digits."""

    def waiting(self, jobs: list[int]) -> Kinds:
        """Of waiting jobs, at most `MOST_ASKED`, some; 0 where nothing can be made of name and directory. Who does not
        wait any more is absent.
        """
        word = self.draw()
        columns = "".join(column + _separator(word) for column in WAITING_NAMES)
        answer = self.runner.ask("waiting-names", f"--jobs={','.join(map(str, jobs))}", f"--format={columns}")
        return kinds(answer, word, self.kind)

    def ended(self, start: float, end: float) -> Kinds:
        """As `waiting`, of jobs that ended in [start, end), epoch seconds. Where those of a minute have too much text,
        they are absent.
        """
        word = self.draw()
        found: Kinds = {}
        words = f"--delimiter={_separator(word)}"
        for _, _, answer in answers(self.runner, "ended-names", start, end, words, leaves=True):
            found |= kinds(answer, word, self.kind)
        return found


def kinds(answer: str, word: str, kind: NameKind) -> Kinds:
    """Of rows of id, time, user, name and directory, each with the separator of `word` behind it. SlurmParseError: the
    answer is cut short, or not of such rows.
    """
    *values, end = answer.split(_separator(word))
    width = len(ENDED_NAMES)
    firsts = values[::width]
    whole = end == "\n" * bool(values) and not len(values) % width
    if not whole or not all(first.startswith("\n") for first in firsts[1:]):
        raise SlurmParseError("names: the answer is cut short, or its rows and columns do not fit")
    found: Kinds = {}
    for first, time, *texts in zip(firsts, *(values[at::width] for at in range(1, width)), strict=True):
        with suppress(SlurmParseError):
            mark = notation.named_job(first.removeprefix("\n")), notation.known_epoch(time)
            one = kind(*texts)
            found[mark] = one if found.get(mark, one) == one else 0
    return found


def _separator(word: str) -> str:
    """SlurmError: others could know the word. A "w" begins it, and so no text and the begin of it are it together."""
    if not _WORD.fullmatch(word):
        raise SlurmError("names: refusing a word that others could know")
    return f"w{word}"
