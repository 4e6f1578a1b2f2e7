"""Checkpoints: the same numbers through every door, and a sentence instead of a surprise."""

import json
import math
import pickle
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from rigs import SIZES, byte_tokenizer, gguf_order, reference_rig, save_folder, save_gguf
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig as TransformersConfig
from transformers import LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from llama_core.checkpoints.folder import folder_checkpoint
from llama_core.checkpoints.gguf_file import gguf_checkpoint, unpermute
from llama_core.checkpoints.random import SCHEMES, random_checkpoint
from llama_core.config import PRESETS, Llama3Scaling, LlamaConfig
from llama_core.errors import CheckpointError, GlassLlamaError

ROOT = Path(__file__).parent.parent
SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
REFERENCE = json.loads((ROOT / "tests/reference/smollm2-135m-q4_1.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def rig():
    return reference_rig()


@pytest.fixture
def folder(rig, tmp_path):
    return save_folder(rig, tmp_path / "rig")


def change_config(folder: Path, **changes) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def assert_equal_tensors(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


# --- A2: the order of query and key rows ---


def in_gguf_order(rows: int, heads: int) -> torch.Tensor:
    return torch.tensor(gguf_order(rows, heads))


@pytest.mark.parametrize(("heads", "order"), [(1, [0, 4, 1, 5, 2, 6, 3, 7]), (2, [0, 2, 1, 3, 4, 6, 5, 7])])
def test_unpermute_inverts_the_gguf_row_order(heads, order):
    assert gguf_order(8, heads) == order
    assert unpermute(torch.tensor(order), heads).tolist() == list(range(8))
    matrix = torch.tensor(order)[:, None].expand(8, 3)
    assert unpermute(matrix, heads).tolist() == [[row] * 3 for row in range(8)]


def test_unpermute_with_the_wrong_head_count_is_wrong():
    assert unpermute(in_gguf_order(8, 2), 1).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 1}, {"attention_bias": True, "mlp_bias": True}])
def test_gguf_and_folder_give_the_same_tensors_as_transformers(tmp_path, changes):
    model = reference_rig(**changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    expected = dict(model.state_dict())
    folder = folder_checkpoint(save_folder(model, tmp_path / "rig"))
    from_gguf = gguf_checkpoint(save_gguf(model, tmp_path / "rig.gguf"))
    assert_equal_tensors(dict(folder.tensors), expected)
    assert_equal_tensors(dict(from_gguf.tensors), expected)
    assert folder.config.with_(bos_token_id=None, eos_token_id=None) == from_gguf.config


def test_a_tied_rig_has_no_second_head(tmp_path):
    model = reference_rig(tie_word_embeddings=True)
    folder = folder_checkpoint(save_folder(model, tmp_path / "rig"))
    from_gguf = gguf_checkpoint(save_gguf(model, tmp_path / "rig.gguf"))
    for checkpoint in (folder, from_gguf):
        assert checkpoint.config.tie_word_embeddings
        assert dict(checkpoint.tensors).keys() == checkpoint.config.parameter_shapes().keys()


def test_both_doors_give_the_rig_with_a_vocabulary_the_same_tokenizer(tmp_path):
    tokenizer = byte_tokenizer(300, special=("<|end|>",))
    model = reference_rig(vocab_size=300)
    folder = folder_checkpoint(save_folder(model, tmp_path / "rig", tokenizer)).tokenizer
    from_gguf = gguf_checkpoint(save_gguf(model, tmp_path / "rig.gguf", tokenizer)).tokenizer
    text = "the boats leave in winter, 東京 <|end|>\n"
    assert folder.vocab_size == from_gguf.vocab_size == 300
    assert folder.encode(text) == from_gguf.encode(text) == tokenizer.encode(text).ids
    assert folder.decode(folder.encode(text)) == from_gguf.decode(from_gguf.encode(text)) == text


def test_labels_name_the_file_its_format_and_its_kind(rig, tmp_path):
    folder = folder_checkpoint(save_folder(rig.to(torch.bfloat16), tmp_path / "rig"))
    assert (folder.source, folder.stored_dtype, folder.kind) == ("rig (folder, BF16)", "BF16", "folder")
    assert {tensor.dtype for _, tensor in folder.tensors} == {torch.bfloat16}
    rig.float()
    from_gguf = gguf_checkpoint(save_gguf(reference_rig(), tmp_path / "rig-f32.gguf"))
    assert (from_gguf.source, from_gguf.stored_dtype, from_gguf.kind) == ("rig (GGUF, F32)", "F32", "gguf")


# --- the trained model ---


@pytest.fixture(scope="module")
def smollm2():
    assert SMOLLM2.is_file(), "The trained model is missing: run scripts/fetch_model.py first."
    checkpoint = gguf_checkpoint(SMOLLM2)
    return checkpoint, dict(checkpoint.tensors)


def test_smollm2_is_labelled_and_sized_as_published(smollm2):
    checkpoint, tensors = smollm2
    assert checkpoint.source == "SmolLM2-135M-Instruct (GGUF, Q4_1)"
    assert checkpoint.stored_dtype == "Q4_1, Q8_0, F32"
    assert checkpoint.config.parameter_count() == 134_515_008 == sum(tensor.numel() for tensor in tensors.values())
    assert checkpoint.config.tie_word_embeddings
    assert (checkpoint.config.rms_norm_eps, checkpoint.config.rope_theta) == (1e-5, 100000.0)


def test_smollm2_in_transformers_gives_the_reference_logits(smollm2):
    checkpoint, tensors = smollm2
    sizes = {
        name: value for name, value in checkpoint.config.to_dict().items() if name not in ("rope_layout", "qk_norm")
    }
    model = LlamaForCausalLM(TransformersConfig(**sizes)).eval()
    model.load_state_dict(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    with torch.no_grad():
        logits = model(torch.tensor([REFERENCE["ids"]])).logits[0, -1]
    best = logits.topk(10)
    assert best.indices.tolist() == [entry["id"] for entry in REFERENCE["top10"]]
    assert best.values.tolist() == pytest.approx([entry["logit"] for entry in REFERENCE["top10"]], abs=5e-4)


# --- formats inside a GGUF ---


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_every_stored_format_gives_the_numbers_that_the_gguf_package_gives(rig, tmp_path, kind):
    kind = gguf.GGMLQuantizationType[kind]
    path = save_gguf(rig, tmp_path / "rig.gguf")
    table = rig.state_dict()["model.embed_tokens.weight"].numpy()
    raw = gguf.quants.quantize(table, kind)
    rewritten = _with_embedding(rig, path, raw, kind)
    found = dict(gguf_checkpoint(rewritten).tensors)["model.embed_tokens.weight"]
    assert np.array_equal(found.float().numpy(), gguf.quants.dequantize(raw, kind).reshape(table.shape))


def _with_embedding(rig, path: Path, raw: np.ndarray, kind) -> Path:
    """The rig's GGUF once more, with its embedding stored in another format."""
    original = gguf.GGUFWriter.add_tensor

    def add(writer, name, tensor, **options):
        if name == "token_embd.weight":
            return original(writer, name, raw, raw_dtype=kind)
        return original(writer, name, tensor, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", add)
        return save_gguf(rig, path)


# --- RoPE scaling in a GGUF ---


def llama3_factors(**changes) -> np.ndarray:
    """Plain frequencies divided by transformers' scaled ones: what llama.cpp stores as rope_freqs.weight."""
    scaling = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192} | changes
    config = TransformersConfig(**SIZES | {"head_dim": 64, "max_position_embeddings": 131072}, rope_parameters=scaling)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    return (1.0 / 500000.0 ** (torch.arange(0, 64, 2) / 64) / scaled).numpy()


def rig_with_rope_factors(path: Path, factors: np.ndarray) -> Path:
    model = reference_rig(head_dim=64, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    original = gguf.GGUFWriter.write_header_to_file

    def write(writer, *rest):
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
        return original(writer, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "write_header_to_file", write)
        return save_gguf(model, path)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_divisors_in_a_gguf_become_the_llama3_rule(tmp_path, factor):
    path = rig_with_rope_factors(tmp_path / "rig.gguf", llama3_factors(factor=factor))
    assert gguf_checkpoint(path).config.rope_scaling == Llama3Scaling(factor, 1.0, 4.0, 8192)


def test_divisors_of_one_scale_nothing(tmp_path):
    assert gguf_checkpoint(rig_with_rope_factors(tmp_path / "rig.gguf", np.ones(32))).config.rope_scaling is None


@pytest.mark.parametrize(
    "factors", [llama3_factors(original_max_position_embeddings=4096), np.linspace(1, 8, 32), np.ones(31), np.zeros(32)]
)
def test_divisors_of_another_rule_are_refused(tmp_path, factors):
    with pytest.raises(CheckpointError, match="rope_freqs"):
        gguf_checkpoint(rig_with_rope_factors(tmp_path / "rig.gguf", factors))


# --- refusals: GGUF ---


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.expert_count", 8),
        ("llama.rope.scaling.type", "yarn"),
        ("llama.attention.sliding_window", 128),
        ("llama.attention.value_length", 6),
        ("llama.logit_scale", 2),
    ],
)
def test_a_gguf_key_that_changes_the_numbers_is_refused_by_name(rig, tmp_path, key, value):
    with pytest.raises(CheckpointError, match=key):
        gguf_checkpoint(save_gguf(rig, tmp_path / "rig.gguf", **{key: value}))


def test_an_architecture_we_do_not_compute_is_refused_by_name(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "gemma3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="gemma3"):
        gguf_checkpoint(tmp_path / "x.gguf")


def test_a_gguf_cut_anywhere_is_a_sentence(rig, tmp_path):
    whole = save_gguf(rig, tmp_path / "rig.gguf", byte_tokenizer()).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 64), *range(64, len(whole), 997), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            gguf_checkpoint(cut)


def test_a_damaged_gguf_header_gives_sentences_only(rig, tmp_path):
    whole = save_gguf(rig, tmp_path / "rig.gguf", byte_tokenizer()).read_bytes()
    header = whole.index(b"blk.0.attn_q.weight") + 200
    random, refused = np.random.default_rng(0), 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[random.integers(4, header)] = random.integers(256)
        (tmp_path / "bad.gguf").write_bytes(damaged)
        try:
            list(gguf_checkpoint(tmp_path / "bad.gguf").tensors)
        except GlassLlamaError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98362432\n", "git lfs pull"),
        (b"<!DOCTYPE html>", "no GGUF file"),
        (b"GGUF" + struct.pack("<I", 1), "version 1"),
        (b"GGUF" + struct.pack(">I", 3), "version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "announces 1,152,921,504,606,846,976"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**50) + bytes(16), "announces"),
        (b"", "cannot be opened"),
    ],
)
def test_what_is_no_gguf_is_refused_with_the_reason(tmp_path, content, says):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=says):
        gguf_checkpoint(tmp_path / "x.gguf")


def test_a_gguf_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.gguf"):
        gguf_checkpoint(tmp_path / "none.gguf")


# --- refusals: folder ---


class Marker:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_is_refused_and_never_opened(folder, name, protocol):
    marker = folder / "marker"
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Marker(marker), protocol))
    with pytest.raises(CheckpointError, match=r"convert.* to safetensors"):
        list(folder_checkpoint(folder).tensors)
    assert not marker.exists()
    pickle.loads((folder / name).read_bytes())
    assert marker.exists(), "the pickle must be able to act, or the test shows nothing"


def test_a_torch_archive_under_a_safetensors_name_is_refused(folder):
    torch.save({"a": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="is a pickle"):
        folder_checkpoint(folder)


def test_a_safetensors_header_that_looks_like_a_pickle_is_read(tmp_path):
    config = LlamaConfig(2, 2, 2, 1, 1, rms_norm_eps=1e-6)
    tensors = dict(random_checkpoint(config).tensors)
    padding = ""
    while (head := _saved(tensors, tmp_path, padding))[:2] != b"\x80\x04":
        padding += "x" * 8
        assert len(padding) < 20000
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | _sizes(config)))
    assert head[8:9] == b"{"
    assert folder_checkpoint(tmp_path).config == config


def _saved(tensors: dict, folder: Path, padding: str) -> bytes:
    save_file(tensors, folder / "model.safetensors", metadata={"pad": padding})
    return (folder / "model.safetensors").read_bytes()[:16]


def _sizes(config: LlamaConfig) -> dict:
    return {name: value for name, value in config.to_dict().items() if not name.startswith(("rope_layout", "qk"))}


def test_a_wrong_shape_names_tensor_file_both_shapes_and_the_fields(folder):
    name = "model.layers.1.self_attn.k_proj.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(32, 32)}))
    with pytest.raises(CheckpointError) as refused:
        folder_checkpoint(folder)
    for part in (name, "model.safetensors", "[32, 32]", "[16, 32]", "num_attention_heads 4", "num_key_value_heads 2"):
        assert part in str(refused.value)
    assert "head_dim 8" in str(refused.value)


def test_missing_tensors_are_named(folder):
    change_tensors(folder, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(CheckpointError, match=r"lacks model\.norm\.weight"):
        folder_checkpoint(folder)


def test_unexpected_tensors_are_named(folder):
    change_tensors(folder, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}))
    with pytest.raises(CheckpointError, match=r"holds model\.layers\.0\.self_attn\.q_proj\.bias"):
        folder_checkpoint(folder)


def test_repeated_tensors_are_ignored_only_where_the_config_gives_them(folder):
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    change_tensors(folder, lambda tensors: tensors.update(extra))
    change_config(folder, tie_word_embeddings=True)
    checkpoint = folder_checkpoint(folder)
    assert dict(checkpoint.tensors).keys() == checkpoint.config.parameter_shapes().keys()


def test_an_endless_layer_count_is_refused_at_once(folder):
    change_config(folder, num_hidden_layers=10**7)
    with pytest.raises(CheckpointError, match="10000000 layers"):
        folder_checkpoint(folder)


def test_shards_are_refused_for_now(folder):
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="shards"):
        folder_checkpoint(folder)


def test_quantised_safetensors_are_refused_by_their_format(folder):
    change_tensors(folder, lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match="stored as I8"):
        folder_checkpoint(folder)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100, b"version https://git-lfs.github.com/spec/v1\n"])
def test_damaged_safetensors_are_a_sentence(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        folder_checkpoint(folder)


def test_cut_safetensors_are_a_sentence(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="incomplete"):
        folder_checkpoint(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_an_incomplete_folder_says_what_it_lacks(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"no {name}"):
        folder_checkpoint(folder)


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        folder_checkpoint(tmp_path / "none")


# --- random weights ---


def drawn(config: LlamaConfig, **options) -> dict[str, torch.Tensor]:
    return dict(random_checkpoint(config, **options).tensors)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_random_weights_do_not_depend_on_the_global_seed_nor_touch_it(scheme):
    torch.manual_seed(1)
    first = drawn(PRESETS["nano"], seed=3, scheme=scheme)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)
    assert_equal_tensors(drawn(PRESETS["nano"], seed=3, scheme=scheme), first)
    other = drawn(PRESETS["nano"], seed=4, scheme=scheme)
    assert not torch.equal(other["lm_head.weight"], first["lm_head.weight"])


def test_normal_weights_have_the_asked_for_spread_and_norms_of_one():
    weights = drawn(PRESETS["light-0.85M"], std=0.05)
    for name, tensor in weights.items():
        if tensor.dim() == 2:
            assert tensor.std().item() == pytest.approx(0.05, rel=0.03), name
        else:
            assert torch.equal(tensor, torch.ones_like(tensor)), name


def test_the_light_preset_has_846336_parameters_and_pytorch_spreads():
    weights = drawn(PRESETS["light-0.85M"], scheme="pytorch")
    assert sum(tensor.numel() for tensor in weights.values()) == 846_336
    assert weights["model.embed_tokens.weight"].std().item() == pytest.approx(1.0, rel=0.02)
    for name, inputs in (("lm_head", 128), ("model.layers.0.mlp.down_proj", 341)):
        tensor = weights[f"{name}.weight"]
        assert tensor.abs().max().item() <= 1 / math.sqrt(inputs)
        assert tensor.std().item() == pytest.approx(1 / math.sqrt(3 * inputs), rel=0.02), name
    assert torch.nn.Linear(341, 128).weight.std().item() == pytest.approx(1 / math.sqrt(3 * 341), rel=0.05)


def test_xavier_weights_have_xavier_spread_and_a_tied_head_keeps_the_embeddings():
    weights = drawn(PRESETS["tiny"], scheme="xavier")
    assert "lm_head.weight" not in weights
    assert weights["model.embed_tokens.weight"].std().item() == pytest.approx(0.02, rel=0.03)
    gate = weights["model.layers.0.mlp.gate_proj.weight"]
    assert gate.std().item() == pytest.approx(math.sqrt(2 / (64 + 172)), rel=0.03)
    assert gate.abs().max().item() <= math.sqrt(6 / (64 + 172))


def test_random_biases_are_zero():
    weights = drawn(PRESETS["nano"].with_(attention_bias=True, mlp_bias=True))
    biases = [tensor for name, tensor in weights.items() if name.endswith("bias")]
    assert len(biases) == 2 * 7
    assert not any(bias.any() for bias in biases)


@pytest.mark.parametrize("options", [{"scheme": "he"}, {"seed": -1}, {"std": -0.1}, {"std": math.nan}])
def test_random_weights_that_cannot_be_drawn_are_a_sentence(options):
    with pytest.raises(CheckpointError, match=r"for example|recipes are"):
        random_checkpoint(PRESETS["nano"], **options)


def test_random_weights_say_how_they_were_drawn():
    checkpoint = random_checkpoint(PRESETS["nano"], seed=7)
    assert (checkpoint.source, checkpoint.kind) == ("Random weights (normal, std 0.02, seed 7)", "random")
    assert checkpoint.tokenizer is None
