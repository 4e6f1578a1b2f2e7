"""The server's small messages leave at once: no socket waits for the other end to say that it got the last one."""

from __future__ import annotations

import socket

from pages.ui.sockets import send_at_once


def waits(found: socket.socket) -> bool:
    return not found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_connections_that_are_there_and_those_to_come_send_at_once_and_files_are_left_alone(tmp_path):
    with socket.create_server(("localhost", 0)) as listening, (tmp_path / "file").open("w") as file:
        with socket.create_connection(listening.getsockname()) as before, listening.accept()[0] as there:
            assert waits(before)
            assert waits(there)
            send_at_once.__wrapped__()
            assert not waits(before)
            assert not waits(there)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as later:
            assert not waits(later)
        file.write("still open")
    assert (tmp_path / "file").read_text() == "still open"
