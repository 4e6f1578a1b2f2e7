"""What the figures promise, on arrays small enough to check by eye."""

import json
import re
import time
import tomllib
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import plotly.graph_objects as go
import pytest
from hovers import said_at
from numpy.testing import assert_array_equal

from llama_core import steps
from pages.figures import heatmap, histogram, next_token, numbers, pooling, stream, tensor_map, theme
from pages.words import t

ROOT = Path(__file__).parent.parent
CAT = ["the", "cat", "saw", "the", "cat"]
MARKUP = '<b>B</b> <a href="javascript:alert(1)">x</a> &amp; $x$ %{y}'


def causal(size, seed=0):
    """Scores, their causal softmax, and the mask (True where a query may not look)."""
    scores = np.random.default_rng(seed).normal(size=(size, size)).astype(np.float32)
    masked = np.triu(np.ones((size, size), dtype=bool), 1)
    raised = np.where(masked, 0, np.exp(scores))
    return scores, (raised / raised.sum(1, keepdims=True)).astype(np.float32), masked


def attention(size=5, labels=None, **more):
    _, weights, masked = causal(size)
    labels = labels or [f"t{i}" for i in range(size)]
    return heatmap.attention_map(weights, masked=masked, query_labels=labels, key_labels=labels, **more)


def small_map(values, **more):
    given = {"rows": None, "row_axis": "token", "col_axis": "dimension"} | more
    return heatmap.value_map(np.asarray(values, dtype=np.float32), **given)


# numbers


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (0.0123456, "0.0123"),
        (-0.0004, "-4.00e-4"),
        (0.001, "0.00100"),
        (1.234e-9, "1.23e-9"),
        (-1e-12, "-1.00e-12"),
        (0.9999, "1.00"),
        (-1.5, "-1.50"),
        (99.96, "100"),
        (946.2, "946"),
        (12345, "12300"),
        (99999, "1.00e5"),
        (3.4e38, "3.40e38"),
        (float("nan"), "NaN"),
        (float("inf"), "∞"),
        (float("-inf"), "-∞"),
        (None, "n/a"),
        (np.float32(0.5), "0.500"),
    ],
)
def test_short_gives_three_significant_digits(x, text):
    assert numbers.short(x) == text


def test_short_never_turns_a_number_into_zero_and_never_writes_minus_zero():
    for exponent in range(-44, 38):
        for sign in (1, -1):
            text = numbers.short(sign * 1.239 * 10.0**exponent)
            assert float(text) != 0
            assert float(text) == pytest.approx(sign * 1.239 * 10.0**exponent, rel=5e-3)


@pytest.mark.parametrize(
    ("x", "text"), [(1.5, "+1.50"), (-0.25, "-0.250"), (0, "0"), (float("nan"), "NaN"), (None, "n/a")]
)
def test_signed_shows_the_sign_of_a_difference(x, text):
    assert numbers.signed(x) == text


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (1, "1.0"), (0.984, "0.98"), (0.996, "1.0"), (0.007, "0.01"), (1e-9, "1e-9"), (-0.004, "-4e-3"),
        (-12.4, "-12"), (9.96, "10"), (946, "946"), (12345, "1e4"), (0, "0"), (-0.0, "0"), (float("nan"), "NaN"),
    ],
)  # fmt: skip
def test_a_number_inside_a_cell_is_short(x, text):
    assert numbers.cell(x) == text
    assert len(text) <= 5


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0 k"), (12_345, "12.3 k"), (999_960, "1.0 M"), (134_515_008, "134.5 M"),
     (1_235_814_400, "1.2 B"), (-1500, "-1.5 k")],
)  # fmt: skip
def test_counts_read_as_a_person_says_them(n, text):
    assert numbers.count(n) == text


def test_an_exact_count_keeps_every_digit():
    assert numbers.exact(134_515_008) == "134,515,008"


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (812, "812 B"), (1500, "1.5 kB"), (54_000_000, "54 MB"), (999_999, "1.0 MB"), (3.7e9, "3.7 GB")],
)
def test_bytes(n, text):
    assert numbers.bytes_(n) == text


@pytest.mark.parametrize(
    ("s", "text"),
    [(0, "0 ms"), (1e-6, "< 0.1 ms"), (4e-4, "0.4 ms"), (0.272, "272 ms"), (0.9996, "1.0 s"), (1.5, "1.5 s"),
     (59.97, "1 min 0 s"), (125, "2 min 5 s"), (3840, "1 h 4 min")],
)  # fmt: skip
def test_duration(s, text):
    assert numbers.duration(s) == text


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.412, "41.2 %"), (1, "100.0 %"), (0, "0.0 %"), (0.0003, "0.03 %"), (1e-9, "< 0.01 %"), (0.00996, "1.0 %")],
)
def test_percent(p, text):
    assert numbers.percent(p) == text


def test_shapes_are_written_with_dots():
    assert numbers.shape((1, 5, 9, 64)) == "1·5·9·64"
    assert numbers.shape(()) == "scalar"


# texts and colours


def test_text_of_a_token_cannot_act_in_plotly():
    text = theme.plain(MARKUP)
    assert not set("<>$%") & set(text)
    assert "&amp;amp;" in text
    assert theme.plain('it\'s "so"') == 'it\'s "so"'  # plotly knows no &quot;: it would be shown as such


def test_invisible_and_reordering_characters_are_shown():
    assert theme.plain("a\nb\tc") == "a↵b⇥c"
    assert theme.plain("a\u202eb\u200b\x00") == "a\\u202eb\\u200b\\u0000"
    assert theme.plain("東 1/3 ·é") == "東 1/3 ·é"


def test_a_text_is_cut_before_it_is_escaped():
    assert theme.plain("<<<<<<", 3) == "&lt;&lt;…"


def test_every_kind_of_step_has_a_colour_and_no_other():
    assert set(theme.KIND_COLOURS) == {step.kind for step in steps.STEPS}


def test_kinds_stay_apart_for_colour_blind_eyes():
    for dark in (False, True):
        colours = {kind: theme.kind_colour(kind, dark) for kind in theme.KIND_COLOURS}
        for name, matrix in BLINDNESS.items():
            seen = {kind: lab(np.clip(matrix @ linear(c), 0, 1)) for kind, c in colours.items()}
            for a in seen:
                for b in seen:
                    if a < b:
                        assert np.linalg.norm(seen[a] - seen[b]) > 12, (name, dark, a, b)


BLINDNESS = {  # Machado, Oliveira and Fernandes 2009, severity 1, on linear light
    "none": np.eye(3),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(light):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ light / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("dark", [False, True])
def test_zero_has_the_colour_of_the_page(dark):
    page = theme.tone(theme.BACKGROUND, dark)
    assert theme.diverging(dark)[3] == [0.5, page]
    assert theme.sequential(dark)[0] == [0.0, page]


def test_the_charts_and_the_pages_have_one_set_of_colours():
    config = tomllib.loads((ROOT / ".streamlit/config.toml").read_text())["theme"]
    for i, side in enumerate(("light", "dark")):
        assert config[side]["backgroundColor"] == theme.BACKGROUND[i]
        assert config[side]["secondaryBackgroundColor"] == theme.SURFACE[i]
        assert config[side]["textColor"] == theme.TEXT[i]
        assert config[side]["primaryColor"] == theme.ACCENT[i]


def test_the_style_sheet_holds_no_angle_brackets():
    assert not set("<>") & set((ROOT / "assets/app.css").read_text())  # st.html would drop all of it


# maps


def test_repeated_tokens_keep_their_own_rows_and_columns():
    fig = attention(labels=CAT)
    heat = fig.data[0]
    assert np.asarray(heat.z).shape == (5, 5)
    assert_array_equal(heat.x, range(5))
    assert_array_equal(heat.y, range(5))
    for axis in (fig.layout.xaxis, fig.layout.yaxis, fig.layout.xaxis2, fig.layout.yaxis2):
        assert_array_equal(axis.tickvals, range(5))
    assert [text.split()[0] for text in fig.layout.yaxis.ticktext] == CAT
    assert len(set(fig.layout.yaxis.ticktext)) == 5
    assert fig.layout.yaxis2.ticktext[3] == "3 · the"  # what the hover says


def test_query_0_is_at_the_top_and_the_axes_are_named():
    _, weights, _ = causal(3)
    fig = attention(3)
    assert fig.layout.yaxis.range == (2.5, -0.5)
    assert fig.layout.yaxis2.range == (2.5, -0.5)
    assert fig.layout.xaxis.range == (-0.5, 2.5)
    assert (fig.layout.xaxis.title.text, fig.layout.yaxis.title.text) == ("key", "query")
    assert fig.data[0].z[2, 0] == weights[2, 0]
    assert "%{z" in fig.data[0].hovertemplate


def test_masked_cells_are_blank_and_the_legend_runs_from_0_to_1():
    _, weights, masked = causal(4)
    weights[3, 1] = 1e-9
    fig = heatmap.attention_map(weights, masked=masked, query_labels=CAT[:4], key_labels=CAT[:4])
    heat = fig.data[0]
    assert_array_equal(np.isnan(heat.z), masked)
    assert (heat.zmin, heat.zmax) == (0, 1)
    assert heat.z[3, 1] == np.float32(1e-9)
    assert heat.z[0, 0] == 1
    assert heat.hoverongaps is False
    ground = next(layer for layer in fig.data if layer.name == "masked")
    assert "masked" in ground.hovertemplate
    assert not masked[np.tril_indices(4)].any()


def test_the_legend_of_weights_runs_to_1_even_where_no_weight_does():
    even = np.full((2, 2), 0.5, dtype=np.float32)
    heat = heatmap.attention_map(even, masked=None, query_labels=["a", "a"], key_labels=["a", "a"]).data[0]
    assert (heat.zmin, heat.zmax, heat.colorbar.ticktext) == (0, 1, ("0", "1"))


def test_hidden_scores_are_not_drawn_as_huge_numbers():
    scores, _, masked = causal(4)
    hidden = np.where(masked, np.float32(-np.inf), scores)
    fig = heatmap.attention_map(hidden, masked=masked, query_labels=CAT[:4], key_labels=CAT[:4], kind="masked")
    assert fig.data[0].zmax == np.abs(scores[~masked]).max()
    assert fig.data[0].zmin == -fig.data[0].zmax
    assert fig.layout.meta["flagged"] == 0


def test_masked_zero_and_nan_are_three_different_things():
    values = np.array([[0.0, np.nan, 2.0], [np.inf, 1.0, -np.inf]])
    masked = np.array([[False, False, True], [False, False, False]])
    fig = small_map(values, masked=masked)
    heat = fig.data[0]
    assert_array_equal(np.isnan(heat.z), [[False, True, True], [True, False, True]])
    layers = {layer.name: ~np.isnan(layer.z.astype(float)) for layer in fig.data[1:]}
    assert_array_equal(layers["NaN"], [[False, True, False], [False, False, False]])
    assert_array_equal(layers["∞"], [[False, False, False], [True, False, False]])
    assert_array_equal(layers["-∞"], [[False, False, False], [False, False, True]])
    assert layers["masked"].shape == (2, 1)
    assert fig.layout.meta["flagged"] == 3
    assert fig.layout.meta["masked"] == 1


def test_one_huge_value_does_not_drown_the_rest():
    values = np.random.default_rng(0).normal(size=(5, 576)).astype(np.float32) * 2
    values[0, 3] = -946
    fig = small_map(values, rows=CAT)
    heat, meta = fig.data[0], fig.layout.meta
    assert heat.zmin == -heat.zmax
    assert 4 < heat.zmax < 10
    assert meta["limit"] == heat.zmax
    assert meta["clipped"] == np.count_nonzero(np.abs(values) > heat.zmax)
    assert meta["largest"] == 946
    assert heat.colorbar.ticktext[0].startswith("≤ -")
    assert any("946" in note for note in heatmap.notes(fig))


def test_a_few_larger_values_are_not_clipped():
    fig = small_map([[1.0, -2.0, 3.0]])
    assert (fig.data[0].zmin, fig.data[0].zmax) == (-3, 3)
    assert fig.layout.meta["clipped"] == 0
    assert heatmap.notes(fig) == []


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (3, 4)])
def test_zeros_one_row_and_one_column_are_maps_too(shape):
    fig = small_map(np.zeros(shape))
    assert fig.data[0].zmax == 1
    assert np.asarray(fig.data[0].z).shape == shape
    assert "-0" not in fig.layout.meta["alt"]


def test_nothing_and_all_nan_are_said():
    assert small_map(np.zeros((0, 5))).layout.meta["alt"]
    assert small_map(np.full((2, 2), np.nan)).layout.meta["flagged"] == 4


def test_a_map_refuses_the_wrong_number_of_labels():
    with pytest.raises(ValueError, match="5 labels for 4 rows"):
        small_map(np.zeros((4, 2)), rows=CAT)
    with pytest.raises(ValueError, match="mask"):
        small_map(np.zeros((4, 2)), masked=np.zeros((2, 4), dtype=bool))


def test_the_values_handed_in_are_left_as_they_were():
    values = np.array([[1.0, np.nan]], dtype=np.float32)
    values.flags.writeable = False
    fig = small_map(values, masked=np.array([[True, False]]))
    assert_array_equal(values, [[1.0, np.nan]])
    assert np.isnan(fig.data[0].z).all()


def test_a_map_says_which_key_head_a_query_head_reads():
    fig = attention(q_head=2, kv_head=1)
    assert fig.layout.annotations[0].text == "Q2 → KV1"
    assert "Q2 → KV1" in fig.layout.meta["alt"]


def test_no_text_of_a_token_reaches_plotly_unescaped():
    fig = heatmap.pick_layer(attention(3, labels=[MARKUP] * 3))
    fig.layout.meta = None  # the alt text is for the page, which escapes it itself
    sent = fig.to_json()
    assert "alert" in sent
    assert "javascript" not in sent.replace('&lt;a href=\\"javascript', "")
    assert "$" not in sent
    assert "%{y} " not in sent


def test_positions_count_from_where_the_queries_start():
    weights = np.full((1, 4), 0.25, dtype=np.float32)
    fig = heatmap.attention_map(weights, masked=None, query_labels=["x"], key_labels=list("abcx"), query_start=3)
    assert_array_equal(fig.data[0].y, [3])
    assert fig.layout.yaxis2.ticktext == ("3 · x",)


def test_two_thousand_row_labels_do_not_overlap():
    fig = small_map(np.ones((2000, 4)), rows=[f"t{i}" for i in range(2000)])
    places = np.array(fig.layout.yaxis.tickvals)
    pixels = fig.layout.height - 100
    assert np.diff(places).min() * pixels / 2000 >= 14
    assert fig.layout.yaxis.ticktext[1] == "t100 100"


# pooling


def test_pooling_keeps_the_largest_size_with_its_sign():
    values = np.zeros((6, 9), dtype=np.float32)
    values[0, 0], values[1, 1] = 3, -7
    values[5, 8] = 2
    pooled, rows, cols = pooling.pool(values, limit=3)
    assert pooled.dtype == np.float32
    assert_array_equal(pooled, [[-7, 0, 0], [0, 0, 0], [0, 0, 2]])
    assert rows.tolist() == [[0, 2], [2, 4], [4, 6]]
    assert cols[-1].tolist() == [6, 9]


def test_every_block_of_a_pooled_map_is_its_largest_value():
    values = np.random.default_rng(1).normal(size=(103, 58)).astype(np.float32)
    masked = np.random.default_rng(2).random((103, 58)) < 0.6
    masked[:60, :40] = True
    pooled, rows, cols = pooling.pool(values, limit=20, masked=masked)
    assert len(rows) <= 20
    assert pooled.size <= 400
    for i, (a, b) in enumerate(rows):
        for j, (c, d) in enumerate(cols):
            seen = values[a:b, c:d][~masked[a:b, c:d]]
            if seen.size:
                assert pooled[i, j] == seen[np.abs(seen).argmax()]
            else:
                assert np.isnan(pooled[i, j])


def test_pooling_keeps_nan_apart_from_masked():
    values = np.ones((8, 8), dtype=np.float32)
    values[0, 0] = np.nan
    values[0, 5] = np.inf
    masked = np.zeros((8, 8), dtype=bool)
    masked[4:, 4:] = True
    values[7, 7] = np.nan  # masked: nobody may see it
    fig = small_map(values, masked=masked, limit=2)
    layers = {layer.name: ~np.isnan(layer.z.astype(float)) for layer in fig.data[1:]}
    assert layers["NaN"][0, 0]
    assert layers["NaN"].sum() == 1
    assert layers["∞"].any()
    assert np.isnan(fig.data[0].z[-1, -1])


def test_a_pooled_map_says_so_and_its_hover_gives_ranges():
    values = np.arange(40, dtype=np.float32).reshape(10, 4) - 100
    fig = small_map(values, rows=[f"t{i}" for i in range(10)], limit=5)
    assert fig.layout.meta["pooled"]
    assert fig.layout.meta["pool"] == [2, 1]
    assert fig.layout.yaxis2.ticktext[1] == "2–3 · t2 … t3"
    assert "2 × 1" in heatmap.notes(fig)[0]
    assert np.nanmin(fig.data[0].z) == -100
    assert_array_equal(fig.data[0].y, [-0.5, 1.5, 3.5, 5.5, 7.5, 9.5])


def test_a_hidden_layer_of_576_keeps_a_column_for_each_dimension():
    assert not small_map(np.ones((5, 576))).layout.meta["pooled"]
    assert small_map(np.ones((512, 576))).layout.meta["pooled"]


@pytest.mark.parametrize("shape", [(2048, 2048), (2048, 49152), (1, 49152), (5, 1536), (513, 513)])
def test_no_map_sends_more_than_512_squared_cells(shape):
    pooled, _, _ = pooling.pool(np.broadcast_to(np.float32(1), shape))
    assert pooled.size <= 512 * 512


def test_a_map_of_2048_squared_is_small_on_the_wire_and_quick():
    scores, _, masked = causal(2048)
    labels = [f"token {i}" for i in range(2048)]
    start = time.perf_counter()
    fig = heatmap.attention_map(scores, masked=masked, query_labels=labels, key_labels=labels, kind="masked")
    sent = fig.to_json()
    assert time.perf_counter() - start < 5
    assert len(sent) < 2e6  # 1.87 MB measured; the array alone is 1.4
    assert json.loads(sent)["data"][0]["z"]["dtype"] == "f4"
    assert np.nanmax(fig.data[0].z) == scores[~masked].max()


# picking


def test_every_cell_of_a_small_map_can_be_picked():
    fig = heatmap.pick_layer(attention(5, labels=CAT))
    said = said_at(fig)
    assert said.keys() == {(r, c) for r in range(5) for c in range(5)}
    assert float(said[2, 0]) == pytest.approx(fig.data[0].z[2, 0], rel=1e-3)
    assert said[0, 3] == "masked"
    assert {layer.marker.opacity for layer in fig.data if layer.type == "scatter"} == {0}


def test_a_point_over_a_mark_says_what_the_mark_means():
    values = np.array([[1.0, np.nan], [np.inf, -np.inf]], dtype=np.float32)
    masked = np.array([[False, False], [False, True]])
    drawn = heatmap.value_map(values, rows=None, row_axis="r", col_axis="c", masked=masked)
    assert said_at(heatmap.pick_layer(drawn)) == {(0, 0): "1", (0, 1): "NaN", (1, 0): "∞", (1, 1): "masked"}


def test_a_large_map_offers_a_box_instead():
    fig = heatmap.pick_layer(attention(65))
    assert fig.layout.dragmode == "select"
    assert all(layer.type == "heatmap" for layer in fig.data)


def test_the_chosen_cell_is_outlined():
    outline = attention(5, chosen=(3, 1)).layout.shapes[-1]
    assert (outline.x0, outline.x1, outline.y0, outline.y1) == (0.5, 1.5, 2.5, 3.5)


# histogram


def test_the_bars_of_a_histogram_count_every_value():
    values = np.random.default_rng(0).normal(size=12_345).astype(np.float32)
    values[7] = 946
    fig = histogram.histogram(values, kind="residual")
    assert sum(fig.data[0].y) == values.size
    assert fig.layout.meta["above"] >= 1
    assert fig.layout.meta["high"] == 946
    assert any("946" in note for note in histogram.notes(fig))
    assert max(fig.data[0].x) < 10  # the bulk is still readable
    assert len(fig.to_json()) < 20_000


def test_counts_equal_numpys():
    values = np.random.default_rng(0).uniform(-1, 1, size=5000).astype(np.float32)
    edges = np.linspace(-0.5, 0.75, 11)
    counts, below, above = histogram.count(values, edges)
    assert_array_equal(counts, np.histogram(values, edges)[0])
    assert below == np.count_nonzero(values < -0.5)
    assert above == np.count_nonzero(values > 0.75)


def test_no_bar_mixes_signs():
    fig = histogram.histogram(np.array([-1.0, -0.3, 0.2, 2.0], dtype=np.float32), kind="query", bins=7)
    bar = fig.data[0]
    left, right = np.array(bar.x) - np.array(bar.width) / 2, np.array(bar.x) + np.array(bar.width) / 2
    assert not ((left < -1e-6) & (right > 1e-6)).any()
    assert sum(bar.y) == 4


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-20, 1e30])
def test_a_constant_tensor_is_one_bar(value):
    fig = histogram.histogram(np.full(9, value, dtype=np.float32), kind="norm")
    assert max(fig.data[0].y) == 9
    assert sum(fig.data[0].y) == 9


def test_mostly_zeros_still_count_in_full():
    values = np.zeros(10_000, dtype=np.float32)
    values[:3] = [1, 2, -5]
    fig = histogram.histogram(values, kind="mlp")
    assert sum(fig.data[0].y) == 10_000


def test_an_empty_histogram_is_a_sentence_and_nan_is_left_out_and_said():
    assert histogram.histogram(np.array([], dtype=np.float32), kind="mlp").layout.meta["alt"]
    fig = histogram.histogram(np.array([1, 2, np.nan, np.inf], dtype=np.float32), kind="mlp")
    assert fig.layout.meta["dropped"] == 2
    assert sum(fig.data[0].y) == 2


def test_the_other_step_is_an_outline_over_the_same_bins():
    a, b = (np.random.default_rng(i).normal(size=n).astype(np.float32) for i, n in ((0, 4000), (1, 400)))
    fig = histogram.histogram(a, kind="query", other=b, name="q_rot", other_name="q")
    assert fig.data[0].marker.color == theme.kind_colour("query", False)
    assert fig.data[1].type == "scatter"
    assert float(np.sum(fig.data[1].y)) / 2 == pytest.approx(4000, rel=0.02)


# next tokens


def test_next_tokens_are_sorted_and_equal_texts_keep_their_own_bars():
    rows = bars_of(next_token.next_tokens(["a", "·b", "a", "<i>"], np.array([0.1, 0.5, 0.3, 0.05]), top=3))
    assert rows == [("·b", "100.00", "50.0 %"), ("a", "60.00", "30.0 %"), ("a", "20.00", "10.0 %")]


def test_of_a_next_token_no_text_acts():
    said = next_token.next_tokens([MARKUP], np.array([1.0]))
    page = ElementTree.fromstring(said)
    assert {element.tag for element in page.iter()} == {"ol", "li", "bdi", "div", "span"}
    assert page.find("li/bdi").text == MARKUP
    assert page.find("li").get("title") == f"{MARKUP}: 1"
    assert bars_of(next_token.next_tokens(["a\u202eb\n"], [0.5])) == [("a\\u202eb↵", "100.00", "50.0 %")]


def test_no_next_token_is_a_sentence_and_labels_that_are_missing_are_said():
    assert t("figures.next.none") in next_token.next_tokens([], [])
    with pytest.raises(ValueError, match="one label each"):
        next_token.next_tokens(["a"], [0.5, 0.5])


def bars_of(said: str) -> list[tuple[str, str, str]]:
    """Each bar: its text, its length in percent of the longest, its number."""
    rows = ElementTree.fromstring(said).findall("li")
    widths = [re.search(r"width:([0-9.]+)%", row.find("div/span").get("style"))[1] for row in rows]
    return [(row.find("bdi").text, width, row.find("div/span").tail) for row, width in zip(rows, widths, strict=True)]


# the map of a step

DIMS = {"B": 1, "T": 5, "S": 5, "D": 12, "Hq": 9, "Hkv": 3, "Dh": 4, "R": 2, "F": 8, "V": 20}


def tensor(step, seed=0, **dims):
    """Values for all axes of a step, no two alike."""
    sizes = DIMS | dims
    return np.random.default_rng(seed).normal(size=[sizes[axis] for axis in step.axes]).astype(np.float32)


def step_map(step, values=None, labels=CAT, past=0, visible=None, **more):
    dims = DIMS | {"T": len(labels), "S": past + len(labels)}
    values = tensor(step, T=dims["T"], S=dims["S"]) if values is None else values
    return tensor_map.tensor_map(step, values, labels=labels, dims=dims, visible=visible, **more)


def lower(queries, keys):
    """Which keys a query may see, when the queries are the last positions."""
    return np.tril(np.ones((queries, keys), dtype=bool), keys - queries)


@pytest.mark.parametrize("head", [0, 4, 8])
def test_a_query_head_is_its_own_slice(head):
    values = tensor(steps.Q_ROT)
    fig = step_map(steps.Q_ROT, values, head=head)
    assert_array_equal(fig.data[0].z, values[0, :, head])
    assert fig.layout.annotations[0].text == f"Q{head} → KV{head // 3}"


@pytest.mark.parametrize("head", [3, 4, 5])
def test_a_key_head_is_the_slice_that_the_query_head_reads(head):
    values = tensor(steps.V)
    fig = step_map(steps.V, values, head=head)
    assert_array_equal(fig.data[0].z, values[0, :, 1])
    assert fig.layout.annotations[0].text == "KV1, read by Q3 Q4 Q5"


def test_a_step_without_heads_is_shown_whole():
    values = tensor(steps.RESID_MID)
    fig = step_map(steps.RESID_MID, values, head=7)
    assert_array_equal(fig.data[0].z, values[0])
    assert not fig.layout.annotations
    assert not tensor_map.has_heads(steps.RESID_MID)
    assert tensor_map.has_heads(steps.K)
    assert tensor_map.has_heads(steps.WEIGHTS)


def test_a_map_of_a_step_names_both_axes_and_counts_tokens_down():
    fig = step_map(steps.GATE)
    assert (fig.layout.yaxis.title.text, fig.layout.xaxis.title.text) == ("token", steps.AXES["F"])
    assert fig.layout.yaxis.range == (4.5, -0.5)
    for axis in (fig.layout.yaxis, fig.layout.yaxis2):
        assert_array_equal(axis.tickvals, range(5))
    assert fig.layout.yaxis2.ticktext[3] == "3 · the"
    assert_array_equal(fig.data[0].x, range(8))


def test_shared_keys_have_a_row_for_every_position_of_the_past_too():
    values = tensor(steps.K_SHARED, T=2, S=5)
    fig = step_map(steps.K_SHARED, values, labels=["saw", "the"], past=3, head=4)
    assert_array_equal(fig.data[0].z, values[0, :, 4])
    assert fig.layout.yaxis2.ticktext == ("0", "1", "2", "3 · saw", "4 · the")
    assert fig.layout.annotations[0].text == "Q4 → KV1"


@pytest.mark.parametrize("step", [steps.SCORES, steps.WEIGHTS])
def test_an_attention_step_is_a_map_of_one_head_with_the_future_blank(step):
    values = np.abs(tensor(step))
    fig = step_map(step, values, head=4, visible=lower(5, 5), cell=(3, 1))
    seen = lower(5, 5)
    assert_array_equal(np.isnan(fig.data[0].z), ~seen)
    assert_array_equal(fig.data[0].z[seen], values[0, 4][seen])
    assert (fig.data[0].zmin == 0) == (step is steps.WEIGHTS)
    assert fig.layout.meta["masked"] == 10
    assert fig.layout.annotations[0].text == "Q4 → KV1"
    assert (fig.layout.shapes[-1].x0, fig.layout.shapes[-1].y0) == (0.5, 2.5)


def test_queries_after_a_past_stand_at_their_own_positions():
    fig = step_map(steps.WEIGHTS, labels=["saw", "the"], past=3, visible=lower(2, 5))
    assert_array_equal(fig.data[0].y, [3, 4])
    assert_array_equal(fig.data[0].x, range(5))
    assert_array_equal(np.isnan(fig.data[0].z), [[False] * 4 + [True], [False] * 5])
    assert fig.layout.yaxis2.ticktext == ("3 · saw", "4 · the")


@pytest.mark.parametrize("step", [steps.WEIGHTS, steps.RESID_MID])
def test_a_difference_has_a_sign_even_where_the_step_has_none(step):
    values = tensor(step) / 10
    fig = step_map(step, values, head=2, difference=True, visible=lower(5, 5) if step.causal else None)
    assert fig.data[0].zmin == -fig.data[0].zmax
    assert fig.layout.meta["signed"]
    if step.causal:
        assert_array_equal(np.isnan(fig.data[0].z), ~lower(5, 5))
        assert_array_equal(fig.data[0].z[2, :3], values[0, 2, 2, :3])
        assert fig.layout.xaxis.title.text == "key"


# the residual stream


def test_the_stream_is_two_lines_over_the_layers_on_a_log_axis():
    fig = stream.stream_size(np.array([1, 2, 300], dtype=np.float32), [2, 4, 900])
    everyone, first = fig.data
    assert_array_equal(everyone.x, [0, 1, 2])
    assert_array_equal(everyone.y, [1, 2, 300])
    assert_array_equal(first.y, [2, 4, 900])
    assert (everyone.name, first.name) == ("all tokens", "first token")
    assert fig.layout.yaxis.type == "log"
    assert fig.layout.showlegend
    assert everyone.line.color != first.line.color
    assert "3 layers, from 1.00 to 300" in fig.layout.meta["alt"]


def test_many_layers_are_a_line_without_dots():
    assert stream.stream_size([1.0] * 39, [1.0] * 39).data[0].mode == "lines+markers"
    assert stream.stream_size([1.0] * 40, [1.0] * 40).data[0].mode == "lines"


# every figure


def every_figure(dark):
    """One of each kind, with every option that adds a property."""
    odd, hidden = np.array([[0, np.nan, 2], [np.inf, 1, -np.inf]]), np.array([[False, False, True], [False] * 3])
    spread = np.append(np.random.default_rng(0).normal(size=5000), [946, -800])
    return {
        "attention": attention(dark=dark, q_head=2, kv_head=1, chosen=(3, 1), height=333),
        "cells to pick": heatmap.pick_layer(attention(dark=dark, height=333)),
        "a box to pick": heatmap.pick_layer(attention(65, dark=dark, height=333)),
        "pooled": attention(130, limit=40, dark=dark, height=333),
        "values": small_map(np.ones((3, 3)), signed=False, colour="#c94f00", unit="ms", dark=dark, height=333),
        "marked cells": small_map(odd, rows=["a", "b"], masked=hidden, dark=dark, height=333),
        "marked blocks": small_map(np.tile(odd, (9, 9)), limit=9, dark=dark, height=333),
        "nothing": small_map(np.ones((0, 3)), dark=dark, height=333),
        "histogram": histogram.histogram(spread, kind="key", dark=dark, height=333),
        "two histograms": histogram.histogram(
            spread, other=spread[:99], kind="key", name="a", other_name="b", dark=dark, height=333
        ),
        "no histogram": histogram.histogram(np.array([]), kind="key", dark=dark, height=333),
        "stream": stream.stream_size([1.0, 2.0], [3.0, 4.0], dark=dark, height=333),
    }


@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_has_a_height_an_alt_text_and_clear_paper(dark):
    for fig in every_figure(dark).values():
        assert fig.layout.height == 333
        assert len(fig.layout.meta["alt"]) > 10
        assert fig.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"


@pytest.mark.parametrize("dark", [False, True])
def test_plotly_finds_nothing_to_object_to(dark):
    for kind, fig in every_figure(dark).items():
        checked = go.Figure(fig.to_dict())  # every property's name and value, the template's too
        assert checked.to_dict() == fig.to_dict(), kind
        assert json.loads(checked.to_json()) == json.loads(fig.to_json()), kind


def test_a_misspelt_property_is_found():
    for data, layout in (
        ([{"type": "bar", "widht": 1}], {}),
        ([], {"xaxis2": {"tickvalues": [1]}}),
        ([], {"hight": 1}),
    ):
        with pytest.raises(ValueError, match="Invalid property"):
            go.Figure(theme.figure(data, layout, False).to_dict())


def test_the_step_maps_are_figures_that_plotly_accepts():
    for step in (steps.Q, steps.K, steps.K_SHARED, steps.WEIGHTS, steps.LOGITS):
        sent = step_map(step, visible=lower(5, 5) if step.causal else None).to_dict()
        assert go.Figure(sent).to_dict() == sent


def test_a_figure_keeps_copies_of_what_it_was_made_from():
    places, layout = np.arange(3), {"margin": {"l": 1}}
    fig = theme.figure([{"type": "bar", "x": places}], layout, False)
    fig.layout.margin.l = 5
    fig.layout.template.layout.font.size = 99
    fig.layout.template.layout.xaxis.tickfont.size = 99
    assert fig.layout.template.layout.yaxis.tickfont.size == 11
    assert not np.shares_memory(fig.data[0].x, places)
    assert layout == {"margin": {"l": 1}}
    assert theme.template(False)["layout"]["font"]["size"] == 12


def test_arrays_are_sent_packed():
    for fig, key in ((attention(), "z"), (histogram.histogram(np.arange(9.0), kind="key"), "y")):
        assert set(json.loads(fig.to_json())["data"][0][key]) >= {"dtype", "bdata"}


@pytest.mark.parametrize(("most", "kind"), [(255, "u1"), (256, "u2"), (70_000, "u4")])
def test_whole_numbers_are_sent_as_small_as_they_are(most, kind):
    places = np.array([0, most], dtype=np.int32)
    sent = theme.figure([{"type": "scatter", "x": places, "y": -places}], {}, False).to_dict()["data"][0]
    assert sent["x"]["dtype"] == kind
    assert np.array_equal(np.frombuffer(b64decode(sent["x"]["bdata"]), kind), places)
    assert sent["y"]["dtype"].startswith("i")
