"""GGUF files: the same numbers as the folder they were made from, and a sentence for what we do not compute."""

import io
import json
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Stored
from gguf_rigs import packed, rope_factors, unpacked, write, write_gguf
from rigs import FAMILIES, PROMPT, SIZES, byte_tokenizer, family_rig, gguf_order, more_rig, reference_rig, save_folder
from transformers import LlamaConfig as TransformersConfig
from transformers import LlamaForCausalLM

from llama_core import load, run
from llama_core.checkpoints import gguf_file
from llama_core.checkpoints.folder import folder_checkpoint
from llama_core.checkpoints.gguf_config import config_of, llama3_of
from llama_core.checkpoints.gguf_file import gguf_checkpoint, hf_order
from llama_core.config import LinearScaling, Llama3Scaling, LlamaConfig, YarnScaling
from llama_core.errors import CheckpointError, GlassLlamaError

ROOT = Path(__file__).parent.parent
SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
REFERENCE = json.loads((ROOT / "tests/reference/smollm2-135m-q4_1.json").read_text(encoding="utf-8"))
LONG = [int(id) for id in np.random.default_rng(0).integers(SIZES["vocab_size"], size=40)]


@pytest.fixture(scope="module")
def rig():
    return reference_rig()


def assert_equal_tensors(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def sizes(config: LlamaConfig) -> dict:
    """A config's values without those that a GGUF and a folder may state differently."""
    return config.with_(bos_token_id=None, eos_token_id=None).to_dict()


# --- the order of query and key rows ---


@pytest.mark.parametrize(("heads", "order"), [(1, [0, 4, 1, 5, 2, 6, 3, 7]), (2, [0, 2, 1, 3, 4, 6, 5, 7])])
def test_each_gguf_row_is_put_where_hugging_face_has_it(heads, order):
    assert gguf_order(8, heads) == order == hf_order(8, heads).tolist()


def test_the_order_of_another_head_count_is_another_one():
    assert hf_order(8, 1).tolist() != hf_order(8, 2).tolist()


# --- a folder and a GGUF of the same model ---


CASES = [f"{family} {rope}" for family in FAMILIES for rope in ("default", "linear", "yarn")]


# llama.cpp has no table of RoPE factors, which llama3 needs, for Qwen.
@pytest.mark.parametrize("name", [*CASES, "llama llama3", "mistral llama3"])
def test_a_gguf_gives_the_logits_of_the_folder_it_was_made_from(tmp_path, name):
    theirs = more_rig(name)
    folder = load(save_folder(theirs, tmp_path / "rig"))
    from_gguf = load(write_gguf(theirs, tmp_path / "rig.gguf"))
    assert sizes(from_gguf.config) == sizes(folder.config)
    assert np.array_equal(run(from_gguf, LONG)["logits"], run(folder, LONG)["logits"])


@pytest.mark.parametrize(
    "changes",
    [{"num_key_value_heads": 1}, {"head_dim": 12}, {"attention_bias": True, "mlp_bias": True}],
)
def test_a_gguf_gives_the_tensors_of_transformers(tmp_path, changes):
    model = family_rig("llama", **changes)
    assert_equal_tensors(dict(gguf_checkpoint(write_gguf(model, tmp_path / "rig.gguf")).tensors), model.state_dict())


def test_a_bias_of_the_output_alone_is_seen(tmp_path):
    model = family_rig("qwen2")
    assert gguf_checkpoint(write_gguf(model, tmp_path / "a.gguf")).config.attention_out_bias is False
    extra = {f"blk.{layer}.attn_output.bias": np.ones(32, np.float32) for layer in (0, 1)}
    config = gguf_checkpoint(write_gguf(model, tmp_path / "b.gguf", tensors=extra)).config
    assert (config.attention_bias, config.attention_out_bias) == (True, None)
    config = gguf_checkpoint(write_gguf(reference_rig(), tmp_path / "c.gguf", tensors=extra)).config
    assert (config.attention_bias, config.attention_out_bias) == (False, True)


def test_a_tied_rig_has_no_second_head(tmp_path):
    checkpoint = gguf_checkpoint(write_gguf(reference_rig(tie_word_embeddings=True), tmp_path / "rig.gguf"))
    assert checkpoint.config.tie_word_embeddings
    assert dict(checkpoint.tensors).keys() == checkpoint.config.parameter_shapes().keys()


def test_both_doors_give_the_rig_with_a_vocabulary_the_same_tokenizer(tmp_path):
    tokenizer = byte_tokenizer(300, special=("<|end|>",))
    model = reference_rig(vocab_size=300)
    folder = folder_checkpoint(save_folder(model, tmp_path / "rig", tokenizer)).tokenizer
    from_gguf = gguf_checkpoint(write_gguf(model, tmp_path / "rig.gguf", tokenizer=tokenizer)).tokenizer
    text = "the boats leave in winter, 東京 <|end|>\n"
    assert folder.vocab_size == from_gguf.vocab_size == 300
    assert folder.encode(text) == from_gguf.encode(text) == tokenizer.encode(text).ids
    assert folder.decode(folder.encode(text)) == from_gguf.decode(from_gguf.encode(text)) == text


def test_labels_name_the_file_its_format_and_its_kind(rig, tmp_path):
    checkpoint = gguf_checkpoint(write_gguf(rig, tmp_path / "rig-f32.gguf"))
    assert (checkpoint.source, checkpoint.stored_dtype, checkpoint.kind) == ("rig (GGUF, F32)", "F32", "gguf")
    mixed = gguf_checkpoint(write_gguf(rig, tmp_path / "rig.Q8_0.gguf", kind=Stored.F16))
    assert (mixed.source, mixed.stored_dtype) == ("rig.Q8_0 (GGUF, F16)", "F16, F32")


# --- formats ---

PACKED = [
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "NVFP4", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
]
UNREAD = ["Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "Q1_0"]


def test_every_format_of_the_gguf_package_is_read_or_refused():
    assert {*PACKED, *UNREAD, "F32", "F16", "BF16", "F64"} == {kind.name for kind in Stored}


@pytest.fixture(scope="module")
def wide():
    """A rig whose rows are whole blocks of every format."""
    return reference_rig(hidden_size=256, intermediate_size=256, num_hidden_layers=1, head_dim=64, vocab_size=40)


@pytest.mark.parametrize("kind", PACKED)
def test_a_packed_gguf_is_the_model_with_the_numbers_that_the_gguf_package_unpacks(wide, tmp_path, kind):
    kind = Stored[kind]
    tensors = unpacked(wide, kind)
    path = write_gguf(wide, tmp_path / "rig.gguf", kind=kind)
    checkpoint = gguf_checkpoint(path)
    assert checkpoint.stored_dtype == f"{kind.name}, F32"
    assert_equal_tensors(dict(checkpoint.tensors), tensors)
    plain = LlamaForCausalLM(wide.config).eval()
    plain.load_state_dict(tensors)
    folder = load(save_folder(plain, tmp_path / "rig"))
    assert np.array_equal(run(load(path), PROMPT)["logits"], run(folder, PROMPT)["logits"])


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16), ("F64", torch.float64)])
def test_plain_numbers_keep_their_format(rig, tmp_path, kind, dtype):
    if kind == "F64":
        tensor = rig.state_dict()["model.embed_tokens.weight"].double().numpy()
        path = rewritten(rig, tmp_path, lambda key, rows: (tensor, None) if key == "token_embd.weight" else None)
        checked = ["model.embed_tokens.weight"]
    else:
        path = write_gguf(rig, tmp_path / "rig.gguf", kind=Stored[kind])
        checked = [name for name, tensor in rig.state_dict().items() if tensor.dim() == 2]
    found = dict(gguf_checkpoint(path).tensors)
    for name in checked:
        assert found[name].dtype == dtype, name
        assert torch.equal(found[name], rig.state_dict()[name].to(dtype)), name


def rewritten(rig, folder: Path, change) -> Path:
    """The rig's GGUF with some tensors stored otherwise: change(key, rows) -> (rows, format) or None."""
    add = gguf.GGUFWriter.add_tensor

    def adding(writer, key, rows, **options):
        rows, kind = change(key, rows) or (rows, options.get("raw_dtype"))
        return add(writer, key, rows, raw_dtype=kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", adding)
        return write_gguf(rig, folder / "rig.gguf")


@pytest.mark.parametrize("kind", UNREAD)
def test_a_format_that_nobody_unpacks_is_refused_by_name_before_anything_is_read(wide, tmp_path, kind):
    block, size = gguf.GGML_QUANT_SIZES[Stored[kind]]
    raw = np.zeros((40, 256 // block * size), np.uint8)
    path = rewritten(wide, tmp_path, lambda key, rows: (raw, Stored[kind]) if key == "token_embd.weight" else None)
    with pytest.raises(CheckpointError, match=rf"token_embd\.weight.*rig\.gguf is stored as {kind}"):
        gguf_checkpoint(path)


def test_a_packed_vector_is_read_too(wide, tmp_path):
    raw = packed(wide.state_dict()["model.norm.weight"].numpy()[None], Stored.Q8_0)
    header = write_gguf(wide, tmp_path / "rig.gguf")
    tensor = gguf_file.StoredTensor((256,), Stored.Q8_0, 0, raw.size)
    found = gguf_file._rows(io.BytesIO(raw.tobytes()), tensor)
    assert header.is_file()
    assert np.array_equal(found, gguf.quants.dequantize(raw, Stored.Q8_0))


def test_unpacking_holds_little_more_than_the_tensor(monkeypatch):
    tensor = gguf_file.StoredTensor((8192, 512), Stored.Q4_1, 0, 8192 * 512 // 32 * 20)
    data = bytes(tensor.size)
    tracemalloc.start()
    try:
        rows = gguf_file._rows(io.BytesIO(data), tensor)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.nbytes == 16 << 20
    assert peak < rows.nbytes + (8 << 20)


# --- RoPE ---


def scaling(rig, folder: Path, architecture: str = "llama", **extra):
    path = write_gguf(rig, folder / "rig.gguf", architecture=architecture, extra=extra)
    return gguf_checkpoint(path).config.rope_scaling


YARN = {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 32}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, None),
        ({".rope.scaling.type": "none", ".rope.scaling.factor": 4.0}, None),
        ({".rope.scaling.type": "linear", ".rope.scaling.factor": 1.0}, None),
        ({".rope.scaling.type": "linear", ".rope.scaling.factor": 0.0}, None),
        ({".rope.scaling.type": "linear", ".rope.scaling.factor": 4.0}, LinearScaling(4.0)),
        ({".rope.scaling.factor": 4.0}, LinearScaling(4.0)),
        ({".rope.scale_linear": 2.5}, LinearScaling(2.5)),
        (YARN, YarnScaling(4.0, 32)),
        (YARN | {".rope.scaling.finetuned": True}, YarnScaling(4.0, 32)),
        ({".rope.scaling.type": "yarn", ".rope.scaling.factor": 2.0}, YarnScaling(2.0, 64)),
        ({".rope.scaling.type": "yarn", ".rope.scaling.factor": 1.0}, None),
    ],
)
def test_scaling_is_what_llama_cpp_reads_in_the_metadata(rig, tmp_path, extra, expected):
    assert scaling(rig, tmp_path, **extra) == expected


def test_yarn_takes_attn_factor_and_for_mistral3_its_own_keys(rig, tmp_path):
    plain = 1 + 0.1 * np.log(4)
    found = scaling(rig, tmp_path, **YARN, **{".rope.scaling.attn_factor": 1.5})
    assert found.attention_factor == pytest.approx(1.5 * plain)
    own = {".rope.scaling.yarn_log_multiplier": 0.5, ".rope.scaling.yarn_beta_fast": 16.0}
    found = scaling(rig, tmp_path, "mistral3", **YARN, **own)
    assert found.attention_factor == pytest.approx(plain / (1 + 0.5 * 0.1 * np.log(4)))
    assert (found.beta_fast, found.beta_slow) == (16.0, 1.0)


# The first logits at the last of the ids LONG, from llama.cpp's own library (a build of spring 2025, all in F32), for
# the llama rig with head width 16. It adds float32 in another order than torch: 8e-5 was the largest difference.
LLAMA_CPP = {
    "plain": [-0.5365, -0.8905, -2.8342, -0.53913, 0.46538, 0.37149],
    "linear": [-0.52418, -1.65098, 1.07941, -0.95555, -0.37629, -0.68317],
    "yarn": [-2.18468, -0.49227, -1.00559, 0.10415, -1.19117, -1.51346],
    "yarn, attn_factor": [-2.7828, -0.66167, 0.21006, -0.27856, -3.11888, -0.84793],
    "llama3": [-0.46505, -1.17128, -0.9687, -0.75966, 0.23057, -0.57349],
}


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("plain", {}),
        ("linear", {".rope.scaling.type": "linear", ".rope.scaling.factor": 4.0}),
        ("yarn", YARN),
        ("yarn, attn_factor", YARN | {".rope.scaling.attn_factor": 1.25}),
        ("llama3", {}),
        ("plain", {".attention.sliding_window": 3}),
    ],
)
def test_the_logits_are_those_of_llama_cpp(tmp_path, name, extra):
    theirs = more_rig("llama llama3" if name == "llama3" else "llama default")
    logits = run(load(write_gguf(theirs, tmp_path / "rig.gguf", extra=extra)), LONG)["logits"]
    assert logits[0, -1, :6] == pytest.approx(LLAMA_CPP[name], abs=2e-4)


def llama3_config(**changes) -> TransformersConfig:
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192} | changes
    return TransformersConfig(**SIZES | {"head_dim": 64, "max_position_embeddings": 131072}, rope_parameters=rope)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        ({"factor": 32.0}, Llama3Scaling(32.0, 1.0, 4.0, 8192)),
        ({"factor": 1.5}, Llama3Scaling(1.5, 1.0, 4.0, 8192)),
        ({"original_max_position_embeddings": 4096}, Llama3Scaling(8.0, 1.0, 4.0, 4096)),
        ({"high_freq_factor": 2.5}, Llama3Scaling(8.0, 1.0, 2.5, 8192)),
        # The rule looks at ratios only: twice all three is the same rule.
        ({"low_freq_factor": 2.0, "high_freq_factor": 8.0}, Llama3Scaling(8.0, 1.0, 4.0, 4096)),
        ({"high_freq_factor": 1.4, "original_max_position_embeddings": 900}, None),  # two pairs blended
        ({"high_freq_factor": 1.2, "original_max_position_embeddings": 1000}, None),  # one or none
        ({"high_freq_factor": 1.001, "original_max_position_embeddings": 1000}, None),  # none
    ],
)
def test_a_table_that_the_llama3_rule_made_gives_a_rule_that_makes_it(changes, expected):
    theirs = llama3_config(**changes)
    factors = rope_factors(theirs, 64).astype(np.float32)
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, head_dim=64, rope_theta=500000.0)
    found = llama3_of(factors, config, "x.gguf")
    assert expected in (None, found)
    again = llama3_config(
        factor=found.factor,
        low_freq_factor=found.low_freq_factor,
        high_freq_factor=found.high_freq_factor,
        original_max_position_embeddings=found.original_max_position_embeddings,
    )
    assert rope_factors(again, 64) == pytest.approx(factors, rel=2e-5)


@pytest.mark.parametrize(
    "factors",
    [
        np.linspace(1, 8, 32),
        np.linspace(8, 1, 32),
        np.ones(31),
        np.zeros(32),
        np.full(32, np.nan),
        np.where(np.arange(32) == 9, 4.0, rope_factors(llama3_config(), 64)),
    ],
)
def test_a_table_of_another_rule_is_refused(factors):
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, head_dim=64, rope_theta=500000.0)
    with pytest.raises(CheckpointError, match="rope_freqs"):
        llama3_of(factors, config, "x.gguf")


def test_a_table_of_ones_scales_nothing_and_a_second_rule_beside_a_table_is_refused(rig, tmp_path):
    ones = {"rope_freqs.weight": np.ones(4, np.float32)}
    linear = {".rope.scaling.factor": 4.0}
    path = write_gguf(rig, tmp_path / "a.gguf", tensors=ones, extra=linear)
    assert gguf_checkpoint(path).config.rope_scaling == LinearScaling(4.0)
    path = write_gguf(more_rig("llama llama3"), tmp_path / "b.gguf", extra=linear)
    with pytest.raises(CheckpointError, match="twice"):
        gguf_checkpoint(path)


# --- notes ---


def test_a_window_that_llama_cpp_does_not_apply_is_noted_and_an_own_rotation_table_is_listed(rig, tmp_path):
    assert gguf_checkpoint(write_gguf(rig, tmp_path / "a.gguf")).notes == ()
    tables = {f"blk.{layer}.attn_rot_embd.weight": np.ones(4, np.float32) for layer in (0, 1)}
    path = write_gguf(rig, tmp_path / "b.gguf", extra={".attention.sliding_window": 3}, tensors=tables)
    window, ignored = gguf_checkpoint(path).notes
    assert "llama.attention.sliding_window 3" in window
    assert "blk.0.attn_rot_embd.weight, blk.1.attn_rot_embd.weight" in ignored


def test_a_tokenizer_we_do_not_know_is_noted_and_the_model_opens(tmp_path):
    model = reference_rig(vocab_size=256)
    path = write_gguf(model, tmp_path / "rig.gguf", tokenizer=byte_tokenizer(), extra={})
    assert gguf_checkpoint(path).tokenizer is not None
    path = write_gguf(model, tmp_path / "rig.gguf", extra={"tokenizer.ggml.model": "t5"})
    checkpoint = gguf_checkpoint(path)
    assert checkpoint.tokenizer is None
    assert "kind 't5'" in checkpoint.notes[0]


def test_a_table_larger_than_the_tokenizer_is_noted(tmp_path):
    path = write_gguf(reference_rig(vocab_size=260), tmp_path / "rig.gguf", tokenizer=byte_tokenizer())
    assert gguf_checkpoint(path).notes == ("The model has 260 ids, the tokenizer 256: ids 256 to 259 have no text.",)


# --- refusals ---


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.attn_factor", 1.5),
        ("rope.scaling.factor", -2.0),
        ("rope.scaling.factor", "four"),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("rope.scaling.yarn_beta_fast", 16.0),
        ("rope.dimension_count", 4),
        ("attention.value_length", 6),
        ("attention.scale", 0.5),
        ("attention.temperature_scale", 0.1),
        ("attention.causal", False),
        ("logit_scale", 2),
    ],
)
def test_a_key_that_changes_the_numbers_is_refused_by_name(rig, tmp_path, key, value):
    extra = {f".{key}": value}
    if key == "rope.dimension_count":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gguf.GGUFWriter, "add_rope_dimension_count", lambda *_: None)
            path = write_gguf(rig, tmp_path / "rig.gguf", extra=extra)
    else:
        path = write_gguf(rig, tmp_path / "rig.gguf", extra=extra)
    with pytest.raises(CheckpointError, match=rf"rig\.gguf .*{key.replace('.', '[.]')}|longrope"):
        gguf_checkpoint(path)


def test_an_architecture_we_do_not_compute_is_refused_by_name(tmp_path):
    for name in ("gemma3", "qwen2moe", "mistral4"):
        with pytest.raises(CheckpointError, match=f"'{name}'.* llama, mistral3, qwen2, qwen3"):
            gguf_checkpoint(write(gguf.GGUFWriter(tmp_path / "x.gguf", name), tmp_path / "x.gguf"))


def test_a_part_of_a_split_model_names_the_parts(rig, tmp_path):
    path = write_gguf(rig, tmp_path / "rig-00002-of-00003.gguf", extra={"split.no": 1, "split.count": 3})
    with pytest.raises(CheckpointError, match=r"part 2 of 3 .*rig-00001-of-00003\.gguf to rig-00003-of-00003\.gguf"):
        gguf_checkpoint(path)


def test_missing_unexpected_and_misshapen_tensors_are_named(rig, tmp_path):
    extra = {"blk.0.ffn_gate_exps.weight": np.zeros((2, 2), np.float32)}
    with pytest.raises(CheckpointError, match=r"holds blk\.0\.ffn_gate_exps\.weight"):
        gguf_checkpoint(write_gguf(rig, tmp_path / "rig.gguf", tensors=extra))
    for name in ("blk.00.attn_q.weight", f"blk.{'9' * 5000}.attn_q.weight"):  # not a second layer 0, and no number
        with pytest.raises(CheckpointError, match=r"holds blk\.[09]"):
            gguf_checkpoint(write_gguf(rig, tmp_path / "rig.gguf", tensors={name: np.zeros((32, 32), np.float32)}))
    with pytest.raises(CheckpointError, match=r"lacks .*self_attn\.q_norm\.weight"):
        gguf_checkpoint(write_gguf(rig, tmp_path / "rig.gguf", architecture="qwen3"))
    short = np.zeros((16, 31), np.float32)
    path = rewritten(rig, tmp_path, lambda key, rows: (short, None) if key == "blk.1.attn_k.weight" else None)
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.k_proj\.weight in rig\.gguf .*16, 31.*16, 32"):
        gguf_checkpoint(path)


def test_sizes_that_differ_from_layer_to_layer_are_refused():
    fields = {"general.architecture": "llama", "llama.embedding_length": 32, "llama.feed_forward_length": 48}
    fields |= {"llama.block_count": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    with pytest.raises(CheckpointError, match=r"lacks llama\.attention\.head_count"):
        config_of(fields, {"token_embd.weight": (64, 32)}, None, "x.gguf")
    with pytest.raises(CheckpointError, match="differs from layer to layer"):
        config_of(fields | {"llama.attention.head_count": [4, 8]}, {"token_embd.weight": (64, 32)}, None, "x.gguf")


def test_a_gguf_cut_anywhere_is_a_sentence(rig, tmp_path):
    whole = write_gguf(rig, tmp_path / "rig.gguf", tokenizer=byte_tokenizer()).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 64), *range(64, len(whole), 997), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            gguf_checkpoint(cut)


@pytest.mark.parametrize("name", ["llama llama3", "qwen2 yarn"])
def test_a_damaged_header_gives_a_model_of_the_right_shapes_or_a_sentence(tmp_path, name):
    whole = write_gguf(more_rig(name), tmp_path / "rig.gguf", tokenizer=byte_tokenizer()).read_bytes()
    header = whole.index(b"blk.1.ffn_down.weight") + 60
    random, refused = np.random.default_rng(0), 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            damaged[random.integers(4, header)] = random.integers(256)
        (tmp_path / "bad.gguf").write_bytes(damaged)
        try:
            checkpoint = gguf_checkpoint(tmp_path / "bad.gguf")
            shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors}
        except GlassLlamaError:
            refused += 1
        else:
            assert shapes == checkpoint.config.parameter_shapes()
    assert refused > 100


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98362432\n", "git lfs pull"),
        (b"<!DOCTYPE html>", "no GGUF file"),
        (b"GGUF" + struct.pack("<I", 1), "version 1"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "announces 1,152,921,504,606,846,976"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**50) + bytes(16), "announces"),
        (b"", "cannot be read as GGUF"),
    ],
)
def test_what_is_no_gguf_is_refused_with_the_reason(tmp_path, content, says):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=says):
        gguf_checkpoint(tmp_path / "x.gguf")


def test_a_gguf_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.gguf"):
        gguf_checkpoint(tmp_path / "none.gguf")
