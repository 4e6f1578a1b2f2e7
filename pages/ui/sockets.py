"""Small messages leave at once.

The server hands its own listening socket to uvicorn, and its connections keep what they were made with: the kernel
holds a small message back until the one before was acknowledged, which the other end puts off for 40 ms
(https://github.com/Kludex/uvicorn/issues/3149). A page is a hundred small messages.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import cache


@cache
def send_at_once() -> None:
    """Take Nagle's algorithm off every TCP socket of this process; what a listening one accepts later has it off too.

    Nothing is done where the system does not list a process's open files.
    """
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:  # OSError: it is no socket
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
