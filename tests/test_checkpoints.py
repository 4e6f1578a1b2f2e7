"""Checkpoints: the same numbers through every door, and a sentence instead of a surprise."""

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rigs import reference_rig, save_folder
from safetensors.torch import load_file, save_file

from llama_core.checkpoints.folder import folder_checkpoint
from llama_core.checkpoints.random import SCHEMES, random_checkpoint
from llama_core.config import PRESETS, LlamaConfig
from llama_core.errors import CheckpointError


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


def test_labels_name_the_folder_its_format_and_its_kind(rig, tmp_path):
    folder = folder_checkpoint(save_folder(rig.to(torch.bfloat16), tmp_path / "rig"))
    assert (folder.source, folder.stored_dtype, folder.kind) == ("rig (folder, BF16)", "BF16", "folder")
    assert {tensor.dtype for _, tensor in folder.tensors} == {torch.bfloat16}
    rig.float()


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
    with pytest.raises(CheckpointError, match=r"none cannot be read: No such file or directory"):
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


def test_to_build_a_model_torch_need_not_load_its_compiler():
    program = """
import sys
from llama_core import load, run
run(load("tiny"), [1, 2, 3])
print([name for name in sys.modules if name.startswith("torch._dynamo")])
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
