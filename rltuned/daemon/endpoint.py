"""``/metrics`` by HTTP: one thread, a bounded number of connections, each for a few seconds.

Whoever can connect can also open connections and say nothing, send a byte now and then, or never read the answer. It
costs a descriptor for some seconds. Scrapes still get through: a new connection beyond the limit closes the oldest.
There is no thread and no growing memory behind a connection. Who may connect is decided by the address that is listened
on, a firewall, TLS with client certificates, and names with passwords; the last two as Prometheus' own web
configuration has them.
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import re
import secrets
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from rltuned.config import MetricsSection
from rltuned.daemon.connections import CONNECTIONS, Connections
from rltuned.daemon.metrics import Metrics
from rltuned.errors import ConfigError

SECONDS: Final = 10.0
"""Longest life of a connection, from the first byte of a TLS handshake to the last of the answer."""
HEAD: Final = 8192
"""Longest request line with headers, bytes."""
WRONG: Final = 1.0
"""Seconds that a wrong password takes, one after the other: trying many costs the host nothing."""

_COST: Final = (14, 8, 1)
"""ln, r and p of scrypt: 16 MB and some hundredths of a second."""
_USER: Final = re.compile(
    r"(?P<name>[^:#\s][^:\s]*):\$scrypt\$ln=(?P<ln>\d{1,2}),r=(?P<r>\d{1,2}),p=(?P<p>\d{1,2})"
    r"\$(?P<salt>[A-Za-z0-9+/]+)\$(?P<key>[A-Za-z0-9+/]+)\Z"
)


def serve(metrics: Metrics, settings: MetricsSection, say: Callable[[str], object] = str) -> "Endpoint | None":
    """Serve the metrics by HTTP, or HTTPS; None when they are switched off.

    Args:
        metrics: what is served.
        settings: where, and to whom.
        say: told when files of `settings` have changed and cannot be used; the old ones then stay in force.

    Raises:
        ConfigError: address, port, certificate or users' file cannot be used.
    """
    if not settings.enabled:
        return None
    access = Access.of(settings)
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            settings.address, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(CONNECTIONS)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"metrics.address {settings.address}, metrics.port {settings.port}: {error.strerror or error}"
        ) from error
    return Endpoint(listener, metrics.registry, access, say)


class Endpoint(Connections):
    """The running server, in a thread of its own."""

    def __init__(
        self,
        listener: socket.socket,
        registry: CollectorRegistry,
        access: "Access",
        say: Callable[[str], object],
        seconds: float = SECONDS,
    ) -> None:
        """Starts it. `listener` is bound and listens; it belongs to the endpoint from now on."""
        self._registry, self._access, self._say, self._seconds = registry, access, say, seconds
        self._checking = asyncio.Lock()
        self.port = int(listener.getsockname()[1])
        """The port, also when any free one was asked for."""
        super().__init__(listener, "metrics", pause_without_descriptors=seconds / 10)

    async def _serve(self, connection: socket.socket) -> None:
        """One request, one answer."""
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(self._seconds):
                reader = asyncio.StreamReader(limit=HEAD)
                protocol = asyncio.StreamReaderProtocol(reader)
                transport, _ = await self._loop.connect_accepted_socket(
                    lambda: protocol, connection, ssl=self._access.tls(self._say)
                )
                writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
                try:
                    writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                except asyncio.LimitOverrunError:
                    writer.write(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
                    if writer.can_write_eof():  # closed with more to read, a connection may lose what was written
                        writer.write_eof()
                        while await reader.read(HEAD):
                            pass
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # whose connection it was sees it closed
        finally:
            if transport is not None:
                transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        request = _Request.of(head)
        if request is None:
            return _response(HTTPStatus.BAD_REQUEST)
        users = self._access.users(self._say)
        if users is not None and not await self._known(request.headers.get("authorization", ""), users):
            return _response(HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": 'Basic realm="rltuned"'})
        if request.method not in {"GET", "HEAD"}:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        if request.path != "/metrics":
            return _response(HTTPStatus.NOT_FOUND, b"rltuned serves /metrics\n")
        try:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
        except Exception:  # noqa: BLE001 - what the library makes of a version that it does not expect differs
            return _response(HTTPStatus.BAD_REQUEST)
        body = encode(self._registry)
        return _response(HTTPStatus.OK, body, {"Content-Type": content_type}, only_head=request.method == "HEAD")

    async def _known(self, authorization: str, users: "Users") -> bool:
        name, password = _basic(authorization)
        if users.remembers(name, password):
            return True
        async with self._checking:
            if users.knows(name, password):
                return True
            await asyncio.sleep(min(WRONG, self._seconds / 2))
            return False


@dataclass(frozen=True, slots=True)
class _Request:
    """What is looked at of a request."""

    method: str
    path: str
    """Without the query."""
    headers: Mapping[str, str]
    """By name in lower case; of several of a name the last."""

    @classmethod
    def of(cls, head: bytes) -> "_Request | None":
        """None: this is not HTTP."""
        first, *rest = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return None
        lines = (line.partition(":") for line in rest if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in lines}
        return cls(words[0], words[1].partition("?")[0], headers)


def _response(
    status: HTTPStatus, body: bytes = b"", headers: Mapping[str, str] | None = None, *, only_head: bool = False
) -> bytes:
    body = body or f"{status.phrase}\n".encode()
    fields = {
        "Content-Type": "text/plain; charset=utf-8",
        **(headers or {}),
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if only_head else body)


def _basic(authorization: str) -> tuple[str, str]:
    """Name and password of an Authorization header; empty ones where it has none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name, password


# --- who may ask


@dataclass(slots=True)
class Users:
    """Names and what scrypt makes of their passwords."""

    lines: Mapping[str, "re.Match[str]"]
    _seen: dict[str, bytes] = field(default_factory=dict)
    """By name, a digest of the password that was right: a scrape does not pay for scrypt twice."""
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    @classmethod
    def of(cls, text: str) -> "Users":
        """From a file's text.

        Raises:
            ValueError: names the line.
        """
        found: dict[str, re.Match[str]] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            match = _USER.match(line.strip())
            if match is None or int(match["ln"]) > 20:
                raise ValueError(f"line {number} is not what `rltuned metrics-user NAME` prints")
            found[match["name"]] = match
        if not found:
            raise ValueError("it names nobody")
        return cls(found)

    def remembers(self, name: str, password: str) -> bool:
        """Whether that was right before. Cheap."""
        return hmac.compare_digest(self._seen.get(name, b""), self._digest(password))

    def knows(self, name: str, password: str) -> bool:
        """Whether that is right."""
        match = self.lines.get(name)
        # An unknown name takes as long as a wrong password.
        known = match or next(iter(self.lines.values()))
        cost = int(known["ln"]), int(known["r"]), int(known["p"])
        right = hmac.compare_digest(_scrypt(password, _decoded(known["salt"]), cost), _decoded(known["key"]))
        if match is None or not right:
            return False
        self._seen[name] = self._digest(password)
        return True

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")


def user_line(name: str, password: str, salt: bytes) -> str:
    """A line of the users' file.

    Raises:
        ValueError: such a name cannot be one.
    """
    ln, r, p = _COST
    key = _scrypt(password, salt, _COST)
    line = f"{name}:$scrypt$ln={ln},r={r},p={p}${_encoded(salt)}${_encoded(key)}"
    if _USER.match(line) is None:
        raise ValueError(f"'{name}' cannot be a name: it must not be empty or have a colon, a blank or a '#' in front")
    return line


def _scrypt(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    ln, r, p = cost
    n = 1 << ln
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r + (1 << 20), dklen=32)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))


@dataclass(slots=True)
class Access:
    """Certificate and users, read again when their files change."""

    _settings: MetricsSection
    _context: ssl.SSLContext | None = None
    _users: Users | None = None
    _files: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def of(cls, settings: MetricsSection) -> "Access":
        """As the configuration says.

        Raises:
            ConfigError: names the key.
        """
        access = cls(settings)
        access._files = access._state()
        access._load()
        return access

    def tls(self, say: Callable[[str], object]) -> ssl.SSLContext | None:
        """For the next connection; None: plain HTTP."""
        self._refresh(say)
        return self._context

    def users(self, say: Callable[[str], object]) -> Users | None:
        """For the next request; None: everybody."""
        self._refresh(say)
        return self._users

    def _refresh(self, say: Callable[[str], object]) -> None:
        state = self._state()
        if state == self._files:
            return
        self._files = state
        try:
            self._load()
        except ConfigError as error:
            say(str(error))

    def _state(self) -> tuple[tuple[str, int, int], ...]:
        settings = self._settings
        paths = (settings.tls_cert, settings.tls_key, settings.tls_client_ca, settings.users)
        found = []
        for path in paths:
            with contextlib.suppress(OSError):
                if path is not None:
                    status = path.stat()
                    found.append((str(path), status.st_ino, status.st_mtime_ns))
        return tuple(found)

    def _load(self) -> None:
        context = _context(self._settings)
        self._users = _users(self._settings.users)
        self._context = context


def _context(settings: MetricsSection) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without the empty password OpenSSL would ask for one at a terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except OSError as error:
        raise ConfigError(
            f"metrics.tls_cert {settings.tls_cert}, metrics.tls_key: {error.strerror or error}"
        ) from error
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise ConfigError(f"metrics.tls_client_ca {settings.tls_client_ca}: {error.strerror or error}") from error
    return context


def _users(path: Path | None) -> Users | None:
    if path is None:
        return None
    try:
        return Users.of(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"metrics.users {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"metrics.users {path}: {error}") from error
