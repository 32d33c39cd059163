"""One thing, one word: the name of a public class says in the whole package which one it is."""

import ast
from collections import Counter
from pathlib import Path

import rltuned

ROOT = Path(rltuned.__file__).parent


def test_no_two_public_classes_have_one_name():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert names["DecisionRecord"] == 1
    assert not [name for name, count in names.items() if count > 1 and not name.startswith("_")]
