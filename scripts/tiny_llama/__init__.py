"""The model in the box: its texts, its training, what is measured of it, and its card. `make train` does all four."""
