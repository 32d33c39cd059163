"""What is written, by type: no value below what Slurm alone gives."""

import pytest

from rltuned.core.changes import MAX_FACTOR, Change, Field, OverSubscribe, SiteFactor


@pytest.mark.parametrize("value", [-1, -MAX_FACTOR, MAX_FACTOR + 1])
def test_a_site_factor_below_nought_cannot_be_made(value):
    with pytest.raises(ValueError, match=f"site factor {value} is not between 0 and"):
        SiteFactor(value)


def test_from_nought_on_it_is_a_number():
    assert (SiteFactor(0), SiteFactor(MAX_FACTOR)) == (0, MAX_FACTOR)


@pytest.mark.parametrize(("before", "after", "back"), [(5, 0, True), (5, 3, True), (0, 5, False), (3, 3, False)])
def test_what_takes_a_raise_or_a_part_of_it_back_says_so(before, after, back):
    assert Change(1, 0, Field.SITE_FACTOR, before, SiteFactor(after), 0).gives_back is back


def test_what_isolates_a_job_takes_nothing_back():
    assert not Change(1, 0, Field.OVERSUBSCRIBE, "OK", OverSubscribe.NO.value, 0).gives_back
