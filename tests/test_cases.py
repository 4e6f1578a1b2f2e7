"""Faults that people have met in other software, as small inputs with right answers: what no other file asks."""

from __future__ import annotations

import colorsys
import gc
import json
import re
import weakref
from collections.abc import Iterator
from html.parser import HTMLParser

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from conftest import decoder_of
from hovers import said_at
from rigs import PROMPT, SIZES, byte_tokenizer, reference_rig, save_folder
from test_app import NANO, NASTY, PATHS, bodies, component, done, said, visit
from test_app import go as open_link
from test_page_attention import unpacked
from tokenizers import AddedToken, Tokenizer, decoders, models, processors
from transformers import LlamaConfig, LlamaForCausalLM

import llama_core
from llama_core import generate, load, run
from llama_core.checkpoints.roots import BOX
from llama_core.errors import AddressError, RunError
from llama_core.generation import compare_cached
from llama_core.kv_cache import KVCache
from llama_core.lens import lens, lens_logits
from llama_core.trace import labels
from pages.figures.head_map import head_map
from pages.figures.heatmap import attention_map, pick_layer
from pages.figures.sharing import group_colour
from pages.ui.store import store
from pages.words import t

TWIN = 256  # the id of a token that is spelt as markup


@pytest.fixture
def offered(monkeypatch, tmp_path):
    """Saves a model in a folder that the app offers, and gives its name back."""
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path))

    def save(model, name: str = "rig", tokenizer: Tokenizer | None = None) -> str:
        save_folder(model, tmp_path / name, tokenizer)
        return name

    return save


def figures(app) -> dict[str, go.Figure]:
    """The page's figures by the key they were drawn under."""
    charts = [element.proto for element in app.get("plotly_chart")]
    return {chart.id.split("-")[-1]: go.Figure(json.loads(chart.spec, object_hook=unpacked)) for chart in charts}


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def with_nan() -> LlamaForCausalLM:
    """The rig with one weight that is no number, in the MLP of layer 1."""
    model = reference_rig()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    return model


# --- A6: heads that share a key/value head ---


def hue_of(colour: str) -> float:
    """The hue of "#rrggbb", 0 to 1: that of all its shades."""
    return colorsys.rgb_to_hls(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))[0]


def test_a6_on_the_page_heads_0_to_3_are_drawn_in_one_colour_and_4_to_7_in_another():
    app = visit("sharing", model="random", preset="tiny", heads="8", kv="2")
    groups = re.findall("<svg.*?</svg>", component(app, "sharing.drawing")["html"], re.DOTALL)
    hues = [group_colour(kv, False) for kv in (0, 1)]
    for kv, (group, hue) in enumerate(zip(groups, hues, strict=True)):
        heads = range(4 * kv, 4 * kv + 4)
        assert re.findall(r">([QKV]\d)<", group) == [*(f"Q{head}" for head in heads), f"K{kv}", f"V{kv}"]
        assert set(re.findall('<path [^>]*stroke="(#[0-9a-f]{6})"', group)) == {hue}
        *queries, key, value = (hue_of(fill) for fill in re.findall('<rect [^>]*fill="(#[0-9a-f]{6})"', group))
        assert key == value == hue_of(hue)
        assert queries == pytest.approx([key] * 4, abs=0.03)
    assert abs(hue_of(hues[0]) - hue_of(hues[1])) > 0.1
    (rows,) = [body for body in bodies(app) if 'class="gl-reads"' in body]
    grouped = re.search(f"<th>{re.escape(t('sharing.row.grouped'))}</th>(.*?)</tr>", rows)[1]
    read = re.findall(r"background:(#[0-9a-f]{6});[^>]*>(KV\d)<", grouped)
    assert read == [(hues[head // 4], f"KV{head // 4}") for head in range(8)]


# --- A12: rows whose queries see nothing ---


def test_a12_pad_rows_of_a_batch_are_drawn_as_masked_and_not_as_numbers(ours):
    both = run(ours, [PROMPT, [0, 0, *PROMPT]])
    words = labels(both.rows[0])
    assert both.pads == (2, 0)
    for b, pad in enumerate(both.pads):
        weights = both["1.weights"][b, 0]
        assert weights[pad:].sum(-1) == pytest.approx(np.ones(7 - pad), abs=1e-6)
        assert not weights[:pad].any()
        figure = attention_map(weights, masked=~both.visible(1)[b], query_labels=words, key_labels=words)
        real = np.arange(7) >= pad
        expected = np.tri(7, 7, dtype=bool) & real & real[:, None]
        assert np.array_equal(np.isfinite(np.asarray(figure.data[0].z)), expected)
        assert "masked" in figure.data[-1].hovertemplate


# --- A21: ids without a token ---


def test_a21_an_id_without_a_token_can_win_and_has_a_label_on_every_page_that_names_it(offered):
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(60)}, unk_token="w0"))
    tokenizer.add_tokens([])
    model = reference_rig()
    with torch.no_grad():
        model.lm_head.weight[62] = 50 * model.model(torch.tensor([[1]])).last_hidden_state[0, -1]
    name = offered(model, tokenizer=tokenizer)
    for page in ("next", "write", "home"):
        app = visit(page, model=name, prompt="w1", **({"new": "2"} if page == "write" else {}))
        shown = "".join(element.proto.spec for element in app.get("plotly_chart")) + "".join(bodies(app))
        assert "id 62 (no token)" in shown, page


def test_a21_options_that_would_read_the_same_stay_different_tokens(offered):
    """<0x61> and "a" are two tokens of a SentencePiece vocabulary, and both read "a"."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + ["a"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    model = reference_rig(vocab_size=257)
    with torch.no_grad():
        h = model.model(torch.tensor([[256]])).last_hidden_state[0, -1]
        model.lm_head.weight[[0x61, 256]] = torch.stack((3 * h, 2 * h))
    app = visit("next", model=offered(model, tokenizer=tokenizer), prompt="a")
    box = app.selectbox(key="choice.answer")
    assert len(set(box.options)) == len(box.options)
    assert {"a · 97", "a · 256"} < set(box.options)
    done(box.set_value(97).run())
    assert app.query_params["answer"] in ("97", ["97"])


# --- A23: what is no number ---


@pytest.mark.parametrize("page", ["steps", "attention", "mlp", "stream", "next", "write", "cache"])
def test_a23_a_weight_that_is_no_number_leaves_every_page_standing(offered, page):
    more = {"new": "2"} if page in ("write", "cache") else {}
    app = visit(page, model=offered(with_nan()), ids="5,9,9,3,7", at="1.weights", show="explain")
    if more:
        for _ in range(2):  # the second time the text is there already, as far as it came
            open_link(app, model="rig", ids="5,9,9,3,7", **more)
            assert any("NaN or infinity" in text for text in said(app))


def test_a23_a_choice_that_cannot_be_made_is_refused_again_and_the_cache_is_not_written_twice():
    model = decoder_of(with_nan())
    cache = KVCache(model.config)
    generation = generate(model, PROMPT, max_new_tokens=3, cache=cache)
    for _ in range(3):
        with pytest.raises(RunError, match="NaN or infinity"):
            next(generation)
        assert cache.length == len(PROMPT)


def test_a23_numbers_that_are_none_both_ways_are_the_same_and_one_way_they_are_not(monkeypatch):
    model = decoder_of(with_nan())
    found = compare_cached(model, PROMPT)
    assert (found.kind, found.largest) == ("exact", 0)
    clean = decoder_of(reference_rig())
    whole = compare_cached(clean, PROMPT)
    assert whole.kind == "rounding"
    monkeypatch.setattr(KVCache, "append", _broken(KVCache.append))
    assert compare_cached(clean, PROMPT).kind == "unexplained"
    assert np.isinf(compare_cached(clean, PROMPT).largest)


def _broken(append):
    def broken(self, layer, k, v):
        return append(self, layer, k, v * float("nan") if self.length == 3 else v)

    return broken


# --- C5: grouped heads in views of heads ---


@pytest.mark.parametrize("kv", [1, 2, 4])
def test_c5_each_of_four_maps_says_which_key_head_it_reads_and_key_heads_are_shown_as_many_as_there_are(kv):
    query = NANO | {"kv": str(kv)}
    maps = visit("attention", **query, look="layer", at="0.weights").get("plotly_chart")[0].proto.spec
    names = [f"Q{head} → KV{head * kv // 4}" for head in range(4)]
    assert sorted(set(re.findall(r"Q\d → KV\d", json.dumps(json.loads(maps), ensure_ascii=False)))) == names
    app, panels = visit("steps", **query, at="0.k"), set()
    for head in range(4):
        open_link(app, **query, at="0.k", head=str(head))
        panels.add(re.search(r"KV\d, read by [Q\d ]*\d", figures(app)["map"].layout.meta["alt"])[0])
    group = 4 // kv
    assert panels == {f"KV{i}, read by {' '.join(f'Q{i * group + j}' for j in range(group))}" for i in range(kv)}
    assert run(load("nano"), [1, 2, 3])["0.k"].shape == (1, 3, 1, 4)


# --- C8: labels and positions ---


@pytest.fixture
def with_bos() -> Tokenizer:
    tokenizer = byte_tokenizer(257, ("<s>",))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def test_c8_labels_are_as_many_as_positions_with_bos_and_with_pads(offered, with_bos, tmp_path):
    name = offered(reference_rig(vocab_size=257, bos_token_id=0), tokenizer=with_bos)
    model = load(tmp_path / name)
    alone = run(model, "ab")
    assert labels(alone.tokens) == ["<s>", "a", "b"]
    assert alone.dims["T"] == 3
    both = run(model, ["ab", "abcd"])
    assert [labels(row) for row in both.rows] == [["‹pad›", "‹pad›", "<s>", "a", "b"], ["<s>", "a", "b", "c", "d"]]
    assert {len(row) for row in both.rows} == {both.dims["T"]}
    for b, row in enumerate(both.rows):
        assert labels(both.row(b).tokens) == labels(row)[both.pads[b] :]
        assert both.row(b)["logits"].shape[1] == len(both.row(b).tokens)
    for ask in (
        lambda: both.next_tokens(),
        lambda: both.head("0.weights", 0),
        lambda: both.row(2),
        lambda: both.row(-1),
    ):
        with pytest.raises(AddressError):
            ask()
    app = visit("attention", model=name, prompt="ab")
    assert figures(app)["attention.map"].layout.xaxis.range == (-0.5, 2.5)
    assert [piece for piece, _ in component(app, "token_strip")["pieces"]] == ["<s>", "a", "b"]


# --- C9 and C11: what is blank, what is small, what is at the top ---


def maps_of(weights: np.ndarray) -> Iterator[go.Figure]:
    """Every drawing of one head's weights."""
    T, words = len(weights), [f"w{i}" for i in range(len(weights))]
    future = ~np.tri(T, dtype=bool)
    yield pick_layer(attention_map(weights, masked=future, query_labels=words, key_labels=words))
    for log in (False, True):
        yield head_map(weights, masked=future, queries=words, keys=words, name="n", token=T - 1, log=log)


def test_c9_a_tiny_weight_is_a_number_and_the_future_is_blank_and_says_masked():
    weights = np.array([[1, 0, 0], [1e-9, 1 - 1e-9, 0], [0, 0.25, 0.75]], dtype=np.float32)
    for figure in maps_of(weights):
        heat = figure.data[0]
        assert np.array_equal(np.isfinite(np.asarray(heat.z)), np.tri(3, dtype=bool))
        kept = np.asarray(heat.z if heat.customdata is None else heat.customdata)
        assert kept[1, 0] == np.float32(1e-9)
        assert kept[2, 0] == 0
        assert kept[0, 0] == 1
        said = said_at(figure)
        assert [said[cell] for cell in ((0, 0), (1, 0), (2, 0), (0, 1))] == [
            "1",
            "1e-09",
            "0",
            t("figures.map.masked"),
        ]
        scale = (heat.zmin, heat.zmax) if heat.customdata is None else (0, 1)
        assert scale == (0, 1)


def test_c11_query_0_is_at_the_top_and_the_hover_of_2_and_0_is_the_weight_of_2_and_0():
    weights = run(load("nano", std=0.3), [1, 2, 3])["1.weights"][0, 2]
    for figure in maps_of(weights):
        heat, layout = figure.data[0], figure.layout
        kept = np.asarray(heat.z if heat.customdata is None else heat.customdata)
        assert kept[2, 0] == weights[2, 0]
        assert list(heat.y) == [0, 1, 2]
        assert layout.yaxis.range[0] > layout.yaxis.range[1]
        assert layout.xaxis.range[0] < layout.xaxis.range[1]
        assert (layout.yaxis.title.text, layout.xaxis.title.text) == ("query", "key")
        assert said_at(figure)[2, 0] == f"{weights[2, 0]:.4g}"


# --- C14 and C15: what layers would say, and logits that differ for nothing ---


@pytest.fixture
def four_layers():
    """The rig with four layers and norm weights of 1, where the usual slips favour the same token."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES | {"num_hidden_layers": 4}, attn_implementation="eager")
    return decoder_of(LlamaForCausalLM(config).eval())


def test_c14_the_entropy_after_layer_0_is_that_of_a_norm_of_its_own_taken_once(four_layers):
    trace, head = run(four_layers, PROMPT), four_layers.lm_head.weight.numpy()
    readings = list(lens(trace, four_layers))
    assert len(readings) == 5
    assert np.array_equal(lens_logits(trace, four_layers, 3), trace["logits"][0])

    def scale(x: np.ndarray) -> float:
        return float(1 / np.sqrt(np.mean(x.astype(np.float64) ** 2) + 1e-6))

    stream, last = trace["0.resid_out"][0, -1], trace["3.resid_out"][0, -1]
    entropies = {}
    for name, factor in {"right": scale(stream), "not normed": 1.0, "the final scale": scale(last)}.items():
        shares = softmax(head @ stream * factor)
        entropies[name] = float(-(shares * np.log(shares)).sum())
        assert shares.argmax() == readings[1].ids[-1, 0]
    assert entropies == pytest.approx({"right": 2.863, "not normed": 0.430, "the final scale": 3.811}, abs=5e-4)
    assert readings[1].entropy[-1] == pytest.approx(entropies["right"], abs=1e-5)


def test_c15_one_vector_added_to_every_row_of_the_head_moves_all_logits_of_a_position_alike(ours):
    before = run(ours, PROMPT)
    vector = torch.linspace(-2, 2, 32)
    ours.lm_head.weight += vector
    after = run(ours, PROMPT)
    moved = after["logits"][0] - before["logits"][0]
    expected = before["final_norm"][0] @ vector.numpy()
    assert moved == pytest.approx(np.repeat(expected[:, None], 64, axis=1), abs=2e-5)
    assert np.abs(moved).max() > 5
    assert softmax(after["logits"]) == pytest.approx(softmax(before["logits"]), abs=2e-6)
    for position in range(5):
        old, new = (dict(trace.next_tokens(position)) for trace in (before, after))
        assert new == pytest.approx(old, abs=2e-6)


# --- D6 and D7: what a session keeps ---


@pytest.mark.parametrize("page", ["steps", "edit", "attention"])
def test_d6_runs_that_left_the_store_are_gone_and_a_session_keeps_only_what_was_chosen(monkeypatch, page):
    shelf, query = store().traces, NANO | ({"edit": "0.q zero"} if page == "edit" else {})
    app = visit(page, **query, ids="1,2,3")
    shelf.drop(lambda key: True)
    monkeypatch.setattr(shelf, "limit", 2 * load("nano").config.capture_bytes(3))
    runs = weakref.WeakSet()
    for start in range(2, 10):
        open_link(app, **query, ids=f"{start},2,3")
        runs.update(passes for passes in shelf._things.values())
        assert shelf.nbytes() <= shelf.limit
    store().measures.drop(lambda key: True)
    gc.collect()
    assert len(runs) <= len(shelf._things) + 2, "those in the store, and those on the screen"
    chosen = app.session_state["glass_llama.session"].values
    assert {type(value) for value in chosen.values()} <= {str, int, float, bool, type(None)}


def test_d7_prompt_layer_and_head_survive_another_page_and_both_pages_show_one_run(monkeypatch):
    prompts, real = [], llama_core.run
    monkeypatch.setattr(
        llama_core, "run", lambda model, ids, **how: prompts.append(len(ids)) or real(model, ids, **how)
    )
    store().traces.drop(lambda key: True)
    app = visit("attention", model=BOX)
    app.text_area(key="choice.prompt").set_value("abc")
    done(app.run())
    app.number_input(key="choice.layer").set_value(2)
    done(app.run())
    app.number_input(key="choice.head").set_value(1)
    done(app.run())
    for page in ("rope", "attention"):
        done(app.switch_page(PATHS[page]).run())
        assert app.text_area(key="choice.prompt").value == "abc"
        assert (app.number_input(key="choice.layer").value, app.number_input(key="choice.head").value) == (2, 1)
    assert len(prompts) == 2, "the prompt of the first visit, and abc"


# --- D8: twins on one page ---


@pytest.mark.parametrize("look", ["head", "layer", "all"])
def test_d8_two_heads_with_the_same_weights_are_both_shown(offered, look):
    model = reference_rig()
    with torch.no_grad():
        rows = model.model.layers[0].self_attn.q_proj.weight
        rows[8:16] = rows[:8]
    app = visit("attention", model=offered(model), ids="5,9,9,3,7", at="0.weights", look=look)
    assert said(app) == []
    assert len(figures(app)) == len(app.get("plotly_chart"))


def test_d8_what_is_set_twice_stands_once_and_no_two_buttons_are_the_same():
    app = visit("steps", **NANO, watch="notfinite; q above 100; notfinite; q above 100.0", breaks="weights,0.q,weights")
    for name in ("stop.watch.notfinite", "stop.watch.q above 100", "stop.break.weights"):
        assert len([each for each in app.button if each.key == name]) == 1, name
    app = visit("edit", **NANO, edit="0.q zero; 0.q zero; off 0.q zero")
    assert said(app) == []


# --- what is kept is kept for what it was asked of ---


def test_the_comparison_on_the_cache_page_is_that_of_this_prompt_and_not_of_one_as_long():
    query, model = NANO | {"std": "0.3"}, load("nano", std=0.3)
    app = visit("cache", **query, ids="10,20,30,40")
    open_link(app, **query, ids="1,2,3,4")
    shown = figures(app)["cache.differences"].data[0].y
    assert shown == pytest.approx(compare_cached(model, [1, 2, 3, 4]).differences, abs=1e-8)


# --- D11: text that looks like markup ---


class Tags(HTMLParser):
    """Collects the tags of a piece of HTML, and the text that it reads as."""

    def __init__(self, body: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(body)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), attrs
            assert name not in ("href", "src") or value.startswith("Step_by_step?"), attrs

    def handle_data(self, data):
        self.text += data


PLAIN = (
    "arrow_data_frame.arrow_data.data",
    "bidi_component.json",
    "selectbox.options",
    "selectbox.raw_value",
    "text_area.value",
    "text_area.default",
)
"""Where Streamlit and our own components draw text as it is; everything else may read Markdown."""


def texts_of(proto, path: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a message that is sent to the browser, with the names that lead to it."""
    for field, value in proto.ListFields():
        here = f"{path}.{field.name}"
        for each in value if isinstance(value, (list, tuple)) or hasattr(value, "add") else [value]:
            if isinstance(each, str):
                yield here, each
            elif hasattr(each, "ListFields"):
                yield from texts_of(each, here)
        if not isinstance(value, (str, bytes)) and hasattr(value, "extend") and not hasattr(value, "add"):
            yield from ((here, each) for each in value if isinstance(each, str))


def nodes(node) -> Iterator[object]:
    """The elements and blocks of a page, in their order."""
    yield node
    for child in getattr(node, "children", {}).values():
        yield from nodes(child)


@pytest.fixture
def of_markup(offered) -> dict[str, str]:
    """The query of a model whose name, config, control token, vocabulary and favourite answer are markup."""
    tokenizer = byte_tokenizer(256)
    tokenizer.add_tokens([AddedToken(NASTY, special=False, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<b>*c* $y$ :red[c] alert(1)", special=True)])
    model = reference_rig(vocab_size=258)
    prompt = "a" + NASTY + "<b>*c* $y$ :red[c] alert(1)"
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    assert ids.shape == (1, 3)
    with torch.no_grad():
        model.lm_head.weight[TWIN] = 20 * model.model(ids).last_hidden_state[0, -1]
    model.config.update({"zz" + NASTY: NASTY})
    name = offered(model, "<b>*n* $z$ :red[n] alert(1)", tokenizer)
    return {"model": name, "prompt": prompt}


@pytest.mark.parametrize("page", PATHS)
def test_d11_names_prompts_vocabularies_and_configs_are_shown_letter_for_letter(of_markup, page):
    at = {"steps": "1.weights", "edit": "1.q"}.get(page, "embed")
    more = {"new": "3"} if page in ("write", "cache") else {"edit": "0.q zero t1"} if page == "edit" else {}
    app = visit(page, **of_markup, at=at, show="explain", **more)
    letters = False
    for node in nodes(app._tree):
        proto = getattr(node, "proto", None)
        if not hasattr(proto, "ListFields"):
            continue
        kind = getattr(node, "type", "")
        for path, text in texts_of(proto, kind):
            if "alert" not in text:
                continue
            if kind == "html":
                seen = Tags(text)
                assert not {"script", "img", "i"} & set(seen.tags), path
                assert "<b>B" not in text
                letters = letters or NASTY in seen.text
            elif kind == "plotly_chart":
                spec = json.loads(text) if path.endswith("spec") else {}
                spec.get("layout", {}).pop("meta", None)  # its alt text is an attribute, and plotly does not draw it
                for sign in ("<script", "<img", "<b>B", "<b>*", "$x$", "$y$"):
                    assert sign not in json.dumps(spec), (path, sign)
            elif path not in PLAIN:
                assert "alert(1)" not in text, (path, text)
    assert letters or page in ("sharing",)


@pytest.mark.parametrize("page", ["edit", "write", "cache", "steps"])
def test_d11_a_link_that_cannot_be_is_told_in_its_own_letters(page):
    app = visit(page, **NANO, edit=NASTY, until=NASTY, watch=NASTY, head=NASTY, new=NASTY)
    told = [body for body in bodies(app) if "gl-say" in body and "<style" not in body]
    assert len(told) == 5
    for body in told:
        seen = Tags(body)
        assert seen.tags == ["div"]
        assert NASTY[:50] in seen.text
