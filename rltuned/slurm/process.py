"""Runs one registered command: own session, time-out for it and all it started, bounded output, no shell."""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from rltuned.core.errors import AnswerTooLongError, SlurmDeniedError, SlurmError, SlurmParseError, SlurmUnavailableError
from rltuned.slurm.commands import CUT, REGISTRY, Command, environment

OUTPUT_LIMIT: Final = 64 * 1024 * 1024
"""Bytes of standard output: 100,000 jobs take 40 MB, five times as much once read (systemd/rltuned.service)."""

LINE_LIMIT: Final = 32 * 1024
"""Bytes of a line, where they are cut: tasks of an array of 10,000 fit. Beyond half of an answer's limit it is a
32nd of that, so that the rows of all others fit behind those of one user."""

ERROR_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of standard error that are kept; the rest is read and dropped."""
_CHUNK: Final = 1 << 16
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def one_line(text: str, limit: int = 300) -> str:
    """One line of at most `limit` characters for a log or a terminal, without control and direction characters."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return _CONTROL.sub("·", cut.strip())


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said."""

    command: Command
    stdout: str
    stderr: str
    code: int  # exit status; negative: ended by that signal
    seconds: float


class Runner:
    """Runs commands of the registry, with one configuration."""

    def __init__(
        self, bin_dir: Path, conf: Path | None = None, timeout: float = 20.0, output_limit: int = OUTPUT_LIMIT
    ) -> None:
        self._bin_dir = bin_dir
        self._environment = environment(conf)
        self._timeout = timeout
        self._output_limit = output_limit

    def run(self, name: str, *words: str, stdin: str = "") -> Answer:
        """Run one command to its end and return what it said, whatever its exit status."""
        command = REGISTRY[name]
        if stdin and not command.writes:
            raise SlurmError(f"{name}: takes no input")
        argv = command.argv(self._bin_dir, *words)
        most = self._output_limit if command.output_limit is None else min(command.output_limit, self._output_limit)
        patience = command.patience * self._timeout
        started = time.monotonic()
        try:
            # Own session: the time-out must reach everything that the command starts.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if command.writes else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise SlurmUnavailableError(
                f"{argv[0]}: cannot be executed ({error.strerror}); set slurm.bin_dir to where Slurm's commands are"
            ) from error
        try:
            out, err = _communicate(process, stdin.encode(), started + patience, most, cuts=command.cuts_lines)
            code = process.wait(timeout=max(started + patience - time.monotonic(), 0.05))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise SlurmUnavailableError(
                f"{command.program} ({name}) gave no complete answer within {patience:g} s; killed"
            ) from None
        except OverflowError:
            raise AnswerTooLongError(f"{command.program} ({name}): answer longer than {most} bytes; killed") from None
        finally:
            _end(process)
        stdout, stderr = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        return Answer(command, stdout, stderr, code, time.monotonic() - started)

    def ask(self, name: str, *words: str) -> str:
        """Standard output of a reading command that succeeded; raises as `run`, and `failure`."""
        answer = self.run(name, *words)
        # An unknown column is left out of the answer with exit status 0 (measured on all releases).
        if answer.code != 0 or "format specification" in answer.stderr:
            raise failure(answer)
        return answer.stdout


def failure(answer: Answer) -> SlurmError:
    """The error that an unsuccessful answer stands for."""
    said = one_line(answer.stderr or ("" if answer.command.private else answer.stdout)) or "no message"
    ended = f"exit status {answer.code}" if answer.code >= 0 else f"signal {-answer.code}"
    text = f"{answer.command.program} ({answer.command.name}) failed with {ended}: {said}"
    lower = said.lower()
    if "permission denied" in lower or "access denied" in lower:
        return SlurmDeniedError(text)
    if "format specification" in lower or "unrecognized option" in lower or "invalid option" in lower:
        return SlurmParseError(f"{text}; this release of Slurm does not know what rltuned asks for")
    return SlurmUnavailableError(text)


def _communicate(
    process: subprocess.Popen[bytes], stdin: bytes, deadline: float, limit: int, *, cuts: bool
) -> tuple[bytearray, bytearray]:
    """Feed and drain the pipes until both end; TimeoutError at the deadline, OverflowError beyond `limit` bytes.

    `cuts`: long lines are cut (`LINE_LIMIT`), and what is the same as the line before is left out.
    """
    out, err = bytearray(), bytearray()
    lines = _Lines(out, limit if cuts else None)
    if process.stdout is None or process.stderr is None:  # pragma: no cover - both are pipes; tells the type checker
        raise OSError("no pipes")
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        view = memoryview(stdin)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            for key, _ in selector.select(remaining):
                if key.data is None:
                    try:
                        view = view[os.write(key.fd, view[:_CHUNK]) :] if view else view
                    except BlockingIOError:
                        continue
                    except BrokenPipeError:
                        view = view[:0]  # it ended without reading all; its exit status tells
                    if not view:
                        selector.unregister(key.fileobj)
                        process.stdin.close()  # type: ignore[union-attr]  # only registered when it is a pipe
                    continue
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                if key.data is err:
                    err += chunk[: ERROR_LIMIT - len(err)]
                    continue
                lines.add(chunk)
                if len(out) > limit:
                    raise OverflowError
    return out, err


@dataclass(slots=True)
class _Lines:
    """Collects what a command says."""

    out: bytearray
    limit: int | None  # of `out`; None: no line is cut
    _room: int = LINE_LIMIT  # bytes that the line may still have; −1: it was cut
    _last: int = 0  # where in `out` the last whole line begins

    def add(self, chunk: bytes) -> None:
        """Take in what comes next."""
        if self.limit is None:
            self.out += chunk
            return
        start = 0
        while start < len(chunk):
            if self._room < 0:
                if (end := chunk.find(b"\n", start)) < 0:
                    return
            elif (end := chunk.rfind(b"\n", start, start + self._room)) < 0:
                kept = chunk[start : start + self._room]
                self.out += kept
                self._room -= len(kept)
                start += len(kept)
                if not self._room:
                    self.out += CUT.encode()
                    self._room = -1
                continue
            self.out += chunk[start if self._room >= 0 else end : end + 1]
            start = end + 1
            self._room = LINE_LIMIT if 2 * len(self.out) < self.limit else LINE_LIMIT // 32
        self._leave_out_repeated()

    def _leave_out_repeated(self) -> None:
        """Of whole lines that are the same, keep the first."""
        end = self.out.rfind(b"\n", self._last) + 1
        *lines, _ = self.out[self._last : end].split(b"\n")
        if lines:
            kept = [line for line, _ in groupby(lines)]
            text = b"\n".join([*kept, b""])
            self.out[self._last : end] = text
            self._last += len(text) - len(kept[-1]) - 1


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the command and everything it started; close the pipes; reap it."""
    if process.returncode is None:
        # Not reaped yet, so its id cannot have been given to anybody else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    process.wait()
