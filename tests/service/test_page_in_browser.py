"""The page in a real browser, as wide as a desk's and as a phone's: what is clicked happens, and nothing is refused by
the page's own policy."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from chanas.service.api.app import create_app
from chanas.service.api.service import Service
from chanas.service.folder import DataFolder
from chanas.service.mock import MockWork
from chanas.service.page.site import add_page
from chanas.service.runner import Runner
from chanas.service.store.database import Database
from chanas.service.store.jobs import JobStore
from chanas.service.store.tokens import add_token
from chanas.service.store.uploads import Uploads

from .browsing import Browser, missing, open_browser
from .conftest import MAX_BYTES

WIDTHS = (1200, 360)
ROUND_S = 0.4


@contextlib.contextmanager
def served(service: Service) -> Iterator[str]:
    """The URL of a service, until the end of the body."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(add_page(create_app(service)), log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture
def slow(folder: DataFolder, database: Database, store: JobStore) -> Iterator[Service]:
    """A service whose jobs take some seconds."""
    runner = Runner(database, store, MockWork(folder, ROUND_S / 4, num_rounds=12))
    runner.start()
    yield Service(database, store, Uploads(database, folder.uploads, MAX_BYTES), runner)
    runner.stop()


@pytest.fixture(params=WIDTHS)
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Browser]:
    if (what := missing()) is not None:
        pytest.skip(f"there is no browser to drive on this machine (looked for {what})")
    with open_browser(request.param, tmp_path / "profile") as opened:
        yield opened


def stages_of(browser: Browser) -> int:
    return sum(map(int, re.findall(r"\d+", browser.text("#progress"))))


@pytest.mark.browser
def test_a_file_is_sent_and_its_job_followed_paused_and_resumed_to_its_end(
    browser: Browser, slow: Service, tmp_path: Path
) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"network")
    with served(slow) as url:
        browser.open(url)
        browser.click("summary")
        assert browser.overflow == 0
        browser.type("[type=file]", str(file))
        browser.type("[name=latency_ms]", "1000")
        browser.click("form[data-upload] button")
        browser.wait(lambda: "running" in browser.text(".state"))
        browser.run("window.isSame = true")
        browser.wait(lambda: stages_of(browser) > 0)
        first = stages_of(browser)
        browser.wait(lambda: stages_of(browser) > first)
        browser.wait(lambda: browser.run("return window.isSame"))  # the page followed; it was not loaded again
        browser.click("form[action$=pause] button")
        browser.wait(lambda: "paused" in browser.text(".state"))
        browser.click("form[action$=resume] button")
        browser.wait(lambda: "complete" in browser.text(".state"))
        assert "as demanded" in browser.text("dl")
        assert browser.run("return document.querySelector('[download]') !== null")
        assert (browser.overflow, browser.log()) == (0, [])


@pytest.mark.browser
def test_every_page_fits_the_window_and_breaks_no_rule_of_its_own(browser: Browser, slow: Service) -> None:
    with served(slow) as url:
        for name in ("a" * 60, "b"):
            browser.open(url)
            browser.click("summary")
            browser.type("[name=model]", name)
            browser.click("form[data-upload] button")
            browser.wait(lambda: "/jobs/" in browser.run("return location.href"))
        job = browser.run("return location.pathname")
        for place in ("/", job, "/devices", "/devices?minutes=1440", "/jobs/none"):
            browser.open(url + place)
            assert (place, browser.overflow) == (place, 0)
            assert [line for line in browser.log() if "404" not in line] == []


@pytest.mark.browser
def test_one_signs_in_with_a_token_that_scripts_cannot_read_and_out_again(browser: Browser, idle: Service) -> None:
    token = add_token(idle.database, "team")
    with served(idle) as url:
        browser.open(url)
        browser.type("[name=token]", token)
        browser.click("main button")
        browser.wait(lambda: browser.text("h1") == "Jobs")
        assert browser.run("return document.cookie") == ""
        browser.click("header button")
        browser.wait(lambda: browser.text("h1") == "Sign in")
        browser.open(url)
        assert browser.text("h1") == "Sign in"
        assert (browser.overflow, browser.log()) == (0, [])
