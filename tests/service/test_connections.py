"""chanas/service/api/connections.py: how many there may be, what silence costs, and how much the log says of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from chanas.errors import ServiceError
from chanas.service.api import connections
from chanas.service.api.app import create_app
from chanas.service.api.connections import Connection, SparseLog
from chanas.service.api.events import Hub
from chanas.service.api.service import Service
from chanas.service.store.jobs import JobStore

NUM = 8
START = b"POST /v1/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_S", 0.02)
    monkeypatch.setattr(connections, "max_connections", lambda: NUM)
    monkeypatch.setattr("chanas.service.api.events.max_connections", lambda: NUM)


@contextlib.contextmanager
def served(service: Service) -> Iterator[tuple[str, int]]:
    config = uvicorn.Config(create_app(service), log_level="warning", http=Connection, ws="none", backlog=4)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()
        server.should_exit = True
        thread.join()


def status(place: tuple[str, int], path: str = "/v1/health") -> int:
    connection = http.client.HTTPConnection(*place, timeout=10.0)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def is_ended(client: socket.socket) -> bool:
    client.settimeout(10.0)
    with contextlib.suppress(ConnectionError):
        while client.recv(1000):
            pass
    return True


def test_silent_connections_hold_nothing_up(idle: Service) -> None:
    with served(idle) as place, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(place)) for _ in range(5 * NUM)]
        assert status(place) == 200
        assert is_ended(silent[0])


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HT"])
def test_a_client_that_does_not_say_what_it_wants(idle: Service, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)
    with served(idle) as place, socket.create_connection(place) as client:
        client.sendall(said)
        assert is_ended(client)


def test_a_client_that_says_its_wish_letter_by_letter(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)
    with served(idle) as place, socket.create_connection(place) as client, contextlib.suppress(ConnectionError):
        until_s = time.monotonic() + 10.0
        while time.monotonic() < until_s:
            client.sendall(b"A")
            time.sleep(0.02)
        raise AssertionError("it may do so for ever")


def test_a_body_that_stops_in_the_middle(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENCE_S", 0.1)
    with served(idle) as place, socket.create_connection(place) as client:
        client.sendall(START + b"Content-Length: 1000\r\n\r\nabc")
        assert is_ended(client)
    assert list(idle.uploads.path("0" * 64).parent.iterdir()) == []


def test_a_stream_is_counted_as_long_as_it_is_sent(idle: Service) -> None:
    with served(idle) as place, contextlib.ExitStack() as stack:
        body = json.dumps({"kind": "model", "model": "torchvision:a"})
        connection = http.client.HTTPConnection(*place, timeout=10.0)
        connection.request("POST", "/v1/jobs", body, {"Content-Type": "application/json"})
        job = json.loads(connection.getresponse().read())["id"]
        connection.close()
        for _ in range(2):
            with contextlib.ExitStack() as streams:
                for _ in range(NUM // 2):
                    client = streams.enter_context(socket.create_connection(place))
                    client.sendall(f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                    assert client.recv(15) == b"HTTP/1.1 200 OK"
                assert status(place, f"/v1/jobs/{job}/events") == 429
            until_s = time.monotonic() + 10.0
            while True:
                client = stack.enter_context(socket.create_connection(place))
                client.sendall(f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                if client.recv(15) == b"HTTP/1.1 200 OK":
                    client.close()
                    break
                client.close()
                assert time.monotonic() < until_s
            time.sleep(0.1)


def test_streams_of_a_tenant_are_bounded_as_they_are_counted(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chanas.service.api.events.MAX_WATCHERS", 2)
    hub = Hub(store)
    with hub.counted("a"), hub.counted("a"):
        with pytest.raises(ServiceError) as refused, hub.counted("a"):
            raise AssertionError
        assert refused.value.status == 429
        with hub.counted("b"):
            pass
    with hub.counted("a"):
        pass


def test_a_log_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now_s[0])
    sparse = SparseLog()

    def told(text: str) -> str | None:
        record = logging.LogRecord("a", logging.WARNING, "", 0, text, (), None)
        return record.getMessage() if sparse.filter(record) else None

    logs = [told("Invalid request") for _ in range(1000)]
    assert sum(log is not None for log in logs) == 10
    assert told("another") == "another"
    now_s[0] = 61.0
    assert "990 more" in str(told("Invalid request"))
    assert told("Invalid request") == "Invalid request"
