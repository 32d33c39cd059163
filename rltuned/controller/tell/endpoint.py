"""``/metrics`` and probes by HTTP or HTTPS: prometheus_client's own server, with bounds (docs/monitoring.md).

Whoever can connect can also open connections and say nothing, or send a byte now and then. Each costs a thread, so
their number is bounded: while all are taken, others are turned away.
"""

import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client import start_http_server

from rltuned.controller.tell.logs import printable
from rltuned.controller.tell.metrics import Metrics
from rltuned.core.config import MetricsSection
from rltuned.core.errors import ConfigError

SECONDS: Final = 10.0
"""Longest wait for a client: for its next bytes, or until it takes some of the answer."""
THREADS: Final = 32
"""Threads of the process above which no connection is served. The unit allows 64 tasks, the worker's among them."""


Probe = Callable[[], tuple[bool, str]]
"""Whether all is well (200, else 503), and a line that says so; called in threads of its own."""


class Endpoint(NamedTuple):
    """The running server."""

    host: str  # as the configuration names it
    port: int  # also when any free one was asked for
    close: Callable[[], None]
    """Stops listening. Threads of connections end with the process, or when their client has been waited for."""


def serve(metrics: Metrics, settings: MetricsSection, probes: Mapping[str, Probe] | None = None) -> Endpoint | None:
    """Serve the metrics, and probes by path; None when they are switched off. ConfigError: the address or a
    certificate cannot be used.
    """
    if not settings.listen:
        return None
    host, _, port = settings.listen.rpartition(":")
    if settings.tls_cert is not None:
        _check(settings)
    try:
        server, thread = start_http_server(
            int(port),
            host.strip("[]"),
            metrics.registry,
            certfile=_text(settings.tls_cert),
            keyfile=_text(settings.tls_key or settings.tls_cert),
            client_cafile=_text(settings.tls_client_ca),
            client_auth_required=settings.tls_client_ca is not None,
        )
    except OSError as error:
        raise ConfigError(f"metrics.listen {settings.listen}: {error.strerror or error}") from error
    bounded: Any = server
    bounded.RequestHandlerClass.timeout = SECONDS
    bounded.verify_request = lambda *_: threading.active_count() < THREADS
    bounded.handle_error = lambda *_: None  # a client that goes away or speaks no TLS is no event
    bounded.set_app(_with(probes or {}, bounded.get_app()))
    if settings.tls_cert is not None:
        # In the connection's own thread, where it has a time-out, not in the one that accepts.
        bounded.socket.do_handshake_on_connect = False

    def close() -> None:
        bounded.shutdown()
        bounded.server_close()
        thread.join()

    return Endpoint(host, int(bounded.server_port), close)


def _with(probes: Mapping[str, Probe], others: Any) -> Callable[[Any, Any], Iterable[bytes]]:
    """The WSGI application of all paths (PEP 3333)."""

    def application(environment: Any, start_response: Any) -> Iterable[bytes]:
        probe = probes.get(environment["PATH_INFO"]) if environment["REQUEST_METHOD"] == "GET" else None
        if probe is None:
            answer: Iterable[bytes] = others(environment, start_response)
            return answer
        well, line = probe()
        status = "200 OK" if well else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [printable(line).encode() + b"\n"]

    return application


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
