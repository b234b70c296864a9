"""The page: what it shows, that its forms do what they say, and for whom."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from chanas.service.api.app import create_app
from chanas.service.api.service import COOKIE, Service
from chanas.service.folder import DataFolder
from chanas.service.page.shown import duration, strips
from chanas.service.page.site import add_page
from chanas.service.store.jobs import Made, state_of
from chanas.service.store.tokens import add_token, remove_token
from chanas.service.store.use import MINUTE_S, note_use
from chanas.service.texts import about

HOST = "http://127.0.0.1"
OURS = {"Origin": HOST}
EVIL = "<script>alert(1)</script>"


def browser_of(service: Service, token: str | None = None) -> TestClient:
    client = TestClient(add_page(create_app(service)), HOST, follow_redirects=False)
    if token is not None:
        assert client.post("/sign-in", data={"token": token}, headers=OURS).status_code == 303
    return client


def submitted(client: TestClient, **fields: str) -> str:
    response = client.post("/jobs", data={"model": "a", "key": "k", **fields}, headers=OURS)
    assert response.status_code == 303, response.text
    return response.headers["location"].removeprefix("/jobs/")


def test_a_network_is_submitted_shown_paused_resumed_and_cancelled(idle: Service) -> None:
    client = browser_of(idle)
    job = submitted(client, latency_ms="2.5", minutes="3", priority="-1")
    assert submitted(client, latency_ms="2.5", minutes="3", priority="-1") == job  # a second click
    assert idle.store.get("local", job)["priority"] == -1
    for place in ("/", f"/jobs/{job}"):
        assert "≤ 2.5 ms, 3 min, priority -1" in client.get(place).text
    for what, state, offered in (
        ("pause", "paused", {"resume", "cancel"}),
        ("resume", "queued", {"pause", "cancel"}),
        ("cancel", "cancelled", set()),
    ):
        done = client.post(f"/jobs/{job}/{what}", data={"from": "jobs"}, headers=OURS)
        assert (done.status_code, done.headers["location"]) == (303, "/")
        assert state_of(idle.store.get("local", job)) == state
        shown = client.get(f"/jobs/{job}").text
        assert {*re.findall(rf'action="/jobs/{job}/(\w+)"', shown)} == offered
    refused = client.post(f"/jobs/{job}/resume", data={"from": "job"}, headers=OURS)
    assert (refused.status_code, "it is cancelled" in refused.text) == (409, True)


def test_a_job_that_runs_shows_its_stages_and_one_that_is_complete_its_bundle(idle: Service) -> None:
    client, job = browser_of(idle), submitted(browser_of(idle), latency_ms="1")
    claimed = idle.store.claim().result()
    assert claimed is not None
    idle.store.progress({job: {"build": 7, "measure": 5}}).result()
    running = client.get(f"/jobs/{job}").text
    assert "build 7, measure 5" in running
    assert f'data-events="/v1/jobs/{job}/events"' in running
    assert "<noscript><meta http-equiv" in running
    facts = {"latency_s": 3e-3, "met": False, "bundle": {"num_bytes": 1 << 20}}
    idle.store.complete(job, claimed.attempt, Made(facts, 3e-3)).result()
    complete = client.get(f"/jobs/{job}").text
    assert "3 ms, demand not met" in complete
    assert f'href="/v1/jobs/{job}/bundle"' in complete
    assert "data-events" not in complete
    assert f'href="/jobs/{job}">a</a>' in client.get("/devices").text


def test_jobs_are_shown_in_pages_and_by_state(idle: Service) -> None:
    client = browser_of(idle)
    jobs = [submitted(client, key=str(i)) for i in range(51)]
    first = client.get("/").text
    older = re.search(r'href="(/\?before=\d+)"', first)
    assert older is not None
    second = client.get(older[1]).text
    listed = [re.findall(r'<a href="/jobs/(\w+)">', text) for text in (first, second)]
    assert [len(part) for part in listed] == [50, 1]
    assert listed[0] + listed[1] == jobs[::-1]
    assert "There are none that are running" in client.get("/?state=running").text
    assert client.get("/?state=nonsense").status_code == 422


def test_the_use_of_devices_is_drawn_over_an_hour_a_day_and_a_week(idle: Service) -> None:
    now_s = time.time()
    minute = int(now_s // MINUTE_S)
    note_use(idle.database, {("device", 0, minute - n): 30.0 for n in range(1, 5)}, now_s).result()
    client = browser_of(idle)
    for minutes, num_bars in (("60", 4), ("1440", (1, 2)), ("10080", (1, 2))):
        text = client.get(f"/devices?minutes={minutes}").text
        found = len(re.findall('class="bar"', text))
        assert found == num_bars if isinstance(num_bars, int) else found in num_bars
    assert client.get("/devices?minutes=7").status_code == 422


def test_bars_stand_at_their_time_and_are_as_high_as_the_unit_was_busy() -> None:
    use = [
        {"resource": "device", "unit": 0, "minute": minute, "busy": busy}
        for minute, busy in ((9941, 60.0), (10000, 15.0), (9900, 60.0))
    ]
    (drawn,) = strips({"device": 1}, use, 60, 10000 * MINUTE_S + 1.0)
    assert [(bar.x, bar.height) for bar in drawn.bars] == [(0, 1.0), (59, 0.25)]
    assert drawn.busy == pytest.approx(75 / 3600)


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (3e5, "3 d")]
)
def test_durations_have_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("given", "model"), [("a", "torchvision:a"), ("torchvision:a", "torchvision:a"), ("timm:a.b", "timm:a.b")]
)
def test_a_name_without_a_library_is_one_of_torchvision(idle: Service, given: str, model: str) -> None:
    job = submitted(browser_of(idle), model=given)
    assert json.loads(idle.store.get("local", job)["request"])["model"] == model


def test_an_upload_is_named_by_the_beginning_of_its_hash() -> None:
    assert about({"model": "ab" * 32}) == "upload abababababab…"
    assert about({"model": "torchvision:resnet18"}) == "resnet18"


def test_what_jobs_and_their_logs_say_is_text_and_nothing_else(idle: Service, folder: DataFolder) -> None:
    client, job = browser_of(idle), submitted(browser_of(idle))
    path = folder.log(job)
    path.parent.mkdir(parents=True)
    path.write_text(f"log {EVIL}")
    claimed = idle.store.claim().result()
    assert claimed is not None
    idle.store.fail(job, claimed.attempt, f"error {EVIL}").result()
    refused = client.post("/jobs", data={"model": "a", "minutes": EVIL}, headers=OURS)
    for text in (client.get(f"/jobs/{job}").text, client.get("/").text, refused.text):
        assert EVIL not in text
        assert "&lt;script&gt;" in text


def test_pages_load_nothing_from_elsewhere_and_run_no_scripts_but_ours(idle: Service) -> None:
    client, job = browser_of(idle), submitted(browser_of(idle))
    for place in ("/", f"/jobs/{job}", "/devices", "/jobs/none"):
        response = client.get(place)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["cache-control"] == "no-store"
        assert not re.search(r"https?://|style=|<style|<script>|\son\w+=", response.text)
        for own in re.findall(r'(?:src|href)="(/static/[^"]+)"', response.text):
            assert client.get(own).status_code == 200


@pytest.mark.parametrize(
    "headers", [{}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:9999"}, {"Origin": "http://x"}]
)
def test_forms_of_other_pages_are_refused(idle: Service, headers: dict[str, str]) -> None:
    client, job = browser_of(idle), submitted(browser_of(idle))
    for place, data in ((f"/jobs/{job}/cancel", {}), ("/jobs", {"model": "b"}), ("/sign-in", {"token": "t"})):
        assert client.post(place, data=data, headers=headers).status_code == 403
    assert [row["state"] for row in idle.store.page("local", None, 10)] == ["queued"]


@pytest.mark.parametrize(
    "fields", [{"model": "../x"}, {"model": ""}, {"minutes": "x"}, {"latency_ms": "-1"}, {"minutes": "nan"}]
)
def test_what_is_no_network_or_demand_is_told_on_a_page(idle: Service, fields: dict[str, str]) -> None:
    refused = browser_of(idle).post("/jobs", data={"model": "a", **fields}, headers=OURS)
    assert (refused.status_code, "That did not work" in refused.text) == (422, True)
    assert idle.store.page("local", None, 10) == []


def test_with_tokens_one_signs_in_and_out_and_sees_ones_own(idle: Service) -> None:
    a, b = (add_token(idle.database, name) for name in ("a", "b"))
    stranger = browser_of(idle)
    for place in ("/", "/devices", "/jobs/x"):
        assert stranger.get(place).headers["location"] == "/sign-in"
    assert stranger.post("/jobs", data={"model": "a"}, headers=OURS).headers["location"] == "/sign-in"
    wrong = stranger.post("/sign-in", data={"token": a[:-1]}, headers=OURS)
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    mine, other = browser_of(idle, a), browser_of(idle, b)
    job = submitted(mine)
    assert "a" in mine.get(f"/jobs/{job}").text
    assert other.get(f"/jobs/{job}").status_code == 404
    assert job not in other.get("/").text
    assert other.post(f"/jobs/{job}/cancel", headers=OURS).status_code == 404
    assert mine.get(f"/v1/jobs/{job}/log").status_code == 200  # links and events go by the cookie, too
    assert mine.post("/sign-out", headers=OURS).headers["location"] == "/sign-in"
    assert mine.get("/").headers["location"] == "/sign-in"
    remove_token(idle.database, b.partition(".")[0])
    assert other.get("/").headers["location"] == "/sign-in"


def test_a_cookie_changes_nothing_without_an_origin_of_ours(idle: Service) -> None:
    client = browser_of(idle, add_token(idle.database, "a"))
    body: dict[str, Any] = {"json": {"kind": "model", "model": "torchvision:a"}}
    assert client.post("/v1/jobs", **body).status_code == 401
    assert client.post("/v1/jobs", headers={"Origin": "http://evil.example"}, **body).status_code == 403
    assert client.post("/v1/jobs", headers=OURS, **body).status_code == 201


@pytest.mark.parametrize(("origin", "secure"), [("http://127.0.0.1", False), ("https://127.0.0.1", True)])
def test_the_cookie_is_for_this_site_alone_and_for_no_script(idle: Service, origin: str, secure: bool) -> None:
    token = add_token(idle.database, "a")
    answer = browser_of(idle).post("/sign-in", data={"token": token}, headers={"Origin": origin})
    cookie = answer.headers["set-cookie"].lower()
    assert ("httponly" in cookie, "samesite=strict" in cookie, "secure" in cookie) == (True, True, secure)


def test_where_no_token_is_demanded_an_old_cookie_is_nobodys(idle: Service) -> None:
    client = browser_of(idle)
    client.cookies.set(COOKIE, "of.another")
    assert client.get("/").status_code == 200
    assert client.get("/sign-in").headers["location"] == "/"
