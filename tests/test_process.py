"""What is set for the whole process: how messages leave, how widgets look, how threads wait."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from streamlit import config
from streamlit.proto.NewSession_pb2 import CustomThemeConfig, NewSession
from streamlit.runtime.scriptrunner import ScriptRunnerEvent as Event
from streamlit.runtime.state import SafeSessionState, SessionState
from streamlit.testing.v1 import AppTest

from pages.ui import process
from pages.ui.process import HOLD, State, Together, look_up_only_what_is_asked, send_at_once, sleep_without_work


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


def test_a_sessions_state_is_what_streamlit_gathers_and_one_key_gathers_nothing(monkeypatch):
    whole = SessionState()
    for key, value in {"a": 1, "b": None, "$$STREAMLIT_INTERNAL_KEY_x": 2}.items():
        whole[key] = value
    session = SafeSessionState(whole, lambda: None)
    ours = State(session)
    assert dict(ours) == {"a": 1, "b": None}
    assert (len(ours), repr(ours)) == (2, repr(whole.filtered_state))
    monkeypatch.setattr(SessionState, "filtered_state", property(lambda _: pytest.fail("gathered")))
    assert ("b" in ours, ours["b"], "c" in ours) == (True, None, False)
    look_up_only_what_is_asked()
    assert isinstance(session.filtered_state, State)


def test_a_widget_whose_state_is_none_shows_none_and_one_whose_state_is_a_value_shows_that():
    def page() -> None:
        import streamlit as st

        from pages.ui.process import look_up_only_what_is_asked

        look_up_only_what_is_asked()
        st.session_state.setdefault("none", None)
        st.session_state.setdefault("two", 2)
        st.number_input("n", key="none")
        st.number_input("m", 0, 9, key="two")
        st.selectbox("s", list("abc"), key="letter")

    app = AppTest.from_function(page).run()
    assert not app.exception
    assert [each.value for each in app.number_input] == [None, 2]
    assert app.selectbox(key="letter").value == "a"
    app.selectbox(key="letter").set_value("c")
    assert app.run().selectbox(key="letter").value == "c"


SECTIONS = ("theme", "theme.light", "theme.dark", "theme.sidebar", "theme.light.sidebar", "theme.dark.sidebar")


def test_the_theme_that_is_kept_is_the_one_that_streamlit_reads_until_the_settings_change(monkeypatch):
    """The file that the app is served with, which this test reads itself: pytest is not started by Streamlit."""
    options = tomllib.loads(Path(".streamlit/config.toml").read_text(encoding="utf-8"))["theme"]
    dark = options["dark"]
    found = {"theme": options, "theme.dark": dark}
    found = {name: {k: v for k, v in part.items() if not isinstance(v, dict)} for name, part in found.items()}
    asked = []

    def section(name: str) -> dict:
        asked.append(name)
        return found.get(name, {"base": None})

    monkeypatch.setattr(config, "get_options_for_section", section)
    monkeypatch.setattr(process, "_themes", {})
    for _ in range(2):
        for name in SECTIONS:
            theirs, ours = NewSession(), NewSession()
            process._read_theme(theirs.custom_theme.dark, name)
            process._theme(ours.custom_theme.dark, name)
            assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    assert len(asked) == 3 * len(SECTIONS)


def test_settings_that_are_read_anew_are_the_theme_from_then_on():
    process.read_the_theme_once()
    process._themes["theme"] = CustomThemeConfig(primary_color="old")
    config._on_config_parsed.send()
    assert process._themes == {}
