"""What docstrings, comments and the page of an operator name is there."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from rltuned.core.config import Config

ROOT = Path(__file__).resolve().parents[3]
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "rltuned").rglob("*.py"))}


def module_of(path):
    return tuple(part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__")


def identifiers(tree):
    """Every name in a module, of whatever kind."""
    for node in ast.walk(tree):
        for field in ("name", "id", "arg", "attr", "asname"):
            if isinstance(named := getattr(node, field, None), str):
                yield named


def prose(text, tree):
    """Docstrings and comments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


TREES = {path: ast.parse(text) for path, text in SOURCES.items()}
MODULES = {module_of(path): frozenset(identifiers(tree)) for path, tree in TREES.items()}


def resolves(parts):
    """Whether it is a key of the configuration, or a module, or a name in one, and a name of that one."""
    section = Config.model_fields.get(parts[0])
    if section is not None and parts[1] in getattr(section.annotation, "model_fields", {}):
        return True
    for cut in range(len(parts), 0, -1):
        for module, names in MODULES.items():
            if module[-cut:] == parts[:cut] and names.issuperset(parts[cut:]):
                return True
    return False


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_docstring_or_a_comment_names_is_there(path):
    places = {part for module in MODULES for part in module}
    written = " ".join(prose(SOURCES[path], TREES[path]))
    named = {tuple(name.split(".")) for name in re.findall(r"(?<!`)`([a-z_]+(?:\.\w+)+)`(?!`)", written)}
    assert [".".join(name) for name in named if name[0] in places and name[-1] != "toml" and not resolves(name)] == []


def test_each_page_that_a_file_of_the_project_names_is_there_and_in_the_navigation():
    folders = ("rltuned", "studies", "tests", "deploy", "systemd", "packaging", "docker-slurm-testbed")
    kinds = {".py", ".toml", ".yml", ".yaml", ".json", ".conf", ".sh", ".service", ".timer", ".spec", ""}
    named = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*")):
        if path.suffix in kinds and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            named |= dict.fromkeys(re.findall(r"(?<![\w./])docs/[\w/-]+\.(?:md|1)\b", text), path)
    assert len(named) > 15
    assert {page: path for page, path in named.items() if not (ROOT / page).exists()} == {}
    shown = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"- docs/{page.name}\n" not in shown] == []


def test_the_page_of_an_operator_names_every_file_of_the_state_directory():
    page = (ROOT / "docs" / "state-files.md").read_text(encoding="utf-8")
    files = set()
    for path, tree in TREES.items():
        if not {"controller", "records"} & {*path.parts}:
            continue
        for node in ast.walk(tree):
            # NAME: Final = "…", and … / "…"
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if re.fullmatch(r"FILE_NAME|DIRECTORY|RECORD|BEFORE|\w+_NAME", node.target.id):
                    files |= {value.value for value in [node.value] if isinstance(value, ast.Constant)}
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and "directory" in ast.unparse(node.left):
                files |= {value.value for value in [node.right] if isinstance(value, ast.Constant)}
    assert {"journal.jsonl", "loans.json", "decisions", "numba"} <= files
    assert sorted(name for name in files if f"`{name}" not in page) == []
