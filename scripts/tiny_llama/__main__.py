"""make train: the model in the box, trained, measured and described again."""

from __future__ import annotations

import argparse
from pathlib import Path

from .card import NAME, write_card
from .train import train

OUT = Path(__file__).parents[2] / "assets" / NAME

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m scripts.tiny_llama", description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="the folder to write, assets/tiny-llama by default")
    parser.add_argument("--share", type=float, default=1.0, help="a share of the training steps, for a trial")
    parser.add_argument("--card", action="store_true", help="train nothing: only measure again and write the card")
    asked = parser.parse_args()
    if not asked.card:
        train(asked.out, asked.share)
    write_card(asked.out)
