"""What a step of the cursor costs the server: a rerun over a real websocket, without a browser's own work.

    python benchmarks/rerun.py [--layer 5]

Starts the app with torch and SmolLM2 loaded and a prompt of 64 tokens, then asks for each step of one layer
by its address and waits until the script has finished.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from wire import Tab, serving  # noqa: E402

from llama_core.steps import LAYER_STEPS  # noqa: E402

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = ("The quick brown fox jumps over the lazy dog and then runs away. " * 5)[:300].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layer", type=int, default=5)
    layer = parser.parse_args().layer
    steps = [step.key for step in LAYER_STEPS if step.family is None]
    with serving() as server, Tab(server) as tab:

        def at(address: str):
            return tab.ask("Step_by_step", {"at": address, "prompt": PROMPT, "model": MODEL})

        for key in ("q", *steps[:5]):  # loads the model, runs the prompt, warms up
            at(f"{layer - 1}.{key}")
        found = {key: at(f"{layer}.{key}") for key in steps}
    for key, answer in found.items():
        print(f"  {key:12} {answer.ms:6.0f} ms {answer.size / 1000:6.0f} kB")
    times = [answer.ms for answer in found.values()]
    print(f"median {statistics.median(times):.0f} ms, largest {max(times):.0f} ms")


if __name__ == "__main__":
    main()
