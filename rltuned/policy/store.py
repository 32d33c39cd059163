"""The model store: versions of a model beside each other, and which of them is in force (docs/learning.md).

    STORE/current -> versions/0003            replaced as a whole: a reader sees the old version or the new one
    STORE/versions/0003/model.json            the manifest, and the weights beside it: never changed
    STORE/versions/0003/verdict.json          of the gate, about this model: renewed
    STORE/versions/0003/version.json          where it comes from
    STORE/uses.json                           which version was in force from when on, and why

`policy.model` and `policy.verdict` of the configuration name files below `current`.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rltuned.errors import LockedError, ModelError
from rltuned.policy import files
from rltuned.safe_files import write_atomic

CURRENT: Final = "current"
MODEL_FILE: Final = "model.json"
VERDICT_FILE: Final = "verdict.json"
KEPT: Final = 10
"""Versions: the one in force, the one before it, and the newest of the others."""
_KEPT_USES: Final = 100
_VERSIONS: Final = "versions"
_FACTS: Final = "version.json"
_NUMBER: Final = re.compile(r"\d{4,9}")


@dataclass(frozen=True)
class Version:
    """A model of the store."""

    number: int
    path: Path
    """Its directory."""
    made_at: float
    """When it was put into the store, epoch seconds."""
    origin: str
    """In a few words."""
    manifest_sha256: str
    learned_until: float
    """Submission of the last job that it has learned from, epoch seconds; 0: none of this site's."""

    @property
    def model(self) -> Path:
        """Its manifest."""
        return self.path / MODEL_FILE

    @property
    def verdict(self) -> Path:
        """The gate's verdict about it, which need not be there."""
        return self.path / VERDICT_FILE


@dataclass(frozen=True)
class Use:
    """A version came into force."""

    version: int
    since: float
    """Epoch seconds."""
    why: str
    back: bool = False
    """The one before it was given up."""
    watched: bool = False
    """It may be given up by itself: no person has chosen it."""


def store_of(model: str) -> Path | None:
    """The store that the configuration's `policy.model` is in; None: it is in none."""
    path = Path(model)
    inside = path.is_absolute() and path.parent.name == CURRENT and path.name == MODEL_FILE
    return path.parent.parent if inside else None


def mark(model: str, verdict: Path) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    """Changes whenever the store that `model` is in has another version in force, or another verdict about it.

    None: `model` is in no store. Opens no file: a cycle may ask each time.
    """
    root = store_of(model)
    if root is None:
        return None
    try:
        target = str((root / CURRENT).readlink())
    except OSError:
        target = ""
    return target, _mark(Path(model)), _mark(verdict)


def number_of(model: str) -> int:
    """The version in force of the store that `model` is in; 0: none."""
    root = store_of(model)
    return 0 if root is None else _target(root)


class ModelStore:
    """A store. Who changes it holds its lock (`locked`)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For whoever changes the store; readers need none.

        Raises:
            LockedError: somebody else changes it now.
            ModelError: the store cannot be written.
        """
        with _writing(self.root):
            (self.root / _VERSIONS).mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LockedError(
                    f"{self.root}: another rltuned works on this model store; wait for its end"
                ) from error
            yield
        finally:
            os.close(descriptor)

    # --- what is there

    def versions(self) -> list[Version]:
        """From old to new; a directory that is no version is left out."""
        paths: list[Path] = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            paths = sorted(path for path in (self.root / _VERSIONS).iterdir() if _NUMBER.fullmatch(path.name))
        return [version for version in map(_version, paths) if version is not None]

    def current(self) -> Version | None:
        """The one in force; None: none is."""
        return self._named(_target(self.root))

    def uses(self) -> list[Use]:
        """From old to new; the last one is that of `current`."""
        try:
            tree = json.loads((self.root / "uses.json").read_bytes())
            found = [
                Use(
                    int(one["version"]),
                    float(one["since"]),
                    str(one["why"]),
                    one["back"] is True,
                    one["watched"] is True,
                )
                for one in tree
            ]
        except FileNotFoundError:
            found = []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{self.root / 'uses.json'}: cannot be used: {error}; delete it") from error
        now = _target(self.root)
        while found and found[-1].version != now:  # the program ended between the two files
            found.pop()
        return found

    def before(self) -> Version | None:
        """The version that was in force before the current one and was not given up for it, with its files."""
        uses = self.uses()
        given_up = {uses[at - 1].version for at in range(1, len(uses)) if uses[at].back}
        now = _target(self.root)
        for use in reversed(uses):
            if use.version != now and use.version not in given_up and (found := self._named(use.version)) is not None:
                return found
        return None

    def version(self, number: int) -> Version:
        """By number.

        Raises:
            ModelError: there is none.
        """
        found = self._named(number)
        if found is None:
            there = ", ".join(str(one.number) for one in self.versions()) or "none"
            raise ModelError(f"{self.root}: there is no version {number}; there are: {there}")
        return found

    def _named(self, number: int) -> Version | None:
        return next((version for version in self.versions() if version.number == number), None)

    # --- changes

    def add(
        self, model: str, now: float, origin: str, *, verdict: bytes | None = None, learned_until: float = 0.0
    ) -> Version:
        """Copy a model into the store, after every check; it is not in force yet. The same model is not copied twice.

        Args:
            model: as `rltuned.policy.files` takes it.
            now: epoch seconds.
            origin: where it comes from, in a few words.
            verdict: of the gate, about it.
            learned_until: see `Version`.

        Raises:
            ModelError: it was refused, or the store cannot be written.
        """
        manifest, weights_name, weights = files.content(model)
        sha256 = hashlib.sha256(manifest).hexdigest()
        there = next((version for version in self.versions() if version.manifest_sha256 == sha256), None)
        if there is not None:
            if verdict is not None:
                self.renew(there, verdict)
            return there
        number = (
            max([version.number for version in self.versions()] + [use.version for use in self.uses()], default=0) + 1
        )
        path = self.root / _VERSIONS / f"{number:04d}"
        partial = path.with_name(f".{path.name}.partial")
        facts = {
            "number": number,
            "made_at": now,
            "origin": origin,
            "manifest_sha256": sha256,
            "learned_until": learned_until,
        }
        with _writing(self.root):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write_atomic(partial / weights_name, weights, mode=files.MODEL_MODE)
            write_atomic(partial / MODEL_FILE, manifest, mode=files.MODEL_MODE)
            if verdict is not None:
                write_atomic(partial / VERDICT_FILE, verdict, mode=files.MODEL_MODE)
            write_atomic(partial / _FACTS, _json(facts), mode=files.MODEL_MODE)
            partial.rename(path)
        return self.version(number)

    def renew(self, version: Version, verdict: bytes) -> None:
        """Give a version a new verdict.

        Raises:
            ModelError: the store cannot be written.
        """
        with _writing(self.root):
            write_atomic(version.verdict, verdict, mode=files.MODEL_MODE)

    def use(self, version: Version, now: float, why: str, *, back: bool = False, watched: bool = False) -> None:
        """Bring a version into force, after every check; delete the oldest that are too many.

        Args:
            version: of this store.
            now: epoch seconds.
            why: in a sentence.
            back: the version in force is given up.
            watched: it may be given up by itself.

        Raises:
            ModelError: its files are damaged, or the store cannot be written; the old version stays in force.
        """
        files.load(str(version.model))
        uses = self.uses()
        with _writing(self.root):
            link = self.root / f".{CURRENT}.partial"
            link.unlink(missing_ok=True)
            link.symlink_to(Path(_VERSIONS) / version.path.name)
            link.replace(self.root / CURRENT)
            uses.append(Use(version.number, now, why, back, watched))
            write_atomic(
                self.root / "uses.json", _json([asdict(one) for one in uses[-_KEPT_USES:]]), mode=files.MODEL_MODE
            )
            self._prune()

    def rollback(self, now: float, why: str) -> Version:
        """Bring the version back that was in force before.

        Raises:
            ModelError: there is none, or as `use`.
        """
        version = self.before()
        if version is None:
            raise ModelError(f"{self.root}: no version was in force before this one; `rltuned model list` shows them")
        self.use(version, now, why, back=True)
        return version

    def _prune(self) -> None:
        current, before = self.current(), self.before()
        wanted = {one.number for one in (current, before) if one is not None}
        others = [one for one in self.versions() if one.number not in wanted]
        for one in others[: max(len(others) + len(wanted) - KEPT, 0)]:
            shutil.rmtree(one.path)


def _target(root: Path) -> int:
    """Number of the version that `current` names; 0: none."""
    try:
        name = (root / CURRENT).readlink().name
    except OSError:
        return 0
    return int(name) if _NUMBER.fullmatch(name) else 0


def _version(path: Path) -> Version | None:
    try:
        facts = json.loads((path / _FACTS).read_bytes())
        return Version(
            number=int(path.name),
            path=path,
            made_at=float(facts["made_at"]),
            origin=str(facts["origin"]),
            manifest_sha256=str(facts["manifest_sha256"]),
            learned_until=float(facts["learned_until"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _mark(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"{error.filename or root}: the model store cannot be written: {error.strerror}") from error
