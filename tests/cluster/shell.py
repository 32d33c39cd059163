"""Shells in the containers of a cluster that stay open: each command is a pipe away.

A `docker exec` for each command takes about 50 ms of processor time, and the tests run many thousands of commands, most
of them to ask whether something has come about.
"""

import contextlib
import os
import select
import subprocess
import threading
import time

# Perl, because every Debian has it: one process for a command where a shell needs eight.
SERVER = r"""
use File::Temp "tempdir";
my $d = tempdir(DIR => "/var/tmp", CLEANUP => 1);
binmode STDIN; binmode STDOUT;
sub keep { my ($name, $size) = @_; my $got = 0; my $data = "";
    while ($got < $size) { $got += read(STDIN, $data, $size - $got, $got) || exit 1; }
    open(my $f, ">", "$d/$name"); print $f $data; close $f; }
sub shown { open(my $f, "<", "$d/$_[0]"); local $/; my $text = <$f>; return defined $text ? $text : ""; }
while (my $line = <STDIN>) {
    my ($n, $script, $input) = split " ", $line;
    keep("$n.script", $script); keep("$n.input", $input);
    my $pid = fork;
    if (!$pid) {
        open(STDIN, "<", "$d/$n.input"); open(STDOUT, ">", "$d/$n.out"); open(STDERR, ">", "$d/$n.err");
        exec("bash", "$d/$n.script") or exit 127;
    }
    waitpid($pid, 0);
    my $rc = $? & 127 ? 128 + ($? & 127) : $? >> 8;
    # What it left in the background may still write.
    my ($out, $err) = (shown("$n.out"), shown("$n.err"));
    $| = 1;
    print $rc . " " . length($out) . " " . length($err) . "\n" . $out . $err;
    unlink "$d/$n.$_" for qw(script input out err);
}
"""


class _EndedError(Exception):
    """The shell is gone: somebody killed it, or its container was stopped."""


class _Shell:
    """One shell; one command at a time."""

    def __init__(self, container: str, user: str) -> None:
        command = ["docker", "exec", "-i", "-u", user, container, "perl", "-e", SERVER]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._count = 0
        self._got = b""

    def run(self, script: bytes, given: bytes, deadline: float) -> tuple[int, bytes, bytes]:
        """Exit code, output and error output of a script.

        Raises:
            _EndedError: as its text says.
            TimeoutError: the deadline has passed.
        """
        assert self._process.stdin is not None
        self._count += 1
        try:
            self._process.stdin.write(b"%d %d %d\n" % (self._count, len(script), len(given)) + script + given)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise _EndedError from error
        while b"\n" not in self._got:
            self._more(deadline)
        head, _, self._got = self._got.partition(b"\n")
        code, out, err = map(int, head.split())
        while len(self._got) < out + err:
            self._more(deadline)
        answer = code, self._got[:out], self._got[out : out + err]
        self._got = self._got[out + err :]
        return answer

    def _more(self, deadline: float) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        read = os.read(descriptor, 1 << 20)
        if not read:
            raise _EndedError
        self._got += read

    def close(self) -> None:
        """End it; what it runs may go on in its container, as with ``docker exec``."""
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


class Shells:
    """Open shells by container and user. Several threads may run commands: each has a shell for as long as that
    takes."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str], list[_Shell]] = {}
        self._lock = threading.Lock()

    def run(self, container: str, user: str, script: str, given: str, timeout: float) -> tuple[int, str, str]:
        """Run a script with `given` on its standard input: exit code, output, error output.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """
        deadline, key = time.monotonic() + timeout, (container, user)
        while True:
            with self._lock:
                idle = self._idle.setdefault(key, [])
                used, shell = (True, idle.pop()) if idle else (False, _Shell(container, user))
            try:
                code, out, err = shell.run(_bytes(script), _bytes(given), deadline)
            except _EndedError:
                shell.close()
                if used:  # it had ended before: a test kills all that a user runs, or restarts the container
                    continue
                return 137, "", "the shell ended"
            except BaseException as error:
                shell.close()
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(script, timeout) from error
                raise
            with self._lock:
                self._idle[key].append(shell)
            return code, _text(out), _text(err)

    def close(self) -> None:
        with self._lock:
            for shell in (shell for idle in self._idle.values() for shell in idle):
                shell.close()
            self._idle.clear()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
