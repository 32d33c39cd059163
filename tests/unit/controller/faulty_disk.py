"""Calls of the operating system on files below a directory, of which chosen ones fail: what a full disk, a quota, a
broken one or a network file system does, at the very call that a test is about."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

CALLS = ("close", "fsync", "ftruncate", "mkdir", "pread", "rename", "scandir", "unlink", "write")


class FaultyDisk:
    """Counts the calls while it is there (``with``). A close that fails closes the file all the same, as on NFS."""

    def __init__(self, root: Path, fails: Callable[[int, str], int]) -> None:
        """`fails`: the error number of the n-th call (from 1), known as ``write journal.jsonl``; 0: none."""
        self.root, self._fails = str(root), fails
        self.calls: list[str] = []
        self._paths: dict[int, str] = {}
        self._real: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._real = {name: getattr(os, name) for name in ("open", *CALLS)} | {"io": io.open}
        for name in CALLS:
            setattr(os, name, self._failing(name))
        os.open, io.open = self._open, self._read  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("open", *CALLS):
            setattr(os, name, self._real[name])
        io.open = self._real["io"]

    def _step(self, name: str, path: str) -> None:
        call = f"{name} {Path(path).name}"
        self.calls.append(call)
        if number := self._fails(len(self.calls), call):
            raise OSError(number, os.strerror(number), path)

    def _below(self, file: Any) -> str:
        path = self._paths.get(file, "") if isinstance(file, int) else os.fspath(file)
        return path if isinstance(path, str) and path.startswith(self.root) else ""

    def _failing(self, name: str) -> Callable[..., Any]:
        def call(file: Any, *args: Any, **values: Any) -> Any:
            path = self._below(file)
            if name == "close":
                self._paths.pop(file, None)
                self._real[name](file)
            if path:
                self._step(name, path)
            return None if name == "close" else self._real[name](file, *args, **values)

        return call

    def _open(self, path: Any, flags: int, *args: Any, **values: Any) -> int:
        below = self._below(path)
        if below:
            self._step("make" if flags & os.O_CREAT and not os.path.lexists(path) else "open", below)
        fd: int = self._real["open"](path, flags, *args, **values)
        self._paths[fd] = below
        return fd

    def _read(self, file: Any, *args: Any, **values: Any) -> Any:
        if below := self._below(file):
            self._step("read", below)
        return self._real["io"](file, *args, **values)
