"""A client of the service: it keeps nothing between calls, and says again what was not answered."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from chanas.errors import ConfigError, ServiceError, one_line
from chanas.service import archive

_TIMEOUT_S = 60.0
_WATCH_S = 60.0
"""Seconds without a heartbeat after which a stream is taken for dead."""
_TRIES, _PAUSE_S = 5, 0.5
_WATCH_TRIES = 120
"""Tries to take up a stream: a service that is restarted is waited for, about a minute."""
_NEVER = 599
_MAX_CHARACTERS = 300
_VISIBLE = re.compile(r"[!-~]+")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows nothing: a token is shown to nobody but the service that was named."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


@dataclass(frozen=True)
class ServiceClient:
    """Calls of the service at a URL, with a tenant's token where it demands one."""

    url: str
    token: str | None = field(default=None, repr=False)
    tries: int = _TRIES

    def __post_init__(self) -> None:
        _check_url(self.url)
        if self.token is not None and not _VISIBLE.fullmatch(self.token):
            raise ConfigError("the token has a space or a character that no token has; set CHANAS_TOKEN anew")

    @property
    def _opener(self) -> urllib.request.OpenerDirector:
        """Opens URLs, for this machine without the proxy that the environment names."""
        proxies = [urllib.request.ProxyHandler({})] if _is_here(self.url) else []
        return urllib.request.build_opener(_NoRedirects, *proxies)

    def _told(self, text: str) -> str:
        """A text of the service in one line, without the token that it may have been sent back in."""
        return one_line(text.replace(self.token, "…") if self.token else text, _MAX_CHARACTERS)

    def _open(
        self, method: str, path: str, body: bytes | IO[bytes] | None, headers: Mapping[str, str], timeout_s: float
    ) -> HTTPResponse:
        """
        Raises:
            ServiceError: the service refuses, or is not there.
        """
        request = urllib.request.Request(self.url.rstrip("/") + path, data=body, method=method)
        for name, value in headers.items():
            request.add_header(name, value)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            response: HTTPResponse = self._opener.open(request, timeout=timeout_s)
            return response
        except urllib.error.HTTPError as error:
            with error:
                raise ServiceError(self._told(_reason(error)), error.code) from None
        except (OSError, HTTPException) as error:
            reason = self._told(str(getattr(error, "reason", error)))
            raise ServiceError(f"no service answers at {self.url}: {reason}", _NEVER) from None

    def _call(
        self,
        method: str,
        path: str,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        file: IO[bytes] | None = None,
    ) -> dict[str, Any]:
        """The JSON object of an answer; a service that does not answer is asked again, as every call may be repeated.

        Args:
            data: sent as JSON.
            file: sent as it is, from its beginning with each try.
        """
        given = {"Content-Type": "application/json", **(headers or {})}
        for left in reversed(range(self.tries)):
            body: bytes | IO[bytes] | None = None if data is None else json.dumps(data).encode()
            if file is not None:
                file.seek(0)
                body = file
            try:
                with self._open(method, path, body, given, _TIMEOUT_S) as response:
                    answer = json.load(response)
                if not isinstance(answer, dict):
                    raise ServiceError(f"what answers at {self.url} is no service of chanas")
                return answer
            except ServiceError as error:
                if error.status not in (_NEVER, 503) or not left:
                    raise
            except (OSError, HTTPException, ValueError) as error:
                if not left:
                    raise ServiceError(f"the service's answer was cut off: {self._told(str(error))}", _NEVER) from None
            time.sleep(_PAUSE_S * (self.tries - left))
        raise AssertionError

    def upload(self, path: Path) -> str:
        """Send a file; the hash by which requests name it.

        Raises:
            ConfigError: it cannot be read.
            ServiceError: the service refuses it.
        """
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
                return str(self._call("POST", "/v1/uploads", headers=headers, file=file)["upload"])
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None

    def submit(self, request: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Submit a job; with the same key, the same one."""
        if not _VISIBLE.fullmatch(key):
            raise ConfigError(f"expected a key of letters, digits and signs without spaces, got '{one_line(key)}'")
        return self._call("POST", "/v1/jobs", request, {"Idempotency-Key": key})

    def show(self, job: str) -> dict[str, Any]:
        """A job."""
        return self._call("GET", _path(job))

    def jobs(self, state: str | None = None) -> Iterator[dict[str, Any]]:
        """All jobs, the newest first."""
        given: dict[str, str] = {} if state is None else {"state": state}
        while True:
            page = self._call("GET", f"/v1/jobs?{urlencode(given)}")
            yield from page["jobs"]
            if page["next"] is None:
                return
            given["before"] = str(page["next"])

    def ask_for(self, job: str, what: str) -> dict[str, Any]:
        """Cancel, pause or resume a job."""
        return self._call("POST", f"{_path(job)}/{what}", {})

    def log(self, job: str) -> str:
        """The end of what a job has printed."""
        with self._open("GET", f"{_path(job)}/log", None, {}, _TIMEOUT_S) as response:
            return response.read().decode(errors="replace")

    def watch(self, job: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Events of a job to its end, kind and data; a stream that breaks off is taken up where it was.

        Raises:
            ServiceError: there is no such job, or the service stays away.
        """
        last, left = 0, _WATCH_TRIES
        while True:
            try:
                path, headers = f"{_path(job)}/events", {"Last-Event-ID": str(last)}
                with self._open("GET", path, None, headers, _WATCH_S) as response:
                    if response.status == 204:
                        return
                    for number, kind, data in _events(response):
                        last, left = number or last, _WATCH_TRIES
                        yield kind, data
            except ServiceError as error:
                left -= 1
                if error.status not in (_NEVER, 503) or not left:
                    raise
            except (OSError, HTTPException):
                left -= 1
                if not left:
                    raise ServiceError(f"no service answers at {self.url} any more", _NEVER) from None
            time.sleep(_PAUSE_S)

    def fetch(self, job: str, folder: Path) -> dict[str, Any]:
        """Unpack a job's bundle into a folder, whole or not at all; the job.

        Raises:
            ConfigError: there is something in the folder.
            ServiceError: there is no bundle, or it came in damaged.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} is there already; name another folder")
        found = self.show(job)
        with tempfile.TemporaryFile() as file:
            with self._open("GET", f"{_path(job)}/bundle", None, {}, _TIMEOUT_S) as response:
                shutil.copyfileobj(response, file, 1 << 20)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != found["result"]["bundle"]["sha256"]:
                raise ServiceError("the bundle came in damaged (its hash differs); fetch it again")
            file.seek(0)
            archive.unpack(file, folder)
        return found


def _check_url(url: str) -> None:
    """Raises ConfigError: it is no address of a service; what may be secret in it is not told."""
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and len((parts.hostname or "").encode("idna")) > 0
        is_right &= parts.port != 0 and _VISIBLE.fullmatch(url) is not None
        is_right &= "@" not in parts.netloc and not parts.query and not parts.fragment
    except ValueError:
        is_right = False
    if not is_right:
        shown = one_line(re.split(r"[?#]", url)[0].rpartition("@")[2], _MAX_CHARACTERS)
        raise ConfigError(
            f"expected a URL such as http://127.0.0.1:8765, without user, password or query, got '{shown}'"
        ) from None


def _is_here(url: str) -> bool:
    """True of a URL of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _path(job: str) -> str:
    return f"/v1/jobs/{quote(job, safe='', errors='replace')}"


def _events(lines: HTTPResponse) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    """Number, kind and data of each event."""
    fields: dict[str, str] = {}
    for line in lines:
        text = line.decode().rstrip("\r\n")
        if text:
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            number = int(fields["id"]) if "id" in fields else None
            yield number, fields.get("event", "message"), json.loads(fields["data"])
        fields = {}


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"the service answers {error.code}"
