"""The model store: versions of a model beside each other, and which of them is in force (docs/learning.md).

    STORE/current -> versions/0003            replaced as a whole: a reader sees the old version or the new one
    STORE/versions/0003/model.json            the manifest, and the weights beside it: never changed
    STORE/versions/0003/verdict.json          of the gate, about this model: renewed
    STORE/versions/0003/version.json          where it comes from
    STORE/uses.json                           which version was in force from when on, and why

`policy.model` of the configuration names the manifest below `current`.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from rltuned.core.errors import LockedError, ModelError, RltunedError
from rltuned.core.safe_files import read, write_atomic
from rltuned.records.in_force import CURRENT, MODEL_FILE, NUMBER, VERDICT_FILE, target
from rltuned.records.model_files import MODEL_MODE, json_bytes, load
from rltuned.records.model_files import read as read_model

KEPT: Final = 10
"""Versions: the one in force, the one before it, and the newest of the others."""
_KEPT_USES: Final = 100


@dataclass(frozen=True)
class VersionFacts:
    """What ``version.json`` says of a model."""

    made_at: float  # when it was put into the store, epoch seconds
    origin: str  # in a few words
    manifest_sha256: str
    learned_until: float
    """Submission of the last job that it has learned from, epoch seconds; 0: none of this site's."""


@dataclass(frozen=True, kw_only=True)
class Version(VersionFacts):
    """A model of the store."""

    number: int
    path: Path  # its directory

    @property
    def model(self) -> Path:
        """Its manifest."""
        return self.path / MODEL_FILE

    @property
    def verdict(self) -> Path:
        """The gate's verdict about it, which need not be there."""
        return self.path / VERDICT_FILE


class Use(NamedTuple):
    """A version came into force."""

    version: int
    since: float  # epoch seconds
    why: str
    back: bool = False  # the one before it was given up
    watched: bool = False
    """It may be given up by itself: no person has chosen it."""


class ModelStore:
    """A store. Who changes it holds its lock (`locked`). What changes it raises a ModelError where that fails."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._versions = root / "versions"
        self._uses = root / "uses.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For whoever changes the store; readers need none. LockedError: somebody else changes it now."""
        with self._writing():
            self._versions.mkdir(parents=True, exist_ok=True)
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

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = error.filename or self.root
            raise ModelError(f"{where}: the model store cannot be written: {error.strerror}") from error

    # --- what is there

    def versions(self) -> list[Version]:
        """From old to new; a directory that is no version is left out."""
        found = []
        paths = self._versions.iterdir() if self._versions.is_dir() else ()
        for path in sorted(path for path in paths if NUMBER.fullmatch(path.name)):
            with suppress(RltunedError):
                facts = read(VersionFacts, path / "version.json", "a version")
                if facts is not None:
                    found.append(Version(**vars(facts), number=int(path.name), path=path))
        return found

    def version(self, number: int) -> Version:
        """By number. ModelError: there is none."""
        found = self._named(number)
        if found is None:
            there = ", ".join(str(one.number) for one in self.versions()) or "none"
            raise ModelError(f"{self.root}: there is no version {number}; there are: {there}")
        return found

    def _named(self, number: int) -> Version | None:
        return next((version for version in self.versions() if version.number == number), None)

    def current(self) -> Version | None:
        """The one in force; None: none is."""
        return self._named(target(self.root))

    def uses(self) -> list[Use]:
        """From old to new; the last one is that of `current`, unless somebody else put that there. ModelError: the file
        cannot be used.
        """
        try:
            found = read(list[Use], self._uses, "what was in force") or []
        except RltunedError as error:
            raise ModelError(f"{error}; delete it") from error
        # The program may have ended between the two files: what is written down last never came into force.
        last = max((at for at, use in enumerate(found) if use.version == target(self.root)), default=len(found))
        return found[: last + 1]

    def before(self) -> Version | None:
        """The version that was in force before the current one and was not given up for it, with its files."""
        uses = self.uses()
        not_wanted = {uses[at - 1].version for at in range(1, len(uses)) if uses[at].back} | {target(self.root)}
        numbers = [use.version for use in reversed(uses) if use.version not in not_wanted]
        return next((version for version in map(self._named, numbers) if version is not None), None)

    # --- changes

    def add(
        self, model: str, now: float, origin: str, *, verdict: bytes | None = None, learned_until: float = 0.0
    ) -> Version:
        """Copy a model (`files.read`) into the store; it is not in force yet. The same model is not copied twice.

        See `VersionFacts` for `origin` and `learned_until`; `now`: epoch seconds; `verdict`: of the gate, about the
        model. ModelError: it was refused.
        """
        found = read_model(model)
        manifest, weights = found.content
        sha256 = hashlib.sha256(manifest).hexdigest()
        versions = self.versions()
        there = next((version for version in versions if version.manifest_sha256 == sha256), None)
        if there is not None:
            if verdict is not None:
                self.renew(there, verdict)
            return there
        number = 1 + max([0, *(version.number for version in versions), *(use.version for use in self.uses())])
        path = self._versions / f"{number:04d}"
        partial = path.with_name(f".{path.name}.partial")
        facts = VersionFacts(now, origin, sha256, learned_until)
        version = Version(**vars(facts), number=number, path=partial)
        with self._writing():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write_atomic(partial / found.manifest.weights.file, weights, mode=MODEL_MODE)
            write_atomic(version.model, manifest, mode=MODEL_MODE)
            if verdict is not None:
                self.renew(version, verdict)
            write_atomic(partial / "version.json", json_bytes({"number": number, **vars(facts)}), mode=MODEL_MODE)
            partial.rename(path)
        return replace(version, path=path)

    def renew(self, version: Version, verdict: bytes) -> None:
        """Give a version a new verdict."""
        with self._writing():
            write_atomic(version.verdict, verdict, mode=MODEL_MODE)

    def use(self, version: Version, now: float, why: str, *, back: bool = False, watched: bool = False) -> None:
        """Bring a version of this store into force (see `Use`), after every check; delete the oldest that are too many.
        ModelError: its files are damaged; the old version stays in force.
        """
        load(str(version.model))
        uses = [*self.uses(), Use(version.number, now, why, back, watched)]
        with self._writing():
            # First what is remembered: of a link without its entry, nobody would know what was before.
            write_atomic(self._uses, json_bytes([use._asdict() for use in uses[-_KEPT_USES:]]), mode=MODEL_MODE)
            link = self.root / f".{CURRENT}.partial"
            link.unlink(missing_ok=True)
            link.symlink_to(Path(self._versions.name) / version.path.name)
            link.replace(self.root / CURRENT)
            wanted = {one.number for one in (self.current(), self.before()) if one is not None}
            others = [one for one in self.versions() if one.number not in wanted]
            for one in others[: max(len(others) + len(wanted) - KEPT, 0)]:
                shutil.rmtree(one.path)

    def rollback(self, now: float, why: str) -> Version:
        """Bring the version back that was in force before. ModelError: there is none, or as `use`."""
        version = self.before()
        if version is None:
            raise ModelError(f"{self.root}: no version was in force before this one; `rltuned model list` shows them")
        self.use(version, now, why, back=True)
        return version
