"""Requests that no client of ours sends: whatever they hold, the answer is 4xx, and nothing is raised."""

from __future__ import annotations

import asyncio
import contextlib
import json
import string
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chanas.service.api.app import create_app
from chanas.service.api.service import Service
from chanas.service.folder import DataFolder
from chanas.service.mock import MockWork
from chanas.service.page.site import add_page
from chanas.service.requests import JobRequest
from chanas.service.runner import Runner
from chanas.service.store.database import Database
from chanas.service.store.jobs import JobStore
from chanas.service.store.uploads import Uploads

from .conftest import MAX_BYTES

Header = tuple[bytes, bytes]
HOST: Header = (b"host", b"127.0.0.1")
JSON: Header = (b"content-type", b"application/json")
FORM: Header = (b"content-type", b"application/x-www-form-urlencoded")
OURS: Header = (b"origin", b"http://127.0.0.1")
BIG = str(10**30)


class Asked:
    """An application that is asked without a client's library, which would refuse to send most of this."""

    def __init__(self, service: Service) -> None:
        self.app, self.folder = add_page(create_app(service, 0.01)), service.uploads.path("0" * 64).parent

    def ask(self, method: str, path: str, headers: Sequence[Header] = (), body: bytes = b"", query: bytes = b"") -> int:
        """The status of an answer; the client is gone after its body. What is raised is not handled."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(errors="replace"),
            "query_string": query,
            "root_path": "",
            "headers": list(headers) if any(name == b"host" for name, _ in headers) else [HOST, *headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        given = [{"type": "http.request", "body": body, "more_body": False}]
        status: list[int] = []

        async def receive() -> dict[str, Any]:
            return given.pop() if given else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        asyncio.run(self.app(scope, receive, send))  # type: ignore[arg-type]
        return status[0]


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    with tempfile.TemporaryDirectory() as root:
        folder = DataFolder(Path(root))
        with contextlib.closing(Database(folder.database)) as database:
            store = JobStore(database)
            uploads = Uploads(database, folder.uploads, MAX_BYTES)
            yield Asked(
                Service(database, store, uploads, Runner(database, store, MockWork(folder)), max_open_jobs=10**6)
            )


MODEL = {"kind": "model", "model": "torchvision:a"}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**30), 2**63, 1 << 31]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["\0", "\ud800", "../../etc/passwd", "é" * 100, "a" * 10_000, "0" * 64, "torchvision:a\n"]),
)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=8), v, max_size=4))
names = st.sampled_from(["kind", *JobRequest.model_fields])
demands = st.dictionaries(
    st.sampled_from(["latency_s", "accuracy", "minutes", "priority"]) | st.text(max_size=5), values
)
kinds = st.sampled_from(["model", "table", "search"])
requests = st.builds(
    lambda kind, changes, demand: {"kind": kind, **changes, "demand": demand},
    kinds,
    st.dictionaries(names, values, max_size=4),
    demands,
)
bodies = st.one_of(
    requests.map(lambda data: json.dumps(data).encode(errors="surrogatepass")),
    values.map(lambda data: json.dumps(data, ensure_ascii=False).encode(errors="surrogatepass")),
    st.binary(max_size=200),
    st.sampled_from(
        [
            b"[" * 20_000,
            b'{"a":' * 10_000,
            b'{"kind":"model","kind":"table"}',
            b'{"kind": "model", "model": "torchvision:a", "demand": {"minutes": 1e400}}',
            b'{"kind": "model", "model": "torchvision:a", "seed": 1' + b"0" * 6000 + b"}",
            b"\xff\xfe{}",
            b"\xef\xbb\xbf{}",
            b"x" * (1 << 17),
            b"PK",
        ]
    ),
)
odd_ids = st.one_of(
    st.sampled_from(["..", ".", "%2e%2e", "..%2f..", "\0", "a" * 5000, "é", "'; DROP TABLE jobs; --", "0" * 64]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=10),  # a server decodes paths without surrogates
)
paths = st.one_of(
    st.sampled_from(
        [
            "/",
            "/devices",
            "/sign-in",
            "/sign-out",
            "/jobs",
            "/v1/health",
            "/v1/uploads",
            "/v1/jobs",
            "/v1/devices",
            "/openapi.json",
            "/static/",
            "/static/../app.py",
            "/v1",
            "//",
            "*",
            "http://[::1",
        ]
    ),
    st.builds("/v1/jobs/{}{}".format, odd_ids, st.sampled_from(["", "/events", "/log", "/bundle", "/cancel", "/x"])),
    st.builds("/jobs/{}{}".format, odd_ids, st.sampled_from(["", "/cancel", "/pause", "/resume"])),
    st.builds("/v1/uploads/{}".format, odd_ids),
    st.builds("/static/{}".format, odd_ids),
)
header_values = st.one_of(
    st.binary(max_size=30).filter(lambda b: b"\r" not in b and b"\n" not in b and b"\0" not in b),
    st.sampled_from(
        [
            b"[::1",
            b"[x]:1",
            b"http://[",
            b"a..b",
            b"\xff",
            b"1" * 9000,
            b"-1",
            BIG.encode(),
            b"nan",
            b"bytes=9-1",
            b"bytes=0-0,1-1,a",
            b"Bearer",
            b"Bearer \xe9.x",
            b"Bearer .",
            b"chanas_token=a; chanas_token=b",
            b"null",
            b"",
            b"application/json; charset=utf-7",
            b"multipart/form-data",
            b"127.0.0.1:99999",
            b"localhost:",
        ]
    ),
)
headers = st.lists(
    st.tuples(
        st.sampled_from(
            [
                b"host",
                b"origin",
                b"content-type",
                b"authorization",
                b"cookie",
                b"last-event-id",
                b"idempotency-key",
                b"range",
                b"content-length",
                b"if-range",
                b"x-forwarded-for",
                b"expect",
                b"accept-encoding",
                b"upgrade",
            ]
        ),
        header_values,
    ),
    max_size=4,
)
queries = st.one_of(
    st.just(b""),
    st.builds(
        lambda name, value: name + b"=" + value,
        st.sampled_from([b"before", b"limit", b"state", b"minutes"]),
        st.sampled_from(
            [b"", b"-1", b"x", b"1e3", BIG.encode(), b"9223372036854775808", b"%00", b"%ff", b"nan", b"queued"]
        ),
    ),
    st.text(string.printable[:94], max_size=20).map(str.encode),  # other bytes end a request before,
)
methods = st.sampled_from(
    ["GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "TRACE", "CONNECT", "get", "\xe9"]
)

few = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
many = settings(few, max_examples=1000)


def is_answered(status: int) -> bool:
    return 200 <= status < 500


def any_request(asked: Asked, method: str, path: str, given: list[Header], body: bytes, query: bytes) -> None:
    assert is_answered(asked.ask(method, path, given, body, query))


def any_job(asked: Asked, body: bytes) -> None:
    assert asked.ask("POST", "/v1/jobs", [JSON], body) in (200, 201, 400, 404, 413, 422)


@few
@given(method=methods, path=paths, given=headers, body=bodies, query=queries)
def test_any_request(asked: Asked, method: str, path: str, given: list[Header], body: bytes, query: bytes) -> None:
    any_request(asked, method, path, given, body, query)


@few
@given(body=bodies)
def test_any_job(asked: Asked, body: bytes) -> None:
    any_job(asked, body)


@few
@given(
    st.dictionaries(
        st.sampled_from(["model", "upload", "latency_ms", "minutes", "priority", "key", "from", "token"]),
        st.one_of(
            st.text(string.printable, max_size=20), st.sampled_from(["nan", "inf", "-inf", "1e999", "9" * 5000, "%00"])
        ),
    ),
    st.sampled_from(["/jobs", "/jobs/x/cancel", "/sign-in", "/sign-out"]),
)
def test_any_form(asked: Asked, fields: dict[str, str], path: str) -> None:
    body = "&".join(f"{name}={value}" for name, value in fields.items()).encode()
    assert asked.ask("POST", path, [FORM, OURS], body) in (200, 303, 401, 403, 404, 409, 413, 422)


@pytest.mark.slow
@many
@given(method=methods, path=paths, given=headers, body=bodies, query=queries)
def test_many_requests(asked: Asked, method: str, path: str, given: list[Header], body: bytes, query: bytes) -> None:
    any_request(asked, method, path, given, body, query)


@pytest.mark.slow
@many
@given(body=bodies)
def test_many_jobs(asked: Asked, body: bytes) -> None:
    any_job(asked, body)


@pytest.mark.parametrize(
    ("path", "given", "query"),
    [
        ("/v1/health", (b"host", b"[::1"), b""),
        ("/v1/health", (b"host", b"[x]:1"), b""),
        ("/v1/jobs", HOST, f"before={BIG}".encode()),
        ("/", HOST, f"before={BIG}".encode()),
        ("/v1/jobs/x/events", (b"last-event-id", BIG.encode()), b""),
    ],
)
def test_what_is_no_number_or_address(asked: Asked, path: str, given: Header, query: bytes) -> None:
    assert 400 <= asked.ask("GET", path, [given], query=query) < 500


def test_an_upload_that_is_cut_off_leaves_nothing(asked: Asked) -> None:
    file: Header = (b"content-type", b"application/octet-stream")
    asked_for: list[dict[str, Any]] = [{"type": "http.request", "body": b"abc", "more_body": True}]

    async def receive() -> dict[str, Any]:
        return asked_for.pop() if asked_for else {"type": "http.disconnect"}

    async def send(_message: dict[str, Any]) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/v1/uploads", "query_string": b"", "root_path": "", "state": {}}
    asyncio.run(asked.app({**scope, "headers": [HOST, file]}, receive, send))  # type: ignore[arg-type]
    assert list(asked.folder.glob("*.part")) == []
