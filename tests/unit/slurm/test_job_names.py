"""What jobs are called: that no text forges another job's row, and that no text leaves the room that reads it."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.slurm.standin import StandIn

from rltuned.core.config import SlurmSection
from rltuned.core.errors import SlurmError, SlurmParseError, SlurmUnavailableError
from rltuned.core.name_kinds import NameKinds
from rltuned.slurm.commands import ENDED_NAMES, SEPARATOR, WAITING_NAMES
from rltuned.slurm.connect import open_reader
from rltuned.slurm.job_names import JobNames, kinds
from rltuned.slurm.port import JobNamesReader

KIND = NameKinds(b"a key of some length, of the tests")
WORD, OTHER = "0123456789abcdef" * 4, "f" * 64
HOME = "/home/ann/nets"
WITHOUT = "a word of somebody else's"


def said(*rows, word=WORD):
    """squeue's, or sacct's, answer: columns as bytes, as Slurm prints them, read as rltuned reads them."""
    answer = b""
    for row in rows:
        for value in row:
            answer += (value if isinstance(value, bytes) else str(value).encode()) + f"w{word}".encode()
        answer += b"\n"
    return answer.decode("utf-8", "replace")


def row(job, name, directory=HOME, user="ann", time=1000):
    return (job, time, user, name, directory)


def test_names_are_read_as_kinds_by_job_and_time():
    found = kinds(said(row(7, "train_1"), row(8, "train_2", time=2000), row(9, "eval")), WORD, KIND)
    assert found.keys() == {(7, 1000.0), (8, 2000.0), (9, 1000.0)}
    assert found[7, 1000.0] == found[8, 2000.0] == KIND("ann", "train_3", HOME)
    assert found[9, 1000.0] == KIND("ann", "eval", HOME)
    assert kinds("", WORD, KIND) == {}


FORGED = [
    *(f"x\n{job}w{OTHER}1000w{OTHER}bobw{OTHER}evilw{OTHER}/w{OTHER}\n" for job in (7, 8)),
    *(f"x{mark}\n8{mark}1000{mark}bob{mark}evil{mark}/{mark}\n" for mark in ("w", "%j", SEPARATOR, "|", "\0", WITHOUT)),
    *(f"w{WORD[:-1]}", WORD, f"w{WORD[:-1]}\n8", "\n", "\n\n8", "\r", "x" * 10_240),
]


@pytest.mark.parametrize("name", [*FORGED, b"caf\xe9", b"\xff\xfe", b"\xed\xa0\x80"])
def test_a_strange_name_or_directory_costs_itself_only(name):
    usual = kinds(said(row(8, "train", user="bob")), WORD, KIND)
    for strange in (row(7, name), row(7, "train", name), row(7, name, name)):
        for order in ((strange, row(8, "train", user="bob")), (row(8, "train", user="bob"), strange)):
            found = kinds(said(*order), WORD, KIND)
            assert {job: one for job, one in found.items() if job != (7, 1000.0)} == usual
    if isinstance(name, bytes) or not name.isprintable() or len(name) > 300:
        assert kinds(said(row(7, name)), WORD, KIND) == {(7, 1000.0): 0}


FRAGMENTS = st.sampled_from(
    [*FORGED, *(f"w{WORD[:at]}" for at in (0, 1, 32, 63)), *(WORD[at:] for at in (0, 1, 32, 63)), "8", "1000", "bob"]
)
TEXTS = st.lists(FRAGMENTS | st.text(max_size=5) | st.binary(max_size=5), max_size=8).map(
    lambda parts: b"".join(part.encode() if isinstance(part, str) else part for part in parts)
)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6))
def test_whatever_others_call_their_jobs_each_row_says_what_it_says_alone(texts):
    # Who does not know the word writes what they like but the word: `w` and its 32 digits behind each other.
    texts = [pair for pair in texts if not any(f"w{WORD}".encode() in text for text in pair)]
    rows = [row(10 + at, *pair, user=f"u{at}") for at, pair in enumerate(texts)]
    alone = [kinds(said(one), WORD, KIND) for one in rows]
    together = kinds(said(*rows), WORD, KIND)
    assert together == {mark: one for found in alone for mark, one in found.items()}
    assert together.keys() == {(10 + at, 1000.0) for at in range(len(rows))}


def test_who_knows_the_word_takes_the_kinds_of_an_answer_and_gives_nobody_another_one():
    forged = f"xw{WORD}/w{WORD}\n8w{WORD}1000w{WORD}bobw{WORD}evil"
    found = kinds(said(row(7, forged), row(8, "train", user="bob"), row(9, "train")), WORD, KIND)
    assert (found[8, 1000.0], found[9, 1000.0]) == (0, KIND("ann", "train", HOME)), "a job that is there twice has none"
    with pytest.raises(SlurmParseError):
        kinds(said(row(7, f"w{WORD}"), row(8, "train")), WORD, KIND)
    twice = kinds(said(*[row(7, "train")] * 3, *[row(8, name) for name in ("a", "b", "b")]), WORD, KIND)
    assert twice == {(7, 1000.0): KIND("ann", "train", HOME), (8, 1000.0): 0}


@pytest.mark.parametrize("cut", [1, 2, 40, 90])
def test_a_truncated_answer_is_an_error_that_says_no_name(cut):
    with pytest.raises(SlurmParseError, match="cut short") as error:
        kinds(said(row(7, "private"), row(8, "private"))[:-cut], WORD, KIND)
    assert "private" not in str(error.value)
    assert WORD not in str(error.value)


def test_a_row_whose_number_or_time_is_none_is_left_out():
    assert kinds(said(row("7_1", "a"), row(0, "a"), row(8, "a", time="N/A"), row(9, "a")), WORD, KIND).keys() == {
        (9, 1000.0)
    }


@pytest.mark.parametrize("word", ["", "x" * 64, "ab", WORD + "\n", WORD.upper()])
def test_a_word_that_others_could_know_is_refused(word, slurm):
    names = JobNames(slurm.runner(), KIND, lambda: word)
    for read in (lambda: names.waiting([7]), lambda: names.ended(1.0, 2.0), lambda: kinds("", word, KIND)):
        with pytest.raises(SlurmError, match="others could know"):
            read()
    assert slurm.calls == []


def test_each_call_has_a_word_of_its_own(slurm):
    for name in ("waiting-names", "ended-names"):
        slurm.answer(name, "")
    names = JobNames(slurm.runner(), KIND)
    for _ in range(2):
        assert names.waiting([7]) == names.ended(900.0, 1100.0) == {}
    words = re.findall(r"%u(w[0-9a-f]{64})%j|--delimiter=(w[0-9a-f]{64})", "\n".join(slurm.calls))
    assert len(set(words)) == 4


@pytest.fixture
def slurm(tmp_path) -> StandIn:
    return StandIn(tmp_path / "slurm")


def test_squeue_is_asked_for_the_jobs_that_are_named_with_the_word_behind_each_column(slurm):
    slurm.answer("waiting-names", said(row(7, "train"), row(8, b"a\n9|\xe9", user="bob")))
    reader = open_reader(SlurmSection(bin_dir=slurm.bin_dir))
    assert isinstance(reader, JobNamesReader)
    names = replace(reader.job_names(KIND), draw=lambda: WORD)
    assert names.waiting([7, 8]) == {(7, 1000.0): KIND("ann", "train", HOME), (8, 1000.0): 0}
    (call,) = slurm.calls
    assert call.endswith(f"--states=PD --jobs=7,8 --format={''.join(f'{column}w{WORD}' for column in WAITING_NAMES)}")


def test_sacct_is_asked_with_the_word_as_its_delimiter(slurm):
    slurm.answer("ended-names", said(row(7, "train")))
    assert JobNames(slurm.runner(), KIND, lambda: WORD).ended(900.0, 1100.0) == {
        (7, 1000.0): KIND("ann", "train", HOME)
    }
    (call,) = slurm.calls
    assert f"--format={','.join(ENDED_NAMES)} " in call
    assert call.endswith(f"--delimiter=w{WORD}")


def test_an_answer_of_sacct_that_is_too_long_is_asked_for_in_shorter_stretches(slurm):
    slurm.answer("ended-names", said(row(7, "train")))
    short = slurm.bin_dir / "short"
    (slurm.bin_dir / "sacct").rename(short)
    # Of two minutes there is too much.
    slurm.script("sacct", f'#!/bin/sh\ncase "$*" in *T00:00:0*T00:02:0*) exec yes;; esac\nexec {short} "$@"\n')
    assert JobNames(slurm.runner(), KIND, lambda: WORD).ended(5.0, 121.0).keys() == {(7, 1000.0)}
    assert len(slurm.calls) == 2


def test_a_minute_with_more_text_than_an_answer_may_have_costs_the_names_of_that_minute_only(slurm):
    slurm.answer("ended-names", said(row(7, "train")))
    short = slurm.bin_dir / "short"
    (slurm.bin_dir / "sacct").rename(short)
    slurm.script("sacct", f'#!/bin/sh\ncase "$*" in *starttime=*T00:0[01]:*) exec yes;; esac\nexec {short} "$@"\n')
    assert JobNames(slurm.runner(), KIND, lambda: WORD).ended(5.0, 240.0).keys() == {(7, 1000.0)}


def test_what_a_failing_command_has_printed_is_never_said(slurm):
    for name in ("waiting-names", "ended-names"):
        slurm.answer(name, said(row(7, "private")), code=1)
    names = JobNames(slurm.runner(), KIND)
    for read in (lambda: names.waiting([7]), lambda: names.ended(900.0, 1100.0)):
        with pytest.raises(SlurmUnavailableError, match="no message") as error:
            read()
        assert "private" not in str(error.value)
