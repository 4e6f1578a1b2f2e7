"""What a step of the cursor costs the server: a rerun over a real websocket, without a browser's own work.

    python benchmarks/rerun.py [--layer 5]

Starts the app with torch and SmolLM2 loaded and a prompt of 64 tokens, then asks for each step of one layer
by its address and waits until the script has finished.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from llama_core.steps import LAYER_STEPS  # noqa: E402

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = ("The quick brown fox jumps over the lazy dog and then runs away. " * 5)[:300].strip()


def rerun(ws: ClientConnection, at: str) -> tuple[float, int]:
    """Milliseconds and bytes of one rerun that only moves the cursor to `at`."""
    message = BackMsg()
    message.rerun_script.page_name = "Step_by_step"
    message.rerun_script.query_string = urlencode({"at": at, "prompt": PROMPT, "model": MODEL})
    started, size = time.perf_counter(), 0
    ws.send(message.SerializeToString())
    while True:
        data = ws.recv(timeout=60)
        size += len(data)
        answer = ForwardMsg()
        answer.ParseFromString(data)
        if answer.WhichOneof("type") == "script_finished":
            return 1000 * (time.perf_counter() - started), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layer", type=int, default=5)
    layer = parser.parse_args().layer
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}", "--server.headless=true"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(f"http://localhost:{port}/_stcore/health")
        address = f"ws://localhost:{port}/_stcore/stream"
        with connect(address, subprotocols=["streamlit"], max_size=None, origin=f"http://localhost:{port}") as ws:
            steps = [step.key for step in LAYER_STEPS if step.family is None]
            for key in ("q", *steps[:5]):  # loads the model, runs the prompt, warms up
                rerun(ws, f"{layer - 1}.{key}")
            found = {key: rerun(ws, f"{layer}.{key}") for key in steps}
    finally:
        server.terminate()
        server.wait()
    for key, (ms, size) in found.items():
        print(f"  {key:12} {ms:6.0f} ms {size / 1000:6.0f} kB")
    times = [ms for ms, _ in found.values()]
    print(f"median {statistics.median(times):.0f} ms, largest {max(times):.0f} ms")


def wait(health: str) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(health)
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
