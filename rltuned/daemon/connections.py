"""A listening socket and its connections in one thread: bounded in number, whatever clients do.

Whoever can connect can also open connections and say nothing. That costs a descriptor until `_serve` gives up. Others
still get through: a new connection beyond the limit closes the oldest. There is no thread and no growing memory behind
a connection.
"""

import asyncio
import contextlib
import functools
import socket
import threading
from collections.abc import Hashable
from typing import Final

CONNECTIONS: Final = 32
"""Most connections at a time. Prometheus opens one per scrape; a unit may have 1,024 descriptors."""


class Connections:
    """The running server. A subclass says what is done with a connection, and what belongs to whom."""

    def __init__(
        self,
        listener: socket.socket,
        name: str,
        *,
        pause_without_descriptors: float,
        pause: float = 0.0,
        most_per_client: int = CONNECTIONS,
    ) -> None:
        """Starts it.

        Args:
            listener: is bound and listens; it belongs to the server from now on.
            name: of the thread.
            pause_without_descriptors: seconds until the next try to accept where the process has none left.
            pause: seconds between two connections that are accepted.
            most_per_client: connections of one client at a time.
        """
        listener.setblocking(False)
        self._listener, self._pause, self._pause_without = listener, pause, pause_without_descriptors
        self._most_per_client = most_per_client
        self._open: dict[asyncio.Task[None], Hashable] = {}
        """By age, the oldest first: whose it is."""
        self._loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, patience: float | None = None) -> None:
        """Stop serving; connections that are open are closed. Waits for `patience` seconds, None: until it is done."""
        with contextlib.suppress(RuntimeError):  # it has stopped already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(patience)

    async def _serve(self, connection: socket.socket) -> None:
        """All that is done with a connection, in bounded time. It is closed afterwards, and when this is cancelled."""
        raise NotImplementedError

    def _client(self, _connection: socket.socket) -> Hashable:
        """Whose connection it is. Here: of one client, whoever connects."""
        return None

    def _run(self) -> None:
        with contextlib.closing(self._listener), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_stopped())  # and what is still open is cancelled

    async def _until_stopped(self) -> None:
        self._listen()
        await self._stop.wait()
        self._loop.remove_reader(self._listener)

    def _listen(self) -> None:
        if not self._stop.is_set():
            self._loop.add_reader(self._listener, self._accept)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._loop.call_later(seconds, self._listen)

    def _accept(self) -> None:
        """One connection; the loop comes back for the next one after it has looked at all others."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptors left: it would go round and round
            self._rest(self._pause_without)
            return
        if self._pause:
            self._rest(self._pause)
        connection.setblocking(False)
        client = self._client(connection)
        same = [task for task, whose in self._open.items() if whose == client]
        if len(same) >= self._most_per_client:
            self._cut(same[0])
        elif len(self._open) >= CONNECTIONS:
            self._cut(next(iter(self._open)))
        task = self._loop.create_task(self._serve(connection))
        self._open[task] = client
        task.add_done_callback(functools.partial(self._ended, connection))

    def _cut(self, task: asyncio.Task[None]) -> None:
        del self._open[task]
        task.cancel()

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        connection.close()  # also of a task that was cancelled before it began
