"""What is set for the whole process: no socket waits before it sends, idle threads sleep, numpy has one thread."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

from streamlit.runtime.scriptrunner import ScriptRunnerEvent as Event

from pages.ui.process import HOLD, Together, send_at_once, sleep_without_work


def waits(found: socket.socket) -> bool:
    return not found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_connections_that_are_there_and_those_to_come_send_at_once_and_files_are_left_alone(tmp_path):
    with socket.create_server(("localhost", 0)) as listening, (tmp_path / "file").open("w") as file:
        with socket.create_connection(listening.getsockname()) as before, listening.accept()[0] as there:
            assert waits(before)
            assert waits(there)
            send_at_once()
            assert not waits(before)
            assert not waits(there)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as later:
            assert not waits(later)
        file.write("still open")
    assert (tmp_path / "file").read_text() == "still open"


def test_numpy_computes_on_one_thread_and_torch_on_as_many_as_before():
    code = """
import numpy, torch
from threadpoolctl import threadpool_info
before = torch.get_num_threads()
from pages.ui.process import one_thread_for_numpy
one_thread_for_numpy()
blas = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
print(blas, torch.get_num_threads() == before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(" ") == ["[1]", "True\n"]


def test_the_threads_of_torch_sleep_while_they_wait():
    program = "from pages.ui import frame; frame.prepare(); import torch; torch.zeros(1 << 20).exp_()"
    ours = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    told = ours | {"OMP_DISPLAY_ENV": "TRUE"}
    said = subprocess.run([sys.executable, "-c", program], env=told, capture_output=True, text=True, check=True)
    assert re.search(r"OMP_WAIT_POLICY *= *'PASSIVE'", said.stderr)


def test_how_threads_wait_is_left_as_the_person_has_set_it(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    sleep_without_work()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


class Loop:
    """An event loop by hand: what is to be called soon, and what later."""

    def __init__(self) -> None:
        self.soon: list = []
        self.later: list[tuple[float, object]] = []
        self.handled: list[str] = []

    def tell(self, together: Together, name: str, event: Event) -> None:
        together.add(lambda: self.handled.append(name), event, self.soon.append, self._later)

    def _later(self, seconds: float, call) -> None:
        self.later.append((seconds, call))

    def turn(self) -> None:
        ready, self.soon = self.soon, []
        for call in ready:
            call()


def test_messages_wait_for_the_end_of_the_script_and_keep_their_order():
    loop, together = Loop(), Together()
    for name, event in (("start", Event.SCRIPT_STARTED), ("a", Event.ENQUEUE_FORWARD_MSG)):
        loop.tell(together, name, event)
    loop.turn()
    assert loop.handled == []
    loop.tell(together, "b", Event.ENQUEUE_FORWARD_MSG)
    loop.tell(together, "end", Event.SCRIPT_STOPPED_WITH_SUCCESS)
    assert len(loop.soon) == 1
    loop.turn()
    assert loop.handled == ["start", "a", "b", "end"]


def test_messages_of_a_long_script_wait_no_longer_than_a_moment():
    loop, together = Loop(), Together()
    for name in "abc":
        loop.tell(together, name, Event.ENQUEUE_FORWARD_MSG)
    assert len(loop.soon) == 1  # the loop is woken once for all of them
    loop.turn()
    ((seconds, call),) = loop.later
    assert seconds == HOLD
    call()
    assert loop.handled == ["a", "b", "c"]
    loop.tell(together, "d", Event.ENQUEUE_FORWARD_MSG)
    loop.turn()
    loop.later[-1][1]()
    assert loop.handled == ["a", "b", "c", "d"]
