"""What a page refuses before it begins: each limit, the setting that holds it, and a sentence with both numbers.

No check costs more than a look at what was asked for. Python's own `load` and `run` know none of these limits.
"""

from __future__ import annotations

from llama_core.config import LlamaConfig
from llama_core.errors import GlassLlamaError
from llama_core.settings import (
    HOLD_MIB,
    MODEL_MIB,
    NEW_TOKENS,
    PROMPT_KIB,
    PROMPT_TOKENS,
    SWEEP_PARTS,
    TRACE_MIB,
    Number,
)
from pages.figures import numbers
from pages.words import t


class LimitError(GlassLlamaError):
    """More was asked for than this server's settings allow."""


def check_text(text: str) -> None:
    """LimitError for a text that would take long to split into tokens; it is counted in bytes of UTF-8."""
    size, limit = len(text.encode(errors="surrogatepass")), PROMPT_KIB.bytes
    if size > limit:
        sizes = {"size": numbers.bytes_(size), "limit": numbers.bytes_(limit)}
        raise LimitError(t("limit.text", **sizes, setting=_said(PROMPT_KIB)))


def check_tokens(count: int, config: LlamaConfig) -> None:
    """LimitError for more tokens than a page runs. Where the model itself takes fewer, it is the run that says so."""
    limit = PROMPT_TOKENS.value
    if limit < min(count, config.max_length + 1):
        exact = {"count": count, "limit": limit, "over": count - limit}
        words = {name: numbers.exact(n) for name, n in exact.items()}
        raise LimitError(t("limit.tokens", **words, setting=_said(PROMPT_TOKENS)))


def check_model(config: LlamaConfig, dtype: str, random: bool = False) -> None:
    """LimitError for a model whose weights take more than the server keeps. random: its sizes are the person's own."""
    needed, limit = config.weight_bytes(dtype), MODEL_MIB.bytes
    if needed <= limit:
        return
    narrow = config.weight_bytes("bfloat16")
    if random:
        advice = t("limit.model.random")
    elif narrow <= limit:
        advice = t("limit.model.narrow", needed=numbers.bytes_(narrow))
    else:
        advice = t("limit.model.smaller")
    sizes = {"needed": numbers.bytes_(needed), "limit": numbers.bytes_(limit)}
    raise LimitError(t("limit.model", **sizes, dtype=dtype, setting=_said(MODEL_MIB), advice=advice))


def check_stored(size: int) -> None:
    """LimitError for weights' files, whose config is not known yet, that alone are larger than the server keeps."""
    limit = MODEL_MIB.bytes
    if size > limit:
        sizes = {"needed": numbers.bytes_(size), "limit": numbers.bytes_(limit)}
        raise LimitError(t("limit.model.stored", **sizes, setting=_said(MODEL_MIB), advice=t("limit.model.smaller")))


def check_trace(config: LlamaConfig, dtype: str, T: int) -> None:
    """LimitError for T tokens whose trace, held as sparingly as can be, takes more than all traces may."""
    from llama_core.rebuild import ALWAYS, held_bytes  # torch is there once a model is

    needed, limit = held_bytes(config, ALWAYS, T, dtype=dtype), TRACE_MIB.bytes
    if needed > limit:
        sizes = {"needed": numbers.bytes_(needed), "limit": numbers.bytes_(limit)}
        fits = numbers.exact(limit * T // needed)  # it grows with T alone
        raise LimitError(t("limit.trace", **sizes, count=numbers.exact(T), fits=fits, setting=_said(TRACE_MIB)))


def check_sweep(parts: int, layers: int) -> None:
    """LimitError for a sweep over more parts than one may have. layers: parts of a sweep over whole layers."""
    limit = SWEEP_PARTS.value
    if parts <= limit:
        return
    advice = t("limit.sweep.layers", layers=numbers.exact(layers)) if layers <= limit else ""
    sizes = {"parts": numbers.exact(parts), "limit": numbers.exact(limit)}
    raise LimitError(t("limit.sweep", **sizes, setting=_said(SWEEP_PARTS), advice=advice).strip())


def new_words() -> str:
    """What a page says of a text that is as long as this server lets a model write."""
    return t("limit.new", limit=numbers.exact(NEW_TOKENS.value), setting=_said(NEW_TOKENS))


def held_words() -> str:
    """What a page says of a trace that does not hold all."""
    tighter = min(HOLD_MIB, TRACE_MIB, key=lambda setting: setting.bytes)
    return t("limit.held", limit=numbers.bytes_(tighter.bytes), setting=_said(tighter))


def _said(setting: Number) -> str:
    """ "GLASS_LLAMA_PROMPT_TOKENS=4096"."""
    return f"{setting.name}={setting.value}"
