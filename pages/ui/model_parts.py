"""What the sidebar says about the loaded model beyond its card, and how another one is opened."""

from __future__ import annotations

from dataclasses import asdict

import streamlit as st

from llama_core.config import LlamaConfig
from pages.figures import numbers
from pages.ui.parts import caption, sentence, table
from pages.ui.session import bind, here_only, session
from pages.ui.store import ModelFacts
from pages.words import t


def about(model: ModelFacts) -> None:
    """Behind a popover: the settings that shape its numbers, what its file had besides, and the pair layout."""
    label = t("about.notes", n=len(model.notes)) if len(model.notes) > 1 else t("about.note") if model.notes else ""
    with st.popover(t("about.title") + label, icon=":material/info:", width="stretch"):
        table((t("about.setting"), ""), settings(model.config))
        for note in model.notes:
            sentence(note)
        if model.kind == "folder":
            st.selectbox(
                t("about.pairs"),
                ("halves", "neighbours"),
                help=t("about.pairs.help"),
                **bind("pairs", model.config.rope_layout),
            )


def settings(config: LlamaConfig) -> list[tuple[str, str]]:
    """The config as a person reads it, by Hugging Face's names; what is off is left out."""
    rows = [
        ("max_position_embeddings", numbers.exact(config.max_position_embeddings)),
        ("vocab_size", numbers.exact(config.vocab_size)),
        ("hidden_size", numbers.exact(config.hidden_size)),
        ("intermediate_size", numbers.exact(config.intermediate_size)),
        ("head_dim", numbers.exact(config.head_dim)),
        ("hidden_act", config.hidden_act),
        ("rms_norm_eps", f"{config.rms_norm_eps:g}"),
        ("rope_theta", f"{config.rope_theta:,.15g}"),
        (t("about.pairs"), config.rope_layout),
    ]
    if config.rope_scaling is not None:
        rows.append(("rope_scaling", config.rope_scaling.kind))
        rows += [(f"  {k}", f"{v:g}") for k, v in asdict(config.rope_scaling).items() if v is not None]
    if config.sliding_window is not None:
        whole = set(config.full_layers) & set(range(config.num_hidden_layers))
        where = t("about.window.some", n=len(whole)) if whole else ""
        rows.append(("sliding_window", numbers.exact(config.sliding_window) + where))
    for name in ("tie_word_embeddings", "attention_bias", "mlp_bias", "qk_norm"):
        if getattr(config, name):
            rows.append((name, t("about.yes")))
    return rows


def open_other() -> None:
    """A field for a path inside the allowed folders or a hub id."""
    with st.popover("", icon=":material/folder_open:", help=t("other.help"), width=46):
        st.text_input(t("other.title"), key="other.model", placeholder="org/name", on_change=here_only(_open_other))
        caption(t("other.folders"))


def _open_other() -> None:
    text = st.session_state["other.model"].strip()
    if text:
        session().try_model(text)
