"""The metrics endpoint among clients that mean no good, and behind TLS. Real sockets throughout."""

import contextlib
import http.client
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import prometheus_client.exposition
import pytest

from rltuned.controller.tell import endpoint as module
from rltuned.controller.tell.endpoint import serve
from rltuned.controller.tell.metrics import Metrics
from rltuned.core.config import MetricsSection, resolve
from rltuned.core.errors import ConfigError


@pytest.fixture
def start(monkeypatch):
    """Each client is waited for as long as `seconds` says."""
    running = []

    def begin(seconds=60.0, listen="127.0.0.1:0", **settings):
        monkeypatch.setattr(module, "SECONDS", seconds)
        running.append(serve(Metrics(), MetricsSection(listen=listen, **settings)))
        return running[-1]

    yield begin
    for one in running:
        one.close()


@pytest.fixture
def half_open():
    """Connects and says nothing."""
    with contextlib.ExitStack() as stack:
        yield lambda endpoint: stack.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))


def get(endpoint, path="/metrics", method="GET", context=None, **headers):
    """Status, headers and body."""
    where = "127.0.0.1", endpoint.port
    if context is None:
        connection = http.client.HTTPConnection(*where, timeout=30)
    else:
        connection = http.client.HTTPSConnection(*where, timeout=30, context=context)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def said_goodbye(connection, seconds=30.0):
    """Whether the other side closes within this time, whatever it says before."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def wait_until(holds):
    deadline = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- clients that mean no good


@pytest.mark.parametrize("tls", [False, True])
def test_however_many_clients_say_nothing_threads_are_bounded_and_scrapes_come_through_afterwards(
    start, half_open, tmp_path, capfd, monkeypatch, tls
):
    context, settings = None, {}
    if tls:
        cert, key = certificate(tmp_path, "server")
        context, settings = trusting(cert), {"tls_cert": cert, "tls_key": key}
    endpoint = start(seconds=3.0, **settings)
    before = threading.active_count()
    monkeypatch.setattr(module, "THREADS", before + 6)
    few = [half_open(endpoint) for _ in range(3)]
    if tls:
        few[0].sendall(b"\x16\x03\x01\x02\x00\x01")  # half of a handshake
    assert get(endpoint, context=context)[0] == 200, "beside a few of them"
    silent, most = list(few), 0
    for _ in range(20):
        silent.append(half_open(endpoint))
        most = max(most, threading.active_count())
    assert all(said_goodbye(connection) for connection in silent)
    assert most == module.THREADS
    wait_until(lambda: threading.active_count() == before)
    assert get(endpoint, context=context)[0] == 200
    assert capfd.readouterr() == ("", ""), "nobody fills the log from outside"


def test_a_client_that_never_reads_its_answer_is_left(start, monkeypatch, half_open):
    # More than the kernel keeps for a connection.
    much = ("200 OK", [("Content-Type", "text/plain")], b"x" * 50_000_000)
    monkeypatch.setattr(prometheus_client.exposition, "_bake_output", lambda *_: much)
    endpoint = start(seconds=0.5)
    before = threading.active_count()
    deaf = half_open(endpoint)
    deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    wait_until(lambda: threading.active_count() > before)
    wait_until(lambda: threading.active_count() == before)


def test_what_is_no_http_is_refused_and_the_connection_closed(start, half_open):
    endpoint = start()
    for sent in (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b"\x16\x03\x01\x00\r\n\r\n"):
        odd = half_open(endpoint)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            odd.sendall(sent)
        assert said_goodbye(odd)
    assert get(endpoint)[0] == 200


def test_closed_it_listens_no_more(half_open):
    before = threading.active_count()
    endpoint = serve(Metrics(), MetricsSection(listen="127.0.0.1:0"))
    get(endpoint)
    endpoint.close()
    wait_until(lambda: threading.active_count() == before)
    with pytest.raises(ConnectionRefusedError):
        half_open(endpoint)


# --- HTTP


def test_metrics_are_only_read(start):
    endpoint = start()
    status, headers, body = get(endpoint, "/metrics?x=1")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert "rltuned_build_info" in body
    assert get(endpoint, method="POST")[0] == 405
    _, headers, body = get(endpoint, Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


def test_a_port_in_use_is_named_and_switched_off_there_is_no_endpoint(start):
    assert serve(Metrics(), MetricsSection(listen="")) is None
    endpoint = start()
    with pytest.raises(ConfigError, match=f"metrics.listen 127.0.0.1:{endpoint.port}"):
        serve(Metrics(), MetricsSection(listen=f"127.0.0.1:{endpoint.port}"))


def test_it_listens_on_ipv6_as_well(start):
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    endpoint = start(listen="[::1]:0")
    socket.create_connection(("::1", endpoint.port)).close()


# --- probes


def test_each_probe_answers_in_one_line_with_the_code_that_says_it_and_all_else_are_the_metrics():
    answers = {"/healthz": (True, "fine"), "/readyz": (False, "why\nnot")}
    endpoint = serve(
        Metrics(),
        MetricsSection(listen="127.0.0.1:0"),
        {path: lambda path=path: answers[path] for path in ("/healthz", "/readyz")},
    )
    with contextlib.closing(endpoint):
        status, headers, body = get(endpoint, "/healthz?verbose")
        assert (status, headers["Content-Type"], body) == (200, "text/plain; charset=utf-8", "fine\n")
        status, _, body = get(endpoint, "/readyz")
        assert (status, body) == (503, "why\\nnot\n")
        answers["/readyz"] = (True, "\u00fc" * 9000)
        status, _, body = get(endpoint, "/readyz")
        assert status == 200
        assert len(body) < 3000
        assert "rltuned_build_info" in get(endpoint)[2]
        assert get(endpoint, "/healthz", method="POST")[0] == 405


# --- TLS

pytest_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl(1)")


def certificate(directory, name, authority=None):
    """A certificate with its key, in PEM files; signed by `authority`, or by itself."""
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    signed = [] if authority is None else ["-CA", authority[0], "-CAkey", authority[1]]
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", *signed]
    subprocess.run([*map(str, words), "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


def trusting(cert):
    return ssl.create_default_context(cafile=str(cert))


@pytest_openssl
def test_with_a_certificate_there_is_https_and_nothing_else(start, tmp_path):
    cert, key = certificate(tmp_path, "server")
    endpoint = start(tls_cert=cert, tls_key=key)
    assert get(endpoint, context=trusting(cert))[0] == 200
    with pytest.raises((http.client.HTTPException, OSError)):
        get(endpoint)
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    assert get(start(tls_cert=both), context=trusting(cert))[0] == 200


@pytest_openssl
def test_with_an_authority_only_clients_that_it_vouches_for_are_served(start, tmp_path):
    cert, key = certificate(tmp_path, "server")
    authority = certificate(tmp_path, "authority")
    endpoint = start(tls_cert=cert, tls_key=key, tls_client_ca=authority[0])
    context = trusting(cert)
    with pytest.raises((http.client.HTTPException, OSError)):
        get(endpoint, context=context)
    context.load_cert_chain(*certificate(tmp_path, "stranger"))
    with pytest.raises((http.client.HTTPException, OSError)):
        get(endpoint, context=context)
    context = trusting(cert)
    context.load_cert_chain(*certificate(tmp_path, "client", authority))
    assert get(endpoint, context=context)[0] == 200


@pytest_openssl
def test_what_cannot_be_used_is_named(tmp_path):
    cert, key = certificate(tmp_path, "server")
    other = certificate(tmp_path, "other")[1]
    for settings in ({"tls_cert": cert, "tls_key": other}, {"tls_cert": key}, {"tls_cert": tmp_path / "none"}):
        with pytest.raises(ConfigError, match=r"metrics\.tls_cert"):
            serve(Metrics(), MetricsSection(**settings))
    with pytest.raises(ConfigError, match=r"metrics\.tls_client_ca"):
        serve(Metrics(), MetricsSection(tls_cert=cert, tls_key=key, tls_client_ca=key))
    with pytest.raises(ConfigError, match=r"config.toml:1: metrics: tls_key needs tls_cert"):
        resolve('[metrics]\ntls_key = "/x"\n', "config.toml", {}, {})
