"""What a browser, or anybody else, can do to the server of `feduca watch`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import struct
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("altair")

from feduca.report.dashboard import server as dashboards
from feduca.report.dashboard.server import Dashboard
from feduca.report.reading import RunReader


@pytest.fixture
def serve(tmp_path):
    opened = []

    def start(host="127.0.0.1"):
        dashboard = Dashboard(tmp_path, host, port=0)
        thread = threading.Thread(target=dashboard.serve, daemon=True)
        thread.start()
        opened.append((dashboard, thread))
        return dashboard

    yield start
    for dashboard, thread in opened:
        dashboard.close()
        thread.join(5)


def ask(dashboard, line: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", dashboard.port), timeout=10) as connection:
        connection.sendall(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_an_address_that_is_none_gets_an_answer(serve, capfd):
    answered = ask(serve(), b"GET http://[::1 HTTP/1.1")
    assert answered.startswith(b"HTTP/1.1 400 ")
    assert capfd.readouterr().err == ""


def test_a_closed_tab_prints_nothing(serve, capfd):
    dashboard = serve()
    for _ in range(5):
        connection = socket.create_connection(("127.0.0.1", dashboard.port), timeout=10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.close()
    assert ask(dashboard, b"GET /list.json HTTP/1.1").startswith(b"HTTP/1.1 200 ")
    time.sleep(0.3)
    assert capfd.readouterr().err == ""


def test_the_policy_is_a_header_too(serve):
    connection = http.client.HTTPConnection("127.0.0.1", serve().port, timeout=10)
    connection.request("GET", "/")
    page = connection.getresponse()
    policy = page.getheader("Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert f'content="{policy}"'.encode() in page.read()
    connection.request("GET", "/list.json")
    assert connection.getresponse().getheader("Content-Security-Policy") == "default-src 'none'"
    connection.close()


def test_an_address_of_version_six(serve):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no ::1")
    dashboard = serve("::1")
    assert dashboard.address == f"http://[::1]:{dashboard.port}/"
    connection = http.client.HTTPConnection("::1", dashboard.port, timeout=10)
    connection.request("GET", "/list.json")
    assert connection.getresponse().status == 200
    connection.close()


def test_connections_are_bounded(serve, monkeypatch):
    monkeypatch.setattr(dashboards, "AT_ONCE", 2)
    dashboard = serve()
    idle = [socket.create_connection(("127.0.0.1", dashboard.port), timeout=10) for _ in range(2)]
    time.sleep(0.3)
    one_more = socket.create_connection(("127.0.0.1", dashboard.port), timeout=10)
    assert one_more.recv(1) == b""
    for connection in (*idle, one_more):
        connection.close()
    time.sleep(0.3)
    assert ask(dashboard, b"GET /list.json HTTP/1.1").startswith(b"HTTP/1.1 200 ")


def test_a_file_that_vanishes_between_two_looks_prints_nothing(serve, tmp_path, monkeypatch, capfd):
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    for name, content in (("status.json", '{"schema": 2, "state": "running"}'), ("config.toml", 'name = "x"')):
        (run / name).write_text(content)
    (run / ".status.json.part").write_text("")
    dashboard = serve()

    @contextlib.contextmanager
    def listed(path):
        """The folder's entries, of which one is gone by the time somebody asks for it."""
        with os.scandir(path) as entries:
            found = list(entries)
        (path / ".status.json.part").unlink()
        yield found

    with monkeypatch.context() as patch:
        patch.setattr(dashboards, "os", SimpleNamespace(scandir=listed))
        body = ask(dashboard, b"GET /list.json HTTP/1.1").partition(b"\r\n\r\n")[2]
    (row,) = json.loads(body)["runs"]
    assert row["name"] == "x"
    assert "error" not in row
    new = RunReader._new

    def gone(reader, name):
        found = new(reader, name)
        if name == "config.toml":
            (run / name).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(RunReader, "_new", gone)
    body = ask(dashboard, b"GET /run/runs%2Fone/data.json HTTP/1.1").partition(b"\r\n\r\n")[2]
    assert "config.toml" in json.loads(body)["error"]
    assert capfd.readouterr().err == ""


def test_the_list_says_what_tells_runs_of_one_method_apart(serve, tmp_path):
    from run_directories import written

    paths = [written(tmp_path, 3, 4, seed=seed).path for seed in (0, 1)]
    dashboard = serve()

    def listed():
        rows = json.loads(dashboard.answer("/list.json", "")[2])["runs"]
        return {row["seed"]: (row["method"], row["differs"]) for row in rows}

    alike = listed()
    assert alike[0] == alike[1]  # seeds of one method
    assert alike[0][1] == ""
    config = paths[1] / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.25"))
    told = listed()
    assert told[1] == (alike[1][0], "lr = 0.25")
    assert told[0] == (alike[0][0], "lr = 0.1")
