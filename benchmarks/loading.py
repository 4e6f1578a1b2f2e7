"""What loading a model costs in memory: the peak of anonymous memory over an empty process, and the time.

    python benchmarks/loading.py [--layers 16] [--random]

Anonymous memory is what a process really takes: pages of a mapped file are the system's and do not count. A fresh
process imports torch and says so; from then on this one reads RssAnon of it every millisecond, until the model is
loaded. The bound is 1.3 times the model's own bytes plus 200 MiB.
"""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import MIB, at_most, number, table, targets
from llama_core.checkpoints import models_root
from llama_core.config import LlamaConfig

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

# Imports first, then a line; a line on stdin is the order to load; then a line with what was loaded.
CHILD = """
import json, sys
import llama_core.model, llama_core.runner
from llama_core import load
print("ready", flush=True)
sys.stdin.readline()
model = load(sys.argv[1], dtype=sys.argv[2])
print(json.dumps({"bytes": model.nbytes()}), flush=True)
sys.stdin.readline()
"""


def measure(source: str | Path, dtype: str = "float32") -> dict[str, float]:
    """Bytes of the model, peak and final anonymous bytes over the empty process, seconds. Linux only."""
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(source), dtype],
        cwd=root,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout.readline() == "ready\n", "the child could not import the app"
        empty = peak = anonymous(child.pid)
        tell(child)
        begun = time.perf_counter()
        while not select.select([child.stdout], [], [], 0.001)[0]:
            peak = max(peak, anonymous(child.pid))
        seconds, loaded = time.perf_counter() - begun, anonymous(child.pid)
        answer = json.loads(child.stdout.readline() or "{}")
        tell(child)
    return answer | {"peak": max(peak, loaded) - empty, "loaded": loaded - empty, "seconds": seconds}


def tell(child: subprocess.Popen) -> None:
    child.stdin.write("\n")
    child.stdin.flush()


def anonymous(pid: int) -> int:
    """Bytes of anonymous memory that a process holds now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon")), 0)


def write_folder(folder: Path, layers: int, shards: int) -> Path:
    """A model in bfloat16 with random weights, 62 MiB and 22 MiB a layer, in so many shards and an index."""
    import torch
    from safetensors.torch import save_file

    config = LlamaConfig(32000, 1024, 2816, layers, 16, 4, tie_word_embeddings=True)
    shapes = config.parameter_shapes()
    names = list(shapes)
    index, generator = {}, torch.Generator().manual_seed(0)
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        own = {name: torch.empty(shapes[name], dtype=torch.bfloat16) for name in names[shard::shards]}
        for tensor in own.values():
            tensor.normal_(0, 0.02, generator=generator)
        save_file(own, folder / file)
        index |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), encoding="utf-8")
    sizes = {name: value for name, value in config.to_dict().items() if type(value) is int}
    raw = sizes | {"model_type": "llama", "dtype": "bfloat16", "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16, help="of the folder with random weights")
    parser.add_argument("--random", action="store_true", help="that folder alone, without SmolLM2")
    given, found = parser.parse_args(), {}
    with tempfile.TemporaryDirectory() as place:
        folder = write_folder(Path(place), given.layers, shards=4)
        sources = {"SmolLM2, GGUF Q4_1": models_root() / SMOLLM2, "bfloat16 folder, 4 shards": folder}
        for name, source in list(sources.items())[given.random :]:
            for dtype in ("float32", "bfloat16"):
                if source.exists():
                    found[f"{name}, as {dtype}"] = measure(source, dtype)
    print(
        targets(
            at_most(f"{what}: peak while loading", one["peak"] / MIB, 1.3 * one["bytes"] / MIB + 200, "MiB")
            for what, one in found.items()
        )
    )
    rows = ([what, number(one["bytes"] / MIB), number(one["seconds"])] for what, one in found.items())
    print(table(["loading", "model, MiB", "s"], rows))


if __name__ == "__main__":
    main()
