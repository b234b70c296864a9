"""The API on mock work: jobs from submission to bundle, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import tarfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from chanas.service.api.app import create_app
from chanas.service.api.service import Service
from chanas.service.folder import DataFolder
from chanas.service.mock import MockWork
from chanas.service.runner import Runner
from chanas.service.store.database import Database
from chanas.service.store.jobs import ENDED, JobStore
from chanas.service.store.tokens import add_token, list_tokens, remove_token
from chanas.service.store.uploads import Uploads

from .conftest import MAX_BYTES

MODEL = {"kind": "model", "model": "torchvision:a"}
FILE = {"Content-Type": "application/octet-stream"}


def client_of(service: Service, token: str | None = None, **headers: str) -> TestClient:
    given = {} if token is None else {"Authorization": f"Bearer {token}"}
    app = create_app(service, 0.05)
    return TestClient(app, "http://127.0.0.1", headers={**given, **headers}, raise_server_exceptions=False)


@contextlib.contextmanager
def watched(service: Service, token: str | None = None) -> Iterator[TestClient]:
    """With the application's beginning and end around it."""
    with client_of(service, token) as client:
        yield client


def ended(client: TestClient, job: str) -> dict[str, Any]:
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        found: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
        if found["state"] in ENDED:
            return found
        time.sleep(0.01)
    raise AssertionError(found)


def refused(response: Any, status: int, word: str = "") -> bool:
    told = response.json()
    assert (response.status_code, list(told)) == (status, ["error"]), told
    assert "\n" not in told["error"]
    return word in told["error"]


def test_a_job_from_its_submission_to_its_bundle(service: Service) -> None:
    with watched(service) as client:
        made = client.post("/v1/jobs", json={**MODEL, "demand": {"latency_s": 1.0, "minutes": 1}})
        assert made.status_code == 201
        job = made.json()["id"]
        found = ended(client, job)
        assert (found["state"], found["attempt"], found["error"]) == ("complete", 1, None)
        assert (found["result"]["met"], found["result"]["at_once"]) == (True, False)
        bundle = client.get(f"/v1/jobs/{job}/bundle")
        assert len(bundle.content) == found["result"]["bundle"]["num_bytes"]
        with tarfile.open(fileobj=io.BytesIO(bundle.content)) as archive:
            assert archive.getnames() == ["tuned.json"]
        assert client.get(f"/v1/jobs/{job}/log").text == ""
        devices = client.get("/v1/devices").json()
        assert devices["best"][0]["job"] == job
        again = client.post("/v1/jobs", json={**MODEL, "trials": 9, "demand": {"latency_s": 1.0}}).json()
        assert (again["state"], again["result"]["at_once"], again["attempt"]) == ("complete", True, 0)
        assert client.get(f"/v1/jobs/{again['id']}/bundle").content == bundle.content


def test_a_demand_that_is_not_met_is_told(service: Service) -> None:
    client = client_of(service)
    job = client.post("/v1/jobs", json={**MODEL, "demand": {"latency_s": 1e-9}}).json()["id"]
    assert ended(client, job)["result"]["met"] is False


def test_many_jobs_end_once_each_and_leave_nothing_behind(service: Service, folder: DataFolder) -> None:
    client = client_of(service)
    jobs = [client.post("/v1/jobs", json={**MODEL, "model": f"torchvision:a{i}"}).json()["id"] for i in range(30)]
    for job in jobs:
        assert ended(client, job)["state"] == "complete"
        assert [row["what"] for row in service.store.events(job, 0)] == ["queued", "running", "complete"]
    deadline = time.monotonic() + 10.0
    while any(folder.jobs.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(folder.jobs.iterdir()) == []


def test_events_are_told_to_the_end_and_taken_up_where_they_were(service: Service) -> None:
    with watched(service) as client:
        job = client.post("/v1/jobs", json=MODEL).json()["id"]
        lines = client.get(f"/v1/jobs/{job}/events").text.splitlines()
        states = [json.loads(line.removeprefix("data: "))["state"] for line in lines if '"state"' in line]
        assert states == ["queued", "running", "complete"]
        numbers = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
        rest = client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": numbers[0]}).text
        assert [line for line in rest.splitlines() if line.startswith("id: ")] == [f"id: {n}" for n in numbers[1:]]
        assert client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": numbers[-1]}).status_code == 204


def test_streams_end_when_the_service_stops(idle: Service) -> None:
    with watched(idle) as client:
        job = client.post("/v1/jobs", json=MODEL).json()["id"]
        threading.Timer(0.1, client.app.state.hub.end).start()  # type: ignore[attr-defined]
        assert '"queued"' in client.get(f"/v1/jobs/{job}/events").text


def test_pause_resume_and_cancel(idle: Service) -> None:
    client = client_of(idle)
    job = client.post("/v1/jobs", json=MODEL).json()["id"]
    states = [client.post(f"/v1/jobs/{job}/{what}").json()["state"] for what in ("pause", "resume", "cancel", "cancel")]
    assert states == ["paused", "queued", "cancelled", "cancelled"]
    assert refused(client.post(f"/v1/jobs/{job}/resume"), 409, "cancelled")
    assert refused(client.get(f"/v1/jobs/{job}/bundle"), 409, "cancelled")


def test_a_running_job_is_cancelled_at_once(folder: DataFolder, database: Database, store: JobStore) -> None:
    runner = Runner(database, store, MockWork(folder, stage_s=0.2, num_rounds=200))
    runner.start()
    try:
        service = Service(database, store, Uploads(database, folder.uploads, MAX_BYTES), runner)
        client = client_of(service)
        job, other = (client.post("/v1/jobs", json={**MODEL, "seed": i}).json()["id"] for i in range(2))
        while client.get(f"/v1/jobs/{job}").json()["state"] != "running":
            time.sleep(0.01)
        client.post(f"/v1/jobs/{job}/cancel")
        assert ended(client, job)["state"] == "cancelled"
    finally:
        runner.stop()
    assert store.get("local", other)["state"] == "queued"


def test_the_same_key_is_the_same_job(idle: Service) -> None:
    client = client_of(idle)
    first, second = (client.post("/v1/jobs", json=MODEL, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    other = client.post("/v1/jobs", json={**MODEL, "trials": 3}, headers={"Idempotency-Key": "k"})
    assert refused(other, 409, "Idempotency-Key")


def test_jobs_are_listed_in_pages(idle: Service) -> None:
    client = client_of(idle)
    jobs = [client.post("/v1/jobs", json={**MODEL, "seed": i}).json()["id"] for i in range(5)]
    first = client.get("/v1/jobs?limit=3").json()
    second = client.get(f"/v1/jobs?limit=3&before={first['next']}").json()
    assert [job["id"] for page in (first, second) for job in page["jobs"]] == jobs[::-1]
    assert second["next"] is None
    assert client.get("/v1/jobs?state=running").json()["jobs"] == []


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({"kind": "model", "model": "/etc/passwd"}, "model must be"),
        ({"kind": "model", "model": "torchvision:../a"}, "model must be"),
        ({"kind": "table", "space": "../space.yaml"}, "space"),
        ({"kind": "table", "space": "mbv3", "model": "torchvision:a"}, "model can't be set for a table"),
        ({"kind": "search", "space": "mbv3"}, "accuracies"),
        ({"kind": "shell", "command": "ls"}, "kind"),
        ({**MODEL, "run": "/tmp"}, "unknown key"),
        ({**MODEL, "demand": {"accuracy": 0.5}}, "accuracy"),
        ({**MODEL, "demand": {"latency_s": -1}}, "latency_s"),
        ({**MODEL, "shapes": {"x": [1 << 30]}}, "shapes"),
        ({**MODEL, "target": "../x"}, "target"),
    ],
)
def test_what_is_no_request_is_one_line(idle: Service, request_: dict[str, Any], word: str) -> None:
    assert refused(client_of(idle).post("/v1/jobs", json=request_), 422, word)


def test_uploads_lie_under_their_hashes_and_nowhere_else(idle: Service, folder: DataFolder) -> None:
    client = client_of(idle)
    headers = {**FILE, "Content-Disposition": 'attachment; filename="../../../evil"'}
    made = client.post("/v1/uploads", content=b"accuracies", headers=headers)
    assert made.status_code == 201
    sha256 = made.json()["upload"]
    assert [p.name for p in folder.uploads.iterdir()] == [sha256]
    assert {p.name for p in folder.root.iterdir()} >= {"uploads"}
    assert refused(client.post("/v1/jobs", json={"kind": "model", "model": "0" * 64}), 404, "upload")
    assert client.post("/v1/jobs", json={"kind": "model", "model": sha256}).status_code == 201
    assert client.delete(f"/v1/uploads/{sha256}").status_code == 204
    assert list(folder.uploads.iterdir()) == []
    assert refused(client.delete("/v1/uploads/..%2Fservice.sqlite"), 404)


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (b"x" * (MAX_BYTES + 1), 413, "at most"),
        (b"", 400, "nothing"),
        (b"PK\x03\x04archive", 415, "ONNX"),
        (b"\x80\x04pickle", 415, "ONNX"),
    ],
)
def test_an_upload_that_is_refused_leaves_nothing(
    idle: Service, folder: DataFolder, content: bytes, status: int, word: str
) -> None:
    assert refused(client_of(idle).post("/v1/uploads", content=content, headers=FILE), status, word)
    assert list(folder.uploads.iterdir()) == []


def test_a_tenant_has_so_much_room_and_no_more(idle: Service) -> None:
    client = client_of(idle)
    sent = [client.post("/v1/uploads", content=bytes([65 + i]) * MAX_BYTES, headers=FILE) for i in range(17)]
    assert [r.status_code for r in sent] == [201] * 16 + [413]


def test_with_tokens_a_tenant_sees_its_own_alone(idle: Service) -> None:
    a, b = (add_token(idle.database, name) for name in ("a", "b"))
    mine, other = client_of(idle, a), client_of(idle, b)
    upload = mine.post("/v1/uploads", content=b"mine", headers=FILE).json()["upload"]
    job = mine.post("/v1/jobs", json={"kind": "model", "model": upload}).json()["id"]
    assert mine.get(f"/v1/jobs/{job}").status_code == 200
    for method, path in (
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/bundle"),
        ("GET", "/log"),
        ("POST", "/cancel"),
        ("POST", "/pause"),
    ):
        assert refused(other.request(method, f"/v1/jobs/{job}{path}"), 404, "no such job")
    assert other.get("/v1/jobs").json()["jobs"] == []
    assert refused(other.post("/v1/jobs", json={"kind": "model", "model": upload}), 404)
    assert refused(other.delete(f"/v1/uploads/{upload}"), 404)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/x", "/v1/devices", "/v1/jobs/x/events", "/v1/jobs/x/bundle"])
def test_where_there_are_tokens_one_is_demanded(idle: Service, path: str) -> None:
    token = add_token(idle.database, "a")
    assert refused(client_of(idle).get(path), 401, "token")
    for wrong in (token[:-1], token + "x", "x.y", "", token.partition(".")[2]):
        assert refused(client_of(idle, wrong).get(path), 401)
    assert client_of(idle, token).get("/v1/jobs").status_code == 200
    assert client_of(idle).get("/v1/health").json()["status"] == "ok"


def test_a_token_is_nowhere_in_the_data_and_ends_with_its_removal(idle: Service, folder: DataFolder) -> None:
    token = add_token(idle.database, "a")
    secret = token.partition(".")[2]
    assert all(secret.encode() not in p.read_bytes() for p in folder.root.iterdir() if p.is_file())
    ((number, tenant, _),) = list_tokens(idle.database)
    assert (token.startswith(number), tenant) == (True, "a")
    remove_token(idle.database, number)
    assert refused(client_of(idle, token).get("/v1/jobs"), 401)


def test_beyond_this_machine_nothing_is_open_even_without_tokens(idle: Service) -> None:
    assert refused(client_of(dataclasses.replace(idle, is_local=False)).get("/v1/jobs"), 401)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:8765"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"X-Forwarded-For": "1.2.3.4"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_what_pages_of_other_sites_can_send_is_refused(idle: Service, headers: dict[str, str], status: int) -> None:
    response = client_of(idle).post("/v1/jobs", content=json.dumps(MODEL), headers=headers)
    assert refused(response, status)
    assert idle.store.page("local", None, 10) == []


def test_a_request_that_is_too_long_is_refused(idle: Service) -> None:
    headers = {"Content-Type": "application/json"}
    assert refused(client_of(idle).post("/v1/jobs", content=b" " * (1 << 17), headers=headers), 413)


def test_unknown_places_and_faults_are_one_line_too(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(idle)
    assert refused(client.get("/v1/nowhere"), 404)
    assert refused(client.get("/v1/jobs?limit=0"), 422)
    assert refused(client.get("/docs"), 404)
    monkeypatch.setattr(idle.runner.work, "devices", lambda: 1 / 0)
    assert refused(client.get("/v1/devices"), 500, "fault of the service")


def test_a_job_whose_work_cannot_be_opened_fails_alone(folder: DataFolder, database: Database, store: JobStore) -> None:
    class Broken(MockWork):
        def open(self, claimed: Any) -> Any:
            if claimed.request["model"] == "torchvision:broken":
                raise OSError("planted")
            return super().open(claimed)

    runner = Runner(database, store, Broken(folder))
    runner.start()
    try:
        client = client_of(Service(database, store, Uploads(database, folder.uploads, MAX_BYTES), runner))
        jobs = [
            client.post("/v1/jobs", json={**MODEL, "model": f"torchvision:{n}"}).json()["id"] for n in ("broken", "a")
        ]
        assert [ended(client, job)["state"] for job in jobs] == ["failed", "complete"]
        assert "planted" in client.get(f"/v1/jobs/{jobs[0]}").json()["error"]
    finally:
        runner.stop()


def test_a_request_for_which_there_is_no_room_may_come_again(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async def receive(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/secret")

    monkeypatch.setattr(idle.uploads, "receive", receive)
    client = TestClient(create_app(idle), "http://127.0.0.1")  # raises what would be a traceback in the log
    told = client.post("/v1/uploads", content=b"a", headers=FILE)
    assert refused(told, 503, "no space left on device")
    assert "/secret" not in told.text


def test_health_says_why_jobs_do_not_run(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(idle)
    assert client.get("/v1/health").json()["status"] == "ok"
    monkeypatch.setattr(type(idle.runner), "fault", property(lambda _runner: "no space left on device"))
    told = client.get("/v1/health")
    assert (told.status_code, told.json()["error"]) == (503, "no space left on device")
