"""The metrics endpoint among clients that mean no good, and behind TLS and passwords. Real sockets throughout."""

import base64
import contextlib
import http.client
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from rltuned.commands.main import cli
from rltuned.config import MetricsSection, resolve
from rltuned.daemon import endpoint as module
from rltuned.daemon.endpoint import CONNECTIONS, HEAD, Access, Endpoint, Users, serve, user_line
from rltuned.daemon.metrics import Metrics
from rltuned.errors import ConfigError


@pytest.fixture
def start():
    running = []

    def begin(seconds=60.0, say=str, **settings):
        section = MetricsSection(port=0, **settings)
        listener = socket.create_server(("127.0.0.1", 0))
        running.append(Endpoint(listener, Metrics().registry, Access.of(section), say, seconds))
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


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


# --- clients that mean no good


def test_eighty_clients_that_connect_and_say_nothing_cost_no_thread_and_no_scrape(start, half_open):
    endpoint = start()
    threads, before = threading.active_count(), descriptors()
    silent = [half_open(endpoint) for _ in range(80)]
    for _ in range(3):
        status, _, body = get(endpoint)
        assert status == 200
        assert "rltuned_build_info" in body
    assert threading.active_count() == threads
    # Ours, and at most so many of the endpoint's.
    assert descriptors() - before <= len(silent) + CONNECTIONS + 1
    assert all(said_goodbye(connection) for connection in silent[: 80 - CONNECTIONS]), "the oldest made room"


def test_a_client_that_says_nothing_is_left_after_a_while(start, half_open):
    endpoint = start(seconds=0.3)
    silent = [half_open(endpoint) for _ in range(10)]
    assert all(said_goodbye(connection) for connection in silent)
    assert get(endpoint)[0] == 200


def test_a_byte_now_and_then_buys_no_time(start, half_open):
    endpoint = start(seconds=1.0)
    slow = half_open(endpoint)
    began = time.monotonic()
    slow.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while time.monotonic() - began < 60.0:
            slow.sendall(b"a")
            assert get(endpoint)[0] == 200
            time.sleep(0.05)
    assert 1.0 <= time.monotonic() - began < 60.0


def test_a_client_that_never_reads_its_answer_is_left_too(start, monkeypatch, half_open):
    # More than the kernel keeps for a connection.
    monkeypatch.setattr(module, "choose_encoder", lambda _: (lambda _: b"x" * 50_000_000, "text/plain"))
    endpoint = start(seconds=0.5)
    before = descriptors()
    deaf = half_open(endpoint)
    deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    deadline = time.monotonic() + 30.0
    while descriptors() > before + 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_is_too_long_or_no_http_is_refused_and_the_connection_closed(start, half_open):
    endpoint = start()
    for sent, answer in [
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 2 * HEAD, b"HTTP/1.1 431 "),
        (b"\x16\x03\x01\x00\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /metrics\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /metrics HTTP/1.1\r\nAccept: text/plain;version=x\r\n\r\n", b"HTTP/1.1 400 "),
    ]:
        odd = half_open(endpoint)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            odd.sendall(sent)
        odd.settimeout(30)
        assert odd.recv(65536).startswith(answer)
        assert said_goodbye(odd)
    assert get(endpoint)[0] == 200


def test_one_that_ends_closes_what_is_open(start, half_open):
    endpoint = start()
    silent = half_open(endpoint)
    get(endpoint)  # so the other one was accepted
    before = threading.active_count()
    endpoint.close()
    assert said_goodbye(silent)
    assert threading.active_count() == before - 1
    with pytest.raises(ConnectionRefusedError):
        half_open(endpoint)
    endpoint.close = lambda: None


# --- HTTP


def test_only_metrics_and_only_reading(start):
    endpoint = start()
    status, headers, body = get(endpoint, "/metrics?x=1")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert headers["Content-Length"] == str(len(body.encode()))
    assert get(endpoint, method="HEAD")[0::2] == (200, "")
    # The length is a page's of that moment: the process' own figures (CPU time, files) change from request to request.
    assert int(get(endpoint, method="HEAD")[1]["Content-Length"]) > len(body) // 2
    assert get(endpoint, "/")[0] == get(endpoint, "/metrics/../etc/passwd")[0] == 404
    status, headers, _ = get(endpoint, method="POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    _, headers, body = get(endpoint, Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


def test_a_port_in_use_is_named():
    endpoint = serve(Metrics(), MetricsSection(port=0))
    try:
        with pytest.raises(ConfigError, match=f"metrics.port {endpoint.port}"):
            serve(Metrics(), MetricsSection(port=endpoint.port))
    finally:
        endpoint.close()


def test_it_listens_on_ipv6_as_well():
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    endpoint = serve(Metrics(), MetricsSection(address="::1", port=0))
    try:
        socket.create_connection(("::1", endpoint.port)).close()
    finally:
        endpoint.close()


def test_switched_off_there_is_no_endpoint():
    assert serve(Metrics(), MetricsSection(enabled=False)) is None


# --- names and passwords

COLONS = "a:b:c\N{SNOWMAN}"


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users"
    path.write_text("# who may\n\n" + user_line("prometheus", COLONS, b"salt" * 4) + "\n")
    return path


def basic(name, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def test_with_users_nobody_else_is_served(start, users, monkeypatch):
    monkeypatch.setattr(module, "WRONG", 0.01)
    endpoint = start(users=users)
    status, headers, body = get(endpoint)
    assert status == 401
    assert headers["WWW-Authenticate"].startswith("Basic ")
    assert "rltuned_" not in body
    for wrong in (basic("prometheus", "a"), basic("other", COLONS), basic("", ""), {"Authorization": "Basic !"}):
        assert get(endpoint, **wrong)[0] == 401
    assert get(endpoint, **basic("prometheus", COLONS))[0] == 200
    assert get(endpoint, "/", **basic("prometheus", COLONS))[0] == 404


def test_guessing_is_slow_and_delays_nobody_whose_password_was_right_before(start, users, half_open):
    endpoint = start(users=users)
    assert get(endpoint, **basic("prometheus", COLONS))[0] == 200
    guesses = [half_open(endpoint) for _ in range(20)]
    for guess in guesses:
        guess.sendall(b"GET /metrics HTTP/1.1\r\nAuthorization: Basic Og==\r\n\r\n")
    began = time.monotonic()
    assert get(endpoint, **basic("prometheus", COLONS))[0] == 200
    assert time.monotonic() - began < 10.0, "not behind twenty seconds of guesses"


def test_users_that_are_added_and_passwords_that_change_count_from_then_on(start, users, monkeypatch):
    monkeypatch.setattr(module, "WRONG", 0.01)
    said = []
    endpoint = start(say=said.append, users=users)
    assert get(endpoint, **basic("prometheus", COLONS))[0] == 200
    replaced = users.with_name("new")
    replaced.write_text(user_line("prometheus", "new", b"pepper" * 3) + "\n")
    replaced.rename(users)
    assert get(endpoint, **basic("prometheus", COLONS))[0] == 401
    assert get(endpoint, **basic("prometheus", "new"))[0] == 200
    replaced.write_text("prometheus:new\n")
    replaced.rename(users)
    assert get(endpoint, **basic("prometheus", "new"))[0] == 200, "the old ones stay"
    assert len(said) == 1
    assert "line 1 is not what `rltuned metrics-user NAME` prints" in said[0]


@pytest.mark.parametrize("text", ["", "name:plain\n", "name:$scrypt$ln=63,r=8,p=1$c2FsdA$c2FsdA\n", ":x"])
def test_a_file_that_lets_nobody_in_or_everybody_is_refused(tmp_path, text):
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"metrics\.users .*users"):
        Access.of(MetricsSection(users=path))
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        Access.of(MetricsSection(users=path))


def test_the_command_prints_a_line_that_lets_this_user_in_and_never_the_same_one_twice():
    first, second = (CliRunner().invoke(cli, ["metrics-user", "ann"], input=f"{COLONS}\n" * 2) for _ in range(2))
    lines = [answer.output.splitlines()[-1] for answer in (first, second)]
    assert lines[0] != lines[1]
    assert all(Users.of(line).knows("ann", COLONS) and not Users.of(line).knows("ann", "a") for line in lines)
    assert CliRunner().invoke(cli, ["metrics-user", "a:b", "--password", "x"]).exit_code == 2


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
def test_eighty_clients_that_begin_no_handshake_or_half_of_one_cost_no_scrape(start, tmp_path, half_open):
    cert, key = certificate(tmp_path, "server")
    endpoint = start(seconds=5.0, tls_cert=cert, tls_key=key)
    threads, before = threading.active_count(), descriptors()
    silent = [half_open(endpoint) for _ in range(80)]
    for connection in silent[::2]:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01")
    assert get(endpoint, context=trusting(cert))[0] == 200
    assert threading.active_count() == threads
    assert descriptors() - before <= len(silent) + CONNECTIONS + 1
    assert all(said_goodbye(connection) for connection in silent)


@pytest_openssl
def test_a_renewed_certificate_is_used_without_a_restart(start, tmp_path):
    cert, key = certificate(tmp_path, "server")
    said = []
    endpoint = start(say=said.append, tls_cert=cert, tls_key=key)
    old = cert.read_text()
    assert ssl.get_server_certificate(("127.0.0.1", endpoint.port)) == old
    new_cert, new_key = certificate(tmp_path, "renewed")
    new_cert.rename(cert)
    new_key.rename(key)
    assert ssl.get_server_certificate(("127.0.0.1", endpoint.port)) == cert.read_text() != old
    assert said == []
    key.write_text("torn")
    assert ssl.get_server_certificate(("127.0.0.1", endpoint.port)) == cert.read_text()
    assert "metrics.tls_cert" in said[0]


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
            Access.of(MetricsSection(**settings))
    with pytest.raises(ConfigError, match=r"metrics\.tls_client_ca"):
        Access.of(MetricsSection(tls_cert=cert, tls_key=key, tls_client_ca=key))
    with pytest.raises(ConfigError, match=r"config.toml:1: metrics: tls_key needs tls_cert"):
        resolve('[metrics]\ntls_key = "/x"\n', "config.toml", {}, {})
