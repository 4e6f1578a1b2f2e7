"""What is set once for the whole server: messages leave at once, threads without work sleep, numpy computes on one."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import cache

from threadpoolctl import threadpool_limits


@cache
def prepare() -> None:
    """Called by every page; the first call of the process does it."""
    sleep_without_work()
    send_at_once()
    one_thread_for_numpy()


def sleep_without_work() -> None:
    """Torch's threads sleep while they wait for the next part of an operation, unless the person has set otherwise.

    OpenMP reads this when torch is loaded, later than the first page. Without it GNU's lets them turn for 15 ms after
    each part, on the core that the browser and the other thread need: a page that takes 31 ms of a core took 85, and
    the thread that it waits for another 45. A whole pass takes as long with it as without.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def send_at_once() -> None:
    """Take Nagle's algorithm off every TCP socket of this process; what a listening one accepts later has it off too.

    The server hands its own listening socket to uvicorn, and with it this is left on: the kernel holds a small message
    back until the one before was acknowledged, which the other end puts off for 40 ms
    (https://github.com/Kludex/uvicorn/issues/3149). A page is a hundred small messages. Nothing is done where the
    system does not list a process's open files.
    """
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:  # OSError: it is no socket
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def one_thread_for_numpy() -> None:
    """The products that pages ask of numpy are small: on two threads one waits for the other, which a browser keeps
    off its core. The model's own are torch's, which this leaves as they are."""
    threadpool_limits(limits=1, user_api="blas")
