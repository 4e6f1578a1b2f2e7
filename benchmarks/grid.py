"""All heads of all layers on one screen: bytes sent, and time to build the picture. SmolLM2's size, 270 maps.

    python benchmarks/grid.py [--tokens 64 256] [--alone]

Ours is built from the survey of a run, as on the Attention page. Beside it BertViz's model view of the same weights,
in an environment of its own where pip can install it; --alone leaves it out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers import PeerError, call, environment
from benchmarks.report import MIB, Target, at_most, number, table, targets
from benchmarks.shapes import SMOLLM2_SIZE

WANTED = {64: 0.3, 256: 0.5}
"""MiB by tokens."""
SECONDS = 0.1
ROUNDS = 9


def weights(T: int, size: dict):
    """A run of random weights, and all its maps. [L Hq T T]."""
    import numpy as np
    import torch

    from llama_core import LlamaConfig, load, run

    model = load(LlamaConfig(**size), seed=0)
    ids = torch.randint(0, model.config.vocab_size, (T,), generator=torch.Generator().manual_seed(0)).tolist()
    trace = run(model, ids, hold=16 << 30)
    return trace, np.stack([trace[f"{layer}.weights"][0] for layer in range(model.config.num_hidden_layers)])


def ours(trace) -> Callable[[], str]:
    """The work of a page that has the survey: the figure and its JSON."""
    import numpy as np
    import plotly.io

    from llama_core.survey import survey
    from pages.figures.head_tiles import head_tiles, header_all, plan_all

    found, config = survey(trace), trace.config
    n, group, layers = config.num_attention_heads, config.group, config.num_hidden_layers
    names = [f"layer {layer}, query head {head}" for layer in range(layers) for head in range(n)]

    def build() -> str:
        maps = np.concatenate([one.maps for one in found.layers])
        hidden = np.repeat([one.hidden for one in found.layers], n, axis=0)
        plan = plan_all(layers, n, group)
        header = header_all(plan, layers, n, group)
        figure = head_tiles(maps, hidden, plan, hovers=names, alt="heads", header=header)
        return plotly.io.to_json(figure, validate=False)

    return build


def bertviz(maps: Path) -> Callable[[], str]:
    """BertViz's model view as the HTML that a browser is sent."""
    import numpy as np
    import torch
    from bertviz import model_view

    attention = [torch.from_numpy(layer)[None] for layer in np.load(maps)]
    tokens = [f"t{i}" for i in range(attention[0].shape[-1])]
    return lambda: model_view(attention, tokens, html_action="return").data


def cost(build: Callable[[], str], rounds: int) -> dict[str, float]:
    """MiB of what is sent, and the median of seconds to build it after once."""
    taken = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        sent = build()
        taken.append(time.perf_counter() - started)
    return {"MiB": len(sent.encode()) / MIB, "s": statistics.median(taken[1:])}


def peer(python: str, maps) -> str:
    """BertViz's cost in words."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/maps.npy", maps)
        found = json.loads(call([python, __file__, "--bertviz", f"{folder}/maps.npy"], "refused").splitlines()[-1])
    return f"{number(found['MiB'])} MiB, {number(found['s'])} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--size", type=json.loads, default=SMOLLM2_SIZE, help="of the model, as in config.json")
    parser.add_argument("--alone", action="store_true", help="without BertViz")
    parser.add_argument("--bertviz", type=Path, metavar="MAPS", help="its cost alone, of maps in a file, as JSON")
    given = parser.parse_args()
    if given.bertviz:
        print(json.dumps(cost(bertviz(given.bertviz), rounds=1)))
        return
    told: list[Target] = []
    every = {}
    for T in given.tokens:
        trace, maps = weights(T, given.size)
        found, what = cost(ours(trace), ROUNDS), f"{maps.shape[0] * maps.shape[1]} maps, T = {T}"
        every[what] = maps, f"{number(found['MiB'])} MiB, {number(found['s'])} s"
        told.append(at_most(f"{what}: sent", found["MiB"], WANTED.get(T, WANTED[256]), "MiB"))
        told.append(at_most(f"{what}: time to build", found["s"], SECONDS, "s"))
    print(targets(told))
    if given.alone:
        return
    try:
        with environment("bertviz") as python:
            rows = [(what, own, peer(python, maps)) for what, (maps, own) in every.items()]
    except PeerError as error:
        rows = [(what, own, str(error)) for what, (_, own) in every.items()]
    print(table(["", "Glass Llama", "BertViz, model view"], rows))


if __name__ == "__main__":
    main()
