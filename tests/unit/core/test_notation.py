"""Node list expressions."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltuned.core.errors import SlurmParseError
from rltuned.core.notation import compress, expand

NAMES = st.from_regex(r"[a-z]{1,4}(-?[0-9]{1,4})?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        *(("", ""), ("m40-1", "m40-1"), ("p100-[1-2],k80-1", "p100-1 p100-2 k80-1"), ("n[1,3-4]", "n1 n3 n4")),
        *(("n[08-11]", "n08 n09 n10 n11"), ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"), ("gpu[1-2]-ib", "gpu1-ib gpu2-ib")),
    ],
)
def test_expands_what_slurm_prints(text, names):
    assert expand(text) == names.split()


@pytest.mark.parametrize(
    "text", ["n[1-", "n]1[", "n[[1]]", "n[2-1]", "n[a-b]", "n[1-999999999]", "n[]", "a[1-999]b[1-999]"]
)
def test_a_broken_list_is_an_error_that_shows_it(text):
    with pytest.raises(SlurmParseError, match="node list"):
        expand(text)


def test_parts_that_are_too_long_together_are_an_error():
    assert len(expand("a[1-3],b[1-2]", most=5)) == 5
    with pytest.raises(SlurmParseError, match="more than 5 names"):
        expand("a[1-3],b[1-3]", most=5)


@given(st.lists(NAMES, max_size=30))
def test_compress_and_expand_are_inverse(names):
    assert sorted(expand(compress(names))) == sorted(set(names))


@given(st.text(max_size=200))
def test_any_text_expands_or_is_a_named_error(text):
    with contextlib.suppress(SlurmParseError):
        expand(text)


def test_padded_and_unpadded_numbers_are_grouped_as_slurm_does():
    assert compress(["n8", "n9", "n10"]) == "n[8-10]"
    assert compress(["n08", "n09", "n10"]) == "n[08-10]"
