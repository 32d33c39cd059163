"""``/metrics`` by HTTP or HTTPS: prometheus_client's own server, with bounds.

Whoever can connect can also open connections and say nothing, or send a byte now and then. Each costs a thread, so
their number is bounded: while all are taken, others are turned away. Who may connect is decided by the address that is
listened on, a firewall, and TLS with client certificates. Passwords are a reverse proxy's task (docs/monitoring.md).
"""

import ssl
import threading
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import start_http_server

from rltuned.config import MetricsSection
from rltuned.daemon.metrics import Metrics
from rltuned.errors import ConfigError

SECONDS: Final = 10.0
"""Longest wait for a client: for its next bytes, or until it takes some of the answer."""
THREADS: Final = 32
"""Threads of the process above which no connection is served. The unit allows 64 tasks, the worker's among them."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The running server."""

    _server: Any
    """prometheus_client's; a `socketserver.BaseServer`."""
    _thread: threading.Thread

    @property
    def port(self) -> int:
        """The port, also when any free one was asked for."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop listening. Threads of connections end with the process, or when their client has been waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(metrics: Metrics, settings: MetricsSection) -> Endpoint | None:
    """Serve the metrics; None when they are switched off. ConfigError: address, port or certificate cannot be used."""
    if not settings.enabled:
        return None
    if settings.tls_cert is not None:
        _check(settings)
    try:
        server, thread = start_http_server(
            settings.port,
            settings.address,
            metrics.registry,
            certfile=_text(settings.tls_cert),
            keyfile=_text(settings.tls_key or settings.tls_cert),
            client_cafile=_text(settings.tls_client_ca),
            client_auth_required=settings.tls_client_ca is not None,
        )
    except OSError as error:
        raise ConfigError(
            f"metrics.address {settings.address}, metrics.port {settings.port}: {error.strerror or error}"
        ) from error
    bounded: Any = server
    bounded.RequestHandlerClass.timeout = SECONDS
    bounded.verify_request = lambda *_: threading.active_count() < THREADS
    bounded.handle_error = lambda *_: None  # a client that goes away or speaks no TLS is no event
    if settings.tls_cert is not None:
        # In the connection's own thread, where it has a time-out, not in the one that accepts.
        bounded.socket.do_handshake_on_connect = False
    return Endpoint(bounded, thread)


def _check(settings: MetricsSection) -> None:
    """Raises ConfigError, which names the key, where TLS files cannot be used: the library says it of any OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = f"metrics.tls_cert {settings.tls_cert}, metrics.tls_key"
    try:
        # Without the empty password OpenSSL would ask for one at a terminal.
        context.load_cert_chain(str(settings.tls_cert), _text(settings.tls_key), password="")
        if settings.tls_client_ca is not None:
            key = f"metrics.tls_client_ca {settings.tls_client_ca}"
            context.load_verify_locations(settings.tls_client_ca)
    except OSError as error:
        raise ConfigError(f"{key}: {error.strerror or error}") from error


def _text(path: object) -> str | None:
    return None if path is None else str(path)
