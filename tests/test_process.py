"""What is set for the whole process: no socket waits before it sends, idle threads sleep, numpy has one thread."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest

from pages.ui.process import send_at_once


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


@pytest.mark.parametrize(("chosen", "wanted"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_threads_of_torch_sleep_while_they_wait(chosen: str | None, wanted: str) -> None:
    told = {"OMP_DISPLAY_ENV": "TRUE"} | ({} if chosen is None else {"OMP_WAIT_POLICY": chosen})
    program = "from pages.ui import frame; frame.prepare(); import torch; torch.zeros(1 << 20).exp_()"
    ours = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    said = subprocess.run([sys.executable, "-c", program], env=ours | told, capture_output=True, text=True, check=True)
    assert re.search(rf"OMP_WAIT_POLICY *= *'{wanted}'", said.stderr)
