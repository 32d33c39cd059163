"""Files that are there whole or not at all, and that belong to the daemon's user even when root writes them.

State is kept one way: a dataclass as JSON, by `read` and `write`.
"""

import contextlib
import errno
import json
import math
import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from rltuned.core.errors import RltunedError

FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
SERVICE_USER: Final = "rltuned"  # of the units (systemd/rltuned.sysusers)


def give_to_owner_of(directory: Path, fd: int) -> None:
    """Hand a file that root creates to the owner of its directory: the daemon's user, who must be able to go on."""
    if os.geteuid() == 0:
        status = directory.stat()
        # Where even root may not (NFS, a container without CAP_CHOWN) the file stays root's; `doctor` names it.
        with contextlib.suppress(OSError):
            os.fchown(fd, status.st_uid, status.st_gid)


def make_directory(path: Path) -> None:
    """Make a directory and what is missing above it.

    Made by root, they belong to the owner of the place where they are made; in a place of root's own, as /var/lib, to
    the user of the units, where there is one. root often looks first, and the daemon comes after.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    if os.geteuid() == 0:
        place = path.parent.stat()
        uid, gid = place.st_uid, place.st_gid
        if uid == 0:
            with contextlib.suppress(KeyError):
                user = pwd.getpwnam(SERVICE_USER)
                uid, gid = user.pw_uid, user.pw_gid
        # The owner of the place may have put a link there by now: what it points to stays root's.
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                os.fchown(fd, uid, gid)
        finally:
            os.close(fd)


def user_of(directory: Path) -> int | None:
    """The daemon's user: whose the state directory is; where it is root's, or not there, that of the units, if any."""
    for place in (directory, *directory.parents):
        try:
            if owner := place.stat().st_uid:
                return owner
        except PermissionError:
            continue  # closed to us further up
        except OSError:
            pass
        break
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(SERVICE_USER).pw_uid
    return None


def user_name(uid: int) -> str:
    """A user's name, or the number where it has none, as in containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def give_all_to(uid: int, directory: Path) -> str:
    """The command that gives a directory and its files to a user and its group."""
    name = user_name(uid)
    return f"chown -R {name}{'' if name.isdigit() else ':'} {directory}"


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`; a short write (disk full) goes on until the error comes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` durable, where its file system can."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # as fsync(2) has it for a file system that syncs no directories (SMB, FUSE)
            raise
    finally:
        os.close(fd)


_T = TypeVar("_T")


@cache
def _adapter(form: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 - a daemon mostly writes

    return TypeAdapter(form)


def parse(form: Callable[..., _T], data: bytes | str, what: str) -> _T:
    """The value of this form (a dataclass, a NamedTuple) that was written as this JSON; fields that the form does not
    have are ignored. RltunedError: it is not `what`; names the field.
    """
    try:
        found: _T = _adapter(form).validate_json(data, strict=True)
    except ValueError as error:  # pydantic's
        first = error.errors(include_url=False)[0]  # type: ignore[attr-defined]
        where = ".".join(map(str, first["loc"])) or "as a whole"
        why = f"this rltuned reads {first['ctx']['expected']}" if first["type"] == "literal_error" else first["msg"]
        raise RltunedError(f"not {what}: {where}: {why}") from error
    return found


def read(form: Callable[..., _T], path: Path, what: str, most: int = 1 << 20) -> _T | None:
    """`parse` of a file of at most `most` bytes, whose numbers are finite and whose integers have 64 bits; None where
    there is no file. RltunedError: it cannot be used; names it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
        _check(data, most)
        return parse(form, data, what)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RecursionError as error:
        raise RltunedError(f"{path}: cannot be used: its lists are nested too deep") from error
    except (OSError, ValueError, RltunedError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RltunedError(f"{path}: cannot be used: {why}") from error


def plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts; the rest as it is: JSON knows tuples, numbers and names."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    return value


def encode(value: Any) -> bytes:
    """`value` as a line of JSON, as `parse` reads it. ValueError: a number in it is not finite."""
    return json.dumps(plain(value), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def write(path: Path, value: Any, *, durable: bool = True, most: float = math.inf) -> None:
    """`encode` into a file (`write_atomic`) of at most `most` bytes. RltunedError: it cannot be written; names it."""
    data = encode(value)
    if (size := len(data)) > most:
        raise RltunedError(f"{path}: cannot be written: it would have {size} bytes, above the limit of {most}")
    try:
        write_atomic(path, data, durable=durable)
    except OSError as error:
        raise RltunedError(f"{path}: cannot be written: {error.strerror}") from error


def _check(data: bytes, most: int) -> None:
    if len(data) > most:
        raise ValueError(f"longer than {most} bytes")
    json.loads(data, parse_int=_integer, parse_float=_finite, parse_constant=_finite)


def _integer(text: str) -> int:
    if len(text) > 20 or abs(number := int(text)) >= 1 << 63:
        raise ValueError(f"{text[:20]}… is no number of 64 bits")
    return number


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def write_atomic(path: Path, data: bytes, *, durable: bool = True, mode: int = FILE_MODE) -> None:
    """Replace `path` by `data`: readers see the old or the new content, also after a crash. No link is followed.
    `durable`: it is on the disk when this returns. `mode`: less the umask. After an OSError nothing was replaced; or it
    was, and may be lost with the machine.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            give_to_owner_of(path.parent, fd)
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_directory(path.parent)
