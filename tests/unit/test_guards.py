"""The list of guards is true: each is in the program once, and the tests that are to find it missing are there."""

import pytest
from measures.guards import GUARDS, ROOT, found_in
from measures.lending_mutants import MUTANTS


def test_each_guard_is_in_the_program_once_and_so_are_its_tests():
    for guard in (*GUARDS, *MUTANTS):
        _, text = found_in(guard, ROOT)
        assert text.replace(guard.right, guard.wrong) != text, guard.name
        for test in guard.tests:
            path, *names = test.split("::")
            there = ROOT / "tests/unit" / path
            assert there.exists(), f"{guard.name}: {test}"
            assert not names or f"def {names[-1]}(" in there.read_text(), f"{guard.name}: {test}"


def test_each_guard_has_a_name_of_its_own():
    names = [guard.name for guard in (*GUARDS, *MUTANTS)]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("text", ["no line of the program", "\n"])
def test_a_guard_that_is_not_there_once_is_refused(text):
    with pytest.raises(RuntimeError, match="times, not once"):
        found_in(GUARDS[0]._replace(right=text), ROOT)
