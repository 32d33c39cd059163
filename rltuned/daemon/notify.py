"""Telling the outside that we live: sd_notify(3) by hand."""

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Notifier:
    """systemd's notification socket. Silent where there is none; never raises."""

    address: str = ""
    """Path, or "@name" of an abstract socket; empty: none."""
    watchdog_seconds: float = 0.0
    """WatchdogSec of the unit; 0: no watchdog."""

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> Self:
        """From NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        usec, owner = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(pid))
        seconds = int(usec) / 1e6 if usec.isdigit() and owner == str(pid) else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), seconds)

    def send(self, *lines: str) -> None:
        """Send variable assignments, one datagram."""
        if not self.address:
            return
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), address)

    def ready(self, status: str) -> None:
        """Started (or reloaded)."""
        self.send("READY=1", f"STATUS={_line(status)}")

    def status(self, text: str) -> None:
        """What `systemctl status` shows."""
        self.send(f"STATUS={_line(text)}")

    def watchdog(self) -> None:
        """The loop is healthy."""
        self.send("WATCHDOG=1")

    def reloading(self, monotonic: float) -> None:
        """A reload began; `ready` ends it (Type=notify-reload needs the time)."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={int(monotonic * 1e6)}")

    def stopping(self) -> None:
        """The end began."""
        self.send("STOPPING=1")


def _line(text: str) -> str:
    return " ".join(text.split())[:500]
