"""chanas/service/client.py: who is shown a token, what is said again, and what is refused before anything is sent."""

from __future__ import annotations

import contextlib
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chanas.commands.process import main
from chanas.commands.service.client import _parse_shape
from chanas.errors import ConfigError, ServiceError
from chanas.service.client import ServiceClient

TOKEN = "1234.not-to-be-seen"

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """The URL of a server, and path and token of each request that it got."""
    seen: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            seen.append((self.path, self.headers["Authorization"]))
            answer(self)

        do_GET = do_POST = _serve  # noqa: N815

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
        server.shutdown()
        thread.join()


def tell(status: int, data: object, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        body = json.dumps(data).encode()
        handler.rfile.read(int(handler.headers["Content-Length"] or 0))
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_a_proxy_sees_nothing_of_what_is_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(tell(200, {"id": "a"})) as (url, served), answering(tell(200, {"id": "b"})) as (proxy, proxied):
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy)
        assert ServiceClient(url, TOKEN, tries=1).show("a") == {"id": "a"}
        assert served == [("/v1/jobs/a", f"Bearer {TOKEN}")]
        assert proxied == []


def test_no_redirect_is_followed() -> None:
    with answering(tell(200, {})) as (other, seen), answering(tell(302, {}, Location=other)) as (url, _):
        with pytest.raises(ServiceError, match="302"):
            ServiceClient(url, TOKEN, tries=1).show("a")
        assert seen == []


def test_a_token_is_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TOKEN not in repr(ServiceClient("http://127.0.0.1:1", TOKEN))
    with answering(tell(400, {"error": f"no such token:\nBearer {TOKEN}"})) as (url, _):
        with pytest.raises(ServiceError) as refused:
            ServiceClient(url, TOKEN, tries=1).show("a")
        assert TOKEN not in str(refused.value)
        assert "\n" not in str(refused.value)
    for token in (f"{TOKEN}\n", f"{TOKEN} ", f"{TOKEN}\r\nX: y", f"{TOKEN}é"):
        monkeypatch.setenv("CHANAS_TOKEN", token)
        with pytest.raises(ConfigError) as wrong:
            main(["--debug", "service", "list"])
        assert TOKEN not in "".join(traceback.format_exception(wrong.value))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1",
        "127.0.0.1:8765",
        "http://",
        "http://a..b:1",
        f"http://{'a' * 64}.b",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:x",
        "http://[::1",
        "http://a b/",
        "http://a\nb/",
        f"http://{TOKEN}@127.0.0.1:1",
        f"http://user:{TOKEN}@127.0.0.1:1",
        f"http://127.0.0.1:1/?token={TOKEN}",
        f"http://127.0.0.1:1/#{TOKEN}",
    ],
)
def test_what_is_no_address_of_a_service(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ServiceClient(url)
    assert TOKEN not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_upload_that_is_cut_off_is_sent_again_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chanas.service.client._PAUSE_S", 0.0)
    got: list[bytes] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        got.append(handler.rfile.read(int(handler.headers["Content-Length"])))
        if len(got) > 1:
            handler.headers.replace_header("Content-Length", "0")
            tell(201, {"upload": "hash"})(handler)

    (tmp_path / "net.onnx").write_bytes(b"content")
    with answering(answer) as (url, _):
        assert ServiceClient(url).upload(tmp_path / "net.onnx") == "hash"
    assert got == [b"content", b"content"]


def test_what_is_no_service() -> None:
    with answering(tell(200, ["no", "service"])) as (url, _), pytest.raises(ServiceError, match="no service"):
        ServiceClient(url, tries=1).show("a")


def test_names_of_jobs_stay_names() -> None:
    with answering(tell(404, {"error": "none"})) as (url, seen):
        for job in ("../uploads", "a b", "\udcff", "a\nb"):
            with pytest.raises(ServiceError, match="none"):
                ServiceClient(url, tries=1).show(job)
    assert all(path.count("/") == 3 for path, _ in seen)


@pytest.mark.parametrize("key", ["a\nb", "é", " ", ""])
def test_a_key_that_is_no_header(key: str) -> None:
    with pytest.raises(ConfigError):
        ServiceClient("http://127.0.0.1:1", tries=1).submit({}, key)


@pytest.mark.parametrize("model", ["torchvision:a", "timm:a.b"])
def test_a_network_of_a_library_is_named_and_not_sent(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    got: list[bytes] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        got.append(handler.rfile.read(int(handler.headers["Content-Length"])))
        handler.headers.replace_header("Content-Length", "0")
        tell(201, {"id": "a"})(handler)

    with answering(answer) as (url, seen), pytest.raises(SystemExit, match="0"):
        main(["service", "submit", "model", "--model", model, "--url", url])
    assert [path for path, _ in seen] == ["/v1/jobs"]
    assert json.loads(got[0])["model"] == model
    assert capfd.readouterr().out == "a\n"


@pytest.mark.parametrize("shape", ["x=0,3", "x=1,-1", "x=", "=1", "x", "x=1,a"])
def test_a_shape_that_is_none(shape: str) -> None:
    with pytest.raises(ConfigError, match="shape"):
        _parse_shape(shape)
