"""A service from its data folder: the parts put together, and served until a signal ends it."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from chanas.core.usage import HERE, Usage
from chanas.errors import ChanasError, ConfigError
from chanas.service.folder import DataFolder, hold
from chanas.service.runner import DEFAULT_NUM_JOBS, Runner
from chanas.service.store.database import Database
from chanas.service.store.jobs import JobStore
from chanas.service.store.tokens import has_tokens
from chanas.service.store.uploads import MIB, Uploads
from chanas.service.tuning import open_tunings
from chanas.service.work import Work
from chanas.workflows.jobs.plan import DevicePlan

if TYPE_CHECKING:
    from chanas.service.api.service import Service

DEFAULT_DATA = Path("service")
DEFAULT_PORT = 8765
DEFAULT_MAX_UPLOAD_MIB = 512
_STOP_S = 2
_BACKLOG = 2048
_ACCEPTED_AT_ONCE = 64
"""Connections that asyncio accepts before any of them can be ended: it takes the length of the queue for that."""
_PACKAGES = ("fastapi", "uvicorn", "jinja2")

OpenWork = Callable[[Usage, DataFolder], AbstractContextManager[Work]]


@dataclass(frozen=True)
class Settings:
    """Settings of a service.

    usage     the kind of the devices, and threads of an inference
    devices   which they are; without any, this machine's
    max_jobs  that run at once; each is a process with a compiler and a framework in it
    """

    data: Path = DEFAULT_DATA
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    usage: Usage = HERE
    devices: tuple[DevicePlan, ...] = ()
    max_upload_mib: int = DEFAULT_MAX_UPLOAD_MIB
    max_jobs: int = DEFAULT_NUM_JOBS

    @property
    def is_local(self) -> bool:
        """True where it listens on this machine alone."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def check_packages(find: Callable[[str], object] = importlib.util.find_spec) -> None:
    """
    Raises:
        ConfigError: a package is missing that the service alone needs.
    """
    missing = [name for name in _PACKAGES if find(name) is None]
    if missing:
        raise ConfigError(f"the service needs {', '.join(missing)}: pip install 'chanas[service]'")


def open_database(data: Path, *, must_exist: bool = False) -> Database:
    """The database of a data folder, which nobody else may read.

    Raises:
        ConfigError: there is none, and it must exist.
        ChanasError: it cannot be opened.
    """
    if must_exist and not DataFolder(data).database.is_file():
        raise ConfigError(f"there is no data of a service in {data}; `chanas serve token add TENANT` makes it")
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ChanasError(f"the data folder {data} cannot be made: {error.strerror or error}") from error
    return Database(DataFolder(data).database)


@contextlib.contextmanager
def open_service(
    settings: Settings,
    open_work: OpenWork | None = None,
    failed: Callable[[str], None] = lambda _error: None,
) -> Iterator[Service]:
    """A service whose jobs run, until the end of the body.

    Raises:
        ConfigError: it would listen beyond this machine without demanding tokens.
        RunBusyError: another service works in the folder.
        ChanasError: the device or the folder cannot be used.
    """
    from chanas.service.api.service import Service

    folder = DataFolder(settings.data)
    without_tokens = ConfigError(
        f"beyond this machine ({settings.host}) tokens are needed; make one with `chanas serve token add TENANT --data "
        f"{settings.data}`"
    )
    if not settings.is_local and not folder.database.is_file():
        raise without_tokens
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(contextlib.closing(open_database(settings.data)))
        busy = f"another service works in {settings.data}; end it, or name another --data"
        stack.enter_context(hold(folder.root / "service.lock", 0.0, busy))
        if not settings.is_local and not has_tokens(database):
            raise without_tokens
        work = stack.enter_context(
            (open_work or partial(open_tunings, devices=settings.devices))(settings.usage, folder)
        )
        store = JobStore(database)
        runner = Runner(database, store, work, settings.max_jobs, failed)
        runner.start()
        stack.callback(runner.stop)
        uploads = Uploads(database, folder.uploads, settings.max_upload_mib * MIB)
        yield Service(database, store, uploads, runner, settings.is_local)


def listen(settings: Settings) -> socket.socket:
    """A socket that listens where the settings say.

    Raises:
        ConfigError: the address is taken, or none of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
        # asyncio does this only for sockets that name their protocol; without it the body of an answer waits some 40 ms
        # for the client to acknowledge the head.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, UnicodeError) as error:  # UnicodeError: a host with an empty or overlong part
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {settings.host}, port {settings.port}: {reason}; name another --host or --port"
        ) from error


def serve(
    settings: Settings, open_work: OpenWork | None = None, tell: Callable[[str], None] = lambda _line: None
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        tell: gets a line when it listens.

    Raises:
        ConfigError, RunBusyError, ChanasError: as `open_service` says; the address is taken; or the scheduler failed.
    """
    check_packages()
    import uvicorn

    from chanas.service.api.app import create_app
    from chanas.service.api.connections import Connection, keep_logs_small
    from chanas.service.page.site import add_page

    faults: list[str] = []

    def fail(error: str) -> None:
        faults.append(error)
        server.should_exit = True

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.hub.end()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            listening.listen(_BACKLOG)

    keep_logs_small()
    with open_service(settings, open_work, fail) as service:
        app = add_page(create_app(service))
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=Connection,
            ws="none",
            backlog=_ACCEPTED_AT_ONCE,
            timeout_graceful_shutdown=_STOP_S,
        )
        server = Server(config)
        listening = listen(settings)
        port = listening.getsockname()[1]
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        tell(f"serving http://{shown}:{port} (pid {os.getpid()}), data in {settings.data}")
        # uvicorn raises the signal that has ended it once more: jobs end before the process does.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            server.run(sockets=[listening])
        finally:
            listening.close()
    if faults:
        raise ChanasError(faults[0])
