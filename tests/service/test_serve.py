"""chanas/service/serve.py: what it listens with."""

from __future__ import annotations

import contextlib
import socket

from chanas.service.serve import Settings, listen


def test_answers_are_sent_without_waiting_for_acknowledgements() -> None:
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(listen(Settings(port=0)))
        stack.enter_context(socket.create_connection(listening.getsockname()))
        accepted = stack.enter_context(listening.accept()[0])
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
