"""Where slurmctld has a backup: only the daemon on the host whose slurmctld acts now writes (docs/operations.md).

Of the controllers, in their configured order, the first that is up acts (measured: a primary that comes back takes over
again; one that an admin has replaced by ``scontrol takeover`` ends). The daemon that loses its slurmctld gives back
what it has written, through the other controller, and stands by. The one that gains it waits until no job carries a
site factor that its journal does not know, or for so long; what is left then is left alone.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rltuned.slurm.port import ClusterFacts, Controller, ControllerReader, SlurmReader

HANDOVER: Final = 300.0
"""Longest that a daemon waits for another one to give back what it has written, seconds."""
THROTTLED: Final = 600.0
"""Longest that the RPC limiter may turn pings away from a controller that is there, seconds. Its port alone proves
nothing for longer: on a host whose slurmctld is dead anybody can listen there."""


def own_names() -> frozenset[str]:
    """The names by which slurm.conf may call this host."""
    return frozenset({_short(socket.gethostname())})


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


@dataclass(slots=True)
class Primacy:
    """Whether this host's daemon may write. Times are monotonic seconds."""

    names: frozenset[str]  # of this host, short
    acting: str | None = None
    """The controller that acts, as slurm.conf calls it; None before the first look."""
    _leads: bool | None = None  # whether that is this host; None before the first look
    _answered: dict[str, float] = field(default_factory=dict)
    """When each controller answered last; before it has, when it was looked at first."""
    _since: float | None = None  # since when it is to take over; None when it has, or has not to
    _looks: int = 0  # readings of the queue while it takes over

    def concerns(self, hosts: Sequence[str]) -> bool:
        """Whether there is a question: several controllers, of which this host is one."""
        return len(hosts) > 1 and any(_short(host) in self.names for host in hosts)

    def look(self, controllers: Sequence[Controller], now: float) -> bool:
        """Take in who is up. Whether this host has lost or gained its slurmctld (or it is the first look)."""
        for controller in controllers:
            if controller.up or controller.host not in self._answered:
                self._answered[controller.host] = now
        up = [
            one.host for one in controllers if one.up or (one.listens and now - self._answered[one.host] <= THROTTLED)
        ]
        if not up:
            return False  # nobody acts; whoever did can write as little as anybody
        self.acting, before = up[0], self._leads
        self._leads = _short(up[0]) in self.names
        if self._leads == before:
            return False
        self._since = now if self._leads else None
        # A daemon that is just started where slurmctld runs anyway takes over from nobody, unless there is something
        # left.
        self._looks = 1 if before is None else 0
        return True

    @property
    def stands_by(self) -> bool:
        """Whether slurmctld acts on another host."""
        return self._leads is False

    def why(self, orphans: int | None, now: float) -> str | None:
        """Why nothing may be written; None: it may. To be asked once after each reading of the queue.

        `orphans`: pending jobs with a site factor that the journal does not know; None: Slurm shows no site factor yet.
        """
        if self.stands_by:
            return f"stands by: slurmctld runs on {self.acting}"
        if self._since is None:
            return None
        self._looks += 1
        left = HANDOVER - (now - self._since)
        if orphans is None and left > 0:
            return "takes over: slurmctld has not calculated priorities yet"
        if orphans and left > 0:
            return f"takes over: {orphans} jobs are still to be given back by another host, for {left:.0f} s at most"
        if self._looks == 1:
            return "takes over: another host may still be writing"
        self._since = None
        return None


def look_once(reader: SlurmReader, facts: ClusterFacts, names: frozenset[str]) -> Primacy | None:
    """Who acts now, for this host (`names`); None where that is no question. SlurmError: none can be asked."""
    if len(facts.controllers) < 2 or not isinstance(reader, ControllerReader):
        return None
    primacy = Primacy(names)
    if primacy.concerns(facts.controllers):
        primacy.look(reader.controllers(facts), 0.0)
    return primacy
