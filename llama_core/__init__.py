"""Glass Llama's core: a Llama decoder whose every step can be read. It knows no screen.

    from llama_core import load, run, At, STEPS
    model = load("tiny")
    trace = run(model, [10, 20, 30])
    trace["3.q_rot"], trace.stats

Names are imported when they are first used: `import llama_core` alone does not import torch.
"""

from importlib import import_module

_HOMES = {
    "At": "steps",
    "STEPS": "steps",
    "AXES": "steps",
    "LlamaConfig": "config",
    "PRESETS": "config",
    "GlassLlamaError": "errors",
    "Trace": "trace",
    "KVCache": "kv_cache",
    "load": "checkpoints",
    "run": "runner",
    "Edit": "edits",
    "Watch": "watch",
    "generate": "generation",
    "explain": "explaining",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
