"""Names of jobs as numbers: which are of one kind, which are of none, and that the number tells no name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltuned.core.name_kinds import DIRECTORY_BYTES, LETTERS, NAME_BYTES, NameKinds, normalised

KINDS = NameKinds(b"k" * 32)
HOME = "/home/ann/nets"
PARTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="\ufffd/"), max_size=20)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("train_lr0.01_s3", "train_lr0.02_s7"),
        ("train_lr1e-4", "train_lr0.003"),
        ("Train-Model.2", "train model 11"),
        ("seed=3,fold=2", "seed=14,fold=1"),
        ("größe٣", "GRÖSSE٤"),
    ],
)
def test_names_that_differ_by_digits_separators_and_case_are_of_one_kind(one: str, other: str) -> None:
    assert KINDS("ann", one, HOME) == KINDS("ann", other, HOME) != 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ann", "train", HOME), ("ann", "eval", HOME)),
        (("ann", "run.sh", HOME), ("ann", "run.sh", "/home/ann/other")),
        (("ann", "train", HOME), ("bob", "train", HOME)),
        (("ann", "a/b", "c"), ("ann", "a", "b/c")),  # what is a name's is no directory's
    ],
)
def test_another_name_or_project_or_user_is_another_kind(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert KINDS(*one) != KINDS(*other)


def test_of_a_directory_the_last_two_parts_with_a_letter_count() -> None:
    same = ("/scratch/ann/nets", "/home/ann/nets/", "/data/7/ann/nets/2024-05-01/12", "ann//nets")
    assert {normalised("train", directory) for directory in same} == {"train/ann/nets"}
    assert normalised("train", "/") == normalised("train", "") == "train"
    assert normalised("", "/opt/1") == "/opt"


@pytest.mark.parametrize("name", ["a\nb", "a\x1fb", "a\0", "a\x1b[2J", "a\x7f", "a\u2028b", "a\ud800"])
def test_a_name_or_a_directory_that_is_no_text_is_of_no_kind(name: str) -> None:
    assert KINDS("ann", name, HOME) == KINDS("ann", "train", f"/home/{name}") == 0
    assert KINDS("ann", b"caf\xe9".decode("utf-8", "replace"), HOME) == 0


@pytest.mark.parametrize("long", ["x" * (NAME_BYTES + 1), "ä" * (NAME_BYTES // 2 + 1), "x" * 10_240])
def test_a_name_that_slurmdbd_may_have_cut_is_of_no_kind(long: str) -> None:
    assert KINDS("ann", long, HOME) == 0
    assert KINDS("ann", "x" * NAME_BYTES, HOME) != 0
    assert KINDS("ann", "x", "/" + "d" * DIRECTORY_BYTES) == 0
    assert KINDS("ann", "x", "/" + "d" * (DIRECTORY_BYTES - 1)) != 0


@pytest.mark.parametrize(("name", "directory"), [("", ""), ("12_3", "/7"), ("%-_.", "/")])
def test_what_has_no_letter_is_of_no_kind(name: str, directory: str) -> None:
    assert KINDS("ann", name, directory) == 0


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=30))
def test_any_text_is_of_a_kind_of_63_bits_or_of_none_and_always_of_the_same(
    name: str, directory: str, user: str
) -> None:
    kind = KINDS(user, name, directory)
    assert 0 <= kind < 1 << 63
    assert kind == KINDS(user, name, directory)
    found = normalised(name, directory)
    assert (kind == 0) == (found is None)
    if found is not None:
        assert len(found) <= 3 * LETTERS + 2
        assert all(part.isalpha() for part in found.split("/") if part)


@given(PARTS, st.lists(PARTS, max_size=4), st.lists(st.integers(0, 10**9), min_size=5, max_size=5))
def test_any_name_with_other_digits_is_of_the_same_kind(name: str, parts: list[str], numbers: list[int]) -> None:
    text = "\0".join([name, *parts])
    # "e" behind a digit may be the exponent of a number, as in 1e-5: there are none here.
    text = re.sub(r"[eE\d]+", "x9x", text)
    found = iter([*numbers, *[0] * 99])
    other = re.sub("9", lambda _: str(next(found)), text)
    (one, *here), (two, *there) = text.split("\0"), other.split("\0")
    assert normalised(one, "/".join(here)) == normalised(two, "/".join(there)) or len(two.encode()) > NAME_BYTES


def test_the_number_tells_no_name_without_the_key_and_nothing_shows_the_key() -> None:
    other = NameKinds(b"l" * 32)
    assert KINDS("ann", "train", HOME) != other("ann", "train", HOME)
    assert "kkk" not in repr(KINDS)
    assert "kkk" not in str(KINDS)
