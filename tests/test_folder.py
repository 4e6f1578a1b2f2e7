"""A model's folder: shards, the names and types that files use, what each says against the other, and its borders."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from rigs import PROMPT, byte_tokenizer, gguf_order, reference_rig, save_folder
from safetensors.torch import load_file, save_file

from benchmarks.loading import MIB, measure, write_folder
from llama_core import checkpoints, load, run
from llama_core.checkpoints import build, check_fits, fits, folder, open_checkpoint
from llama_core.checkpoints.folder import folder_checkpoint
from llama_core.checkpoints.meta import config_from_params
from llama_core.config import Llama3Scaling, LlamaConfig
from llama_core.errors import CheckpointError, ConfigError, GlassLlamaError
from pages.ui.store import Shelf

INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"
EMBED = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def rig():
    return reference_rig()


@pytest.fixture
def plain(rig, tmp_path):
    """The rig in one file."""
    return save_folder(rig, tmp_path / "rig")


@pytest.fixture
def sharded(rig, tmp_path):
    """The rig in several shards, as transformers cuts them."""
    rig.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    return tmp_path / "sharded"


def tensors_of(path: Path, **options) -> dict[str, torch.Tensor]:
    return dict(folder_checkpoint(path, **options).tensors)


def rewrite(path: Path, change, name: str = "model.safetensors") -> None:
    tensors = {key: tensor.clone() for key, tensor in load_file(path / name).items()}
    change(tensors)
    save_file(tensors, path / name)


def edit_json(file: Path, change) -> None:
    raw = json.loads(file.read_text(encoding="utf-8"))
    change(raw)
    file.write_text(json.dumps(raw), encoding="utf-8")


def shard_of(path: Path, tensor: str) -> Path:
    return path / json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"][tensor]


def refusal(path: Path, **options) -> str:
    with pytest.raises(GlassLlamaError) as refused:
        folder_checkpoint(path, **options)
    return str(refused.value)


def logits(path: Path, **options) -> torch.Tensor:
    return torch.tensor(run(load(path, **options), PROMPT)["logits"])


def expected_logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([PROMPT])).logits


def assert_rig(found: dict[str, torch.Tensor], model) -> None:
    expected = model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


# --- shards ---


def test_shards_give_the_tensors_that_transformers_cut(rig, sharded):
    assert len(list(sharded.glob("*.safetensors"))) > 2
    checkpoint = folder_checkpoint(sharded)
    assert checkpoint.notes == ()
    assert_rig(dict(checkpoint.tensors), rig)


def test_a_missing_shard_is_refused_and_all_that_are_missing_are_listed(sharded):
    gone = [shard_of(sharded, EMBED), shard_of(sharded, NORM)]
    for shard in gone:
        shard.unlink()
    said = refusal(sharded)
    assert all(shard.name in said for shard in gone)
    assert "lacks" in said


def test_a_stray_file_beside_an_index_is_not_read_and_said_so(rig, sharded):
    save_file({name: tensor + 1 for name, tensor in rig.state_dict().items()}, sharded / "model.safetensors")
    (sharded / "model-00009-of-00009.safetensors").write_bytes(b"not even safetensors")
    checkpoint = folder_checkpoint(sharded)
    assert_rig(dict(checkpoint.tensors), rig)
    assert [note for note in checkpoint.notes if "model.safetensors lies beside" in note]


def test_a_tensor_that_its_shard_lacks_is_refused_by_both_names(sharded):
    shard = shard_of(sharded, NORM)
    rewrite(sharded, lambda tensors: tensors.pop(NORM), shard.name)
    said = refusal(sharded)
    assert NORM in said
    assert shard.name in said


def test_a_tensor_that_the_index_does_not_list_is_not_read_but_listed(rig, sharded):
    rewrite(sharded, lambda tensors: tensors.update(stowaway=torch.ones(1)), shard_of(sharded, NORM).name)
    checkpoint = folder_checkpoint(sharded)
    assert any("stowaway" in note for note in checkpoint.notes)
    assert_rig(dict(checkpoint.tensors), rig)


@pytest.mark.parametrize(
    "raw", ["[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": {', "\x00"]
)
def test_an_index_that_lists_nothing_is_a_sentence(sharded, raw):
    (sharded / INDEX).write_text(raw, encoding="utf-8")
    assert INDEX in refusal(sharded)


def test_an_index_that_names_a_tensor_twice_is_refused(sharded):
    (sharded / INDEX).write_text('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', encoding="utf-8")
    assert "twice" in refusal(sharded)


# --- the borders of the folder ---


@pytest.fixture
def opened(monkeypatch):
    """The names of the files whose bytes were looked at."""
    seen = []

    def watched(function):
        return lambda path, *rest, **options: (seen.append(Path(path).name), function(path, *rest, **options))[1]

    for name in ("read_header", "refuse_stand_in"):
        monkeypatch.setattr(folder, name, watched(getattr(folder, name)))
    return seen


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", ["../outside.safetensors", "absolute", "a/../../outside.safetensors", "link", "chain"])
def test_no_shard_is_opened_when_one_lies_outside_and_nobody_learns_whether_it_exists(
    rig, sharded, tmp_path, opened, kind, there
):
    outside = tmp_path / "outside.safetensors"
    if there:
        save_file(rig.state_dict(), outside)
    entry = {"absolute": str(outside), "link": "link.safetensors", "chain": "link.safetensors"}.get(kind, kind)
    if kind == "link":
        (sharded / entry).symlink_to(outside)
    elif kind == "chain":
        (tmp_path / "sharded" / "hop").symlink_to(tmp_path)
        (sharded / entry).symlink_to("hop/outside.safetensors")
    edit_json(sharded / INDEX, lambda raw: raw["weight_map"].update({NORM: entry}))
    said = refusal(sharded)
    assert said.startswith(f"{entry[:80]!r} leads out of the folder sharded.")
    assert "exist" not in said
    assert not [name for name in opened if name.endswith(".safetensors")]


@pytest.mark.parametrize(
    "name", ["C:\\x.safetensors", "a\\..\\b", "x\x00.safetensors", "..", ".", "", "/", "sub/x.safetensors"]
)
def test_a_shard_name_is_a_plain_file_name(sharded, name):
    edit_json(sharded / INDEX, lambda raw: raw["weight_map"].update({NORM: name}))
    assert "leads out of the folder" in refusal(sharded)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "params.json", INDEX]
)
@pytest.mark.parametrize("there", [True, False])
def test_no_file_of_the_folder_may_be_a_link_that_leaves_it(rig, tmp_path, name, there):
    path = save_folder(rig, tmp_path / "rig", byte_tokenizer(64 + 256))
    outside = tmp_path / "outside"
    if there:
        outside.write_bytes((path / name).read_bytes() if (path / name).exists() else b"{}")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(outside)
    if name == "params.json":
        (path / "config.json").unlink()
    assert refusal(path).startswith(f"{name!r} leads out of the folder rig.")


def test_a_link_within_the_folder_and_a_plain_name_load(rig, sharded):
    shard = shard_of(sharded, NORM)
    shard.rename(sharded / "data.bytes")
    shard.symlink_to("data.bytes")
    assert_rig(tensors_of(sharded), rig)


def test_a_loop_of_links_is_a_sentence(sharded):
    shard = shard_of(sharded, NORM)
    shard.unlink()
    shard.symlink_to(shard.name)
    assert "leads out" in refusal(sharded)


def cached(folder: Path, cache: Path, shared: str | None = None) -> Path:
    """The folder's files as huggingface_hub keeps them: a snapshot of links into blobs."""
    model = cache / "models--org--rig"
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    for file in folder.iterdir():
        blob = model / "blobs" / f"hash-{file.name}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    if shared is not None:  # the newer layout: the blob is a link into a store of the whole cache
        store = cache / "blobs" / "ab"
        store.mkdir(parents=True)
        blob = model / "blobs" / f"hash-{shared}"
        blob.rename(store / "abc")
        blob.symlink_to("../../blobs/ab/abc")
    return snapshot


@pytest.mark.parametrize("shared", [None, "model.safetensors"])
def test_the_links_of_the_hugging_face_cache_are_followed(rig, plain, tmp_path, shared):
    snapshot = cached(plain, tmp_path / "hub", shared)
    checkpoint = folder_checkpoint(snapshot)
    assert checkpoint.source == "org/rig (folder, F32)"
    assert_rig(dict(checkpoint.tensors), rig)


def test_a_snapshot_may_not_reach_into_another_model_of_the_cache(plain, tmp_path):
    snapshot = cached(plain, tmp_path / "hub")
    other = tmp_path / "hub" / "models--org--other"
    other.mkdir()
    (other / "config.json").write_bytes((snapshot / "config.json").read_bytes())
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("../../../models--org--other/config.json")
    assert "leads out" in refusal(snapshot)


# --- names ---


def test_names_without_the_leading_model_are_the_same(rig, plain):
    rewrite(plain, lambda tensors: [tensors.update({n.removeprefix("model."): tensors.pop(n)}) for n in list(tensors)])
    assert_rig(tensors_of(plain), rig)


def test_one_parameter_under_two_names_is_refused(plain):
    rewrite(plain, lambda tensors: tensors.update({"norm.weight": torch.ones(32)}))
    said = refusal(plain)
    assert NORM in said
    assert "norm.weight" in said


META = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}
PARAMS = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 48, "norm_eps": 1e-6, "vocab_size": -1}


def metas_tensors(model, merged: bool = False) -> dict[str, torch.Tensor]:
    """The model as Meta stores it: its names, and the two of a RoPE pair side by side in queries and keys."""
    heads = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}
    found = {}
    for name, tensor in model.state_dict().items():
        layer, part = ("", name) if ".layers." not in name else (f"layers.{name.split('.')[2]}.", name.split(".", 3)[3])
        part = part.removesuffix(".weight")
        if part in heads:
            tensor = tensor[gguf_order(len(tensor), heads[part])]
        found[f"{layer}{META[part]}.weight"] = tensor.clone()
    if merged:
        for layer in range(2):
            rows = [found.pop(f"layers.{layer}.attention.{name}.weight") for name in ("wq", "wk", "wv")]
            found[f"layers.{layer}.attention.wqkv.weight"] = torch.cat(rows)
    return found


def save_metas(model, path: Path, name: str = "consolidated.safetensors", merged: bool = False, **changes) -> Path:
    path.mkdir()
    save_file(metas_tensors(model, merged), path / name)
    (path / "params.json").write_text(json.dumps(PARAMS | changes), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["model.safetensors", "consolidated.safetensors", "consolidated.00.safetensors"])
@pytest.mark.parametrize("merged", [False, True])
def test_metas_names_give_transformers_logits(rig, tmp_path, name, merged):
    path = save_metas(rig, tmp_path / "meta", name, merged)
    checkpoint = folder_checkpoint(path)
    assert checkpoint.config.rope_layout == "neighbours"
    assert any("neighbouring dimensions" in note for note in checkpoint.notes)
    assert any("split by rows" in note for note in checkpoint.notes) == merged
    assert (logits(path) - expected_logits(rig)).abs().max() < 2e-5


def test_metas_names_with_a_hugging_face_config_give_transformers_logits(rig, tmp_path):
    path = save_metas(rig, tmp_path / "meta")
    rig.config.save_pretrained(path)
    (path / "params.json").unlink()
    assert (logits(path) - expected_logits(rig)).abs().max() < 2e-5


def test_the_pair_layout_can_be_chosen_against_the_names(rig, tmp_path):
    meta = save_metas(rig, tmp_path / "meta")
    wrong = folder_checkpoint(meta, rope_layout="halves")
    assert wrong.config.rope_layout == "halves"
    assert any("as was chosen" in note and "would be neighbours" in note for note in wrong.notes)
    assert (logits(meta, rope_layout="halves") - expected_logits(rig)).abs().max() > 0.1
    # Hugging Face's names over Meta's rows: only the caller can know.
    plain = save_folder(rig, tmp_path / "plain")
    heads = {"q_proj": 4, "k_proj": 2}
    rewrite(
        plain,
        lambda tensors: tensors.update(
            {n: t[gguf_order(len(t), heads[n.split(".")[-2]])] for n, t in tensors.items() if n.split(".")[-2] in heads}
        ),
    )
    assert (logits(plain, rope_layout="neighbours") - expected_logits(rig)).abs().max() < 2e-5
    assert (logits(plain) - expected_logits(rig)).abs().max() > 0.1


def test_a_layout_that_cannot_be_chosen_is_refused(plain):
    with pytest.raises(GlassLlamaError, match="rope_layout"):
        load(plain, rope_layout="thirds")
    with pytest.raises(CheckpointError, match="follows from its config"):
        load("nano", rope_layout="halves")


@pytest.mark.parametrize("biased", [False, True])
def test_merged_queries_keys_values_and_gate_up_are_split_by_rows(tmp_path, biased):
    model = reference_rig(attention_bias=biased, mlp_bias=biased)
    path = save_folder(model, tmp_path / "rig")

    def merge(tensors):
        for layer in range(2):
            for home, own, name in (
                ("self_attn", ("q_proj", "k_proj", "v_proj"), "qkv_proj"),
                ("mlp", ("gate_proj", "up_proj"), "gate_up_proj"),
            ):
                for kind in ("weight", "bias") if biased else ("weight",):
                    at = f"model.layers.{layer}.{home}."
                    tensors[f"{at}{name}.{kind}"] = torch.cat([tensors.pop(f"{at}{each}.{kind}") for each in own])

    rewrite(path, merge)
    checkpoint = folder_checkpoint(path)
    assert any("qkv_proj" in note and "gate_up_proj" in note for note in checkpoint.notes)
    assert_rig(dict(checkpoint.tensors), model)


def test_a_merged_matrix_of_another_height_names_its_tensor_and_both_shapes(rig, tmp_path):
    path = save_metas(rig, tmp_path / "meta", merged=True)
    rewrite(
        path, lambda t: t.update({"layers.1.attention.wqkv.weight": torch.zeros(60, 32)}), "consolidated.safetensors"
    )
    said = refusal(path)
    for part in ("layers.1.attention.wqkv.weight in consolidated.safetensors", "[60, 32]", "[64, 32]", "head_dim 8"):
        assert part in said


def test_a_wrong_shape_under_metas_names_is_told_in_the_files_words(rig, tmp_path):
    path = save_metas(rig, tmp_path / "meta", n_kv_heads=4)
    said = refusal(path)
    for part in ("layers.0.attention.wk.weight in consolidated.safetensors", "[16, 32]", "[32, 32]", "4"):
        assert part in said


def test_weights_cut_for_several_devices_are_refused(rig, tmp_path):
    path = save_metas(rig, tmp_path / "meta", "consolidated.00.safetensors")
    (path / "consolidated.01.safetensors").write_bytes(b"")
    assert "cut for several devices" in refusal(path)


# --- params.json ---

# The widths and counts that Meta and Mistral publish for these models.
PUBLISHED = {
    "Llama 2 7B": ({"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-5}, 11008, None),
    "Llama 2 70B": (
        {"dim": 8192, "multiple_of": 4096, "ffn_dim_multiplier": 1.3, "n_heads": 64, "n_kv_heads": 8, "n_layers": 80},
        28672,
        None,
    ),
    "Llama 3.1 8B": (
        {"dim": 4096, "multiple_of": 1024, "ffn_dim_multiplier": 1.3, "n_heads": 32, "n_kv_heads": 8, "n_layers": 32}
        | {"norm_eps": 1e-5, "rope_theta": 500000.0, "use_scaled_rope": True, "vocab_size": 128256},
        14336,
        Llama3Scaling(8.0, 1.0, 4.0, 8192),
    ),
    "Mistral 7B 0.1": (
        {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8}
        | {"norm_eps": 1e-5, "sliding_window": 4096, "vocab_size": 32000},
        14336,
        None,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_params_json_gives_the_published_sizes(name):
    raw, width, scaling = PUBLISHED[name]
    config, notes = config_from_params(raw, {"tok_embeddings.weight": (32000, raw["dim"]), "output.weight": (1, 1)})
    assert (config.hidden_size, config.intermediate_size) == (raw["dim"], width)
    assert (config.num_hidden_layers, config.num_attention_heads) == (raw["n_layers"], raw["n_heads"])
    assert config.num_key_value_heads == raw.get("n_kv_heads", raw["n_heads"])
    assert (config.rope_scaling, config.sliding_window) == (scaling, raw.get("sliding_window"))
    assert config.vocab_size == raw.get("vocab_size", 32000)
    assert not config.tie_word_embeddings
    assert any("factor 8" in note for note in notes) == (scaling is not None)
    assert any("vocabulary size" in note for note in notes) == ("vocab_size" not in raw)


def test_a_head_that_the_files_do_not_hold_is_the_embedding(rig, tmp_path):
    path = save_metas(rig, tmp_path / "meta")
    rewrite(path, lambda tensors: tensors.pop("output.weight"), "consolidated.safetensors")
    checkpoint = folder_checkpoint(path)
    assert checkpoint.config.tie_word_embeddings
    assert any("no output.weight" in note for note in checkpoint.notes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"moe": {"num_experts": 8}}, "moe"),
        ({"quantization_args": {"scheme": "int8"}}, "quantization_args"),
        ({"dim": None}, "lacks dim"),
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_dim": None}, "multiple_of"),
        ({"n_heads": "4"}, "whole number"),
        ({"use_scaled_rope": True, "rope_scaling_factor": "x"}, "rope_scaling_factor"),
    ],
)
def test_a_params_json_that_says_something_else_is_refused_by_name(rig, tmp_path, changes, says):
    path = save_metas(rig, tmp_path / "meta", **changes)
    assert says in refusal(path)


# --- types ---


@pytest.mark.parametrize("key", ["torch_dtype", "dtype", None])
def test_bfloat16_weights_stay_and_count_as_bfloat16(tmp_path, key):
    path = save_folder(reference_rig().to(torch.bfloat16), tmp_path / "rig")

    def say(raw):
        raw.pop("dtype", None)
        raw.pop("torch_dtype", None)
        raw.update({key: "bfloat16"} if key else {})

    edit_json(path / "config.json", say)
    checkpoint = folder_checkpoint(path)
    assert (checkpoint.stored_dtype, checkpoint.notes) == ("BF16", ())
    assert {tensor.dtype for tensor in dict(checkpoint.tensors).values()} == {torch.bfloat16}
    elements = reference_rig().num_parameters()
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        model = load(path, dtype=dtype)
        assert model.nbytes() == check_fits(model.config, "cpu", dtype) == elements * size
        assert (model.origin.stored_dtype, model.dtype) == ("BF16", getattr(torch, dtype))


def test_a_config_that_contradicts_the_file_about_the_type_is_told(tmp_path):
    path = save_folder(reference_rig().to(torch.bfloat16), tmp_path / "rig")
    edit_json(path / "config.json", lambda raw: raw.update(dtype="float16", torch_dtype="float16"))
    checkpoint = folder_checkpoint(path)
    (note,) = checkpoint.notes
    assert "float16" in note
    assert "BF16" in note


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float16, "F16"), (torch.float64, "F64")])
def test_other_plain_types_load_with_their_numbers(rig, plain, dtype, kind):
    rewrite(plain, lambda tensors: tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()}))
    assert folder_checkpoint(plain).stored_dtype == kind
    model = load(plain)
    for name, tensor in rig.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor.to(dtype).float()), name


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8, torch.bool])
def test_a_type_that_is_not_read_is_refused_with_its_tensor(plain, dtype):
    rewrite(plain, lambda tensors: tensors.update({NORM: tensors[NORM].to(dtype)}))
    said = refusal(plain)
    assert f"{NORM} in model.safetensors is stored as" in said


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("qweight", "GPTQ or AWQ"),
        ("weight_packed", "compressed-tensors"),
        ("SCB", "bitsandbytes 8-bit"),
        ("weight.absmax", "bitsandbytes 4-bit"),
        ("weight.quant_state.bitsandbytes__nf4", "bitsandbytes 4-bit"),
        ("weight_scale_inv", "FP8"),
    ],
)
def test_a_quantisers_pack_is_refused_by_its_kind(plain, end, kind):
    rewrite(plain, lambda t: t.update({f"model.layers.0.self_attn.q_proj.{end}": torch.ones(1, dtype=torch.int32)}))
    said = refusal(plain)
    assert "quantised" in said
    assert kind in said


# --- every tensor is used or listed ---


def test_rope_frequencies_of_the_file_are_listed_as_unused(plain):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(plain, lambda tensors: tensors.update({name: torch.ones(4)}))
    (note,) = folder_checkpoint(plain).notes
    assert note.startswith("Not read")
    assert name in note


@pytest.mark.parametrize("same", [True, False])
def test_a_tied_head_that_the_file_repeats_is_listed_and_compared(tmp_path, same):
    model = reference_rig(tie_word_embeddings=True)
    path = save_folder(model, tmp_path / "rig")
    rewrite(path, lambda t: t.update({"lm_head.weight": t[EMBED].clone() if same else t[EMBED] + 1}))
    checkpoint = folder_checkpoint(path)
    (note,) = checkpoint.notes
    assert "lm_head.weight" in note
    assert ("repeats the embedding" in note) == same
    assert ("differ" in note) != same
    assert (logits(path) - expected_logits(model)).abs().max() < 2e-5


def test_a_tied_table_that_is_stored_as_the_head_serves_as_both(tmp_path):
    model = reference_rig(tie_word_embeddings=True)
    path = save_folder(model, tmp_path / "rig")
    rewrite(path, lambda tensors: tensors.update({"lm_head.weight": tensors.pop(EMBED)}))
    (note,) = folder_checkpoint(path).notes
    assert "stored once" in note
    assert (logits(path) - expected_logits(model)).abs().max() < 2e-5


def test_a_missing_head_of_an_untied_model_is_an_error_that_names_it(plain):
    rewrite(plain, lambda tensors: tensors.pop("lm_head.weight"))
    assert "lacks lm_head.weight" in refusal(plain)


@pytest.mark.parametrize(("size", "says"), [(256, "ids 256 to 299 have no text"), (320, "from 300 on is refused")])
def test_a_vocabulary_of_another_size_than_the_models_is_told(tmp_path, size, says):
    model = reference_rig(vocab_size=300, bos_token_id=None, eos_token_id=None)
    path = save_folder(model, tmp_path / "rig", byte_tokenizer(max(256, size - 20), special=()))
    tokenizer = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    known = len(tokenizer["model"]["vocab"])
    edit_json(
        path / "tokenizer.json",
        lambda raw: raw["added_tokens"].extend(
            {"id": id, "content": f"<{id}>", "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for id in range(known, size)
        ),
    )
    (note,) = folder_checkpoint(path).notes
    assert says in note


def test_a_tokenizer_of_another_format_is_named(plain):
    (plain / "tokenizer.model").write_bytes(b"sentencepiece")
    checkpoint = folder_checkpoint(plain)
    assert checkpoint.tokenizer is None
    assert any("tokenizer.model" in note for note in checkpoint.notes)


# --- what stands where a file should be ---


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", INDEX])
def test_a_pointer_of_git_lfs_is_named_whatever_file_it_stands_for(plain, name):
    (plain / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98362432\n")
    said = refusal(plain)
    assert name in said
    assert "git lfs pull" in said


def test_a_folder_with_other_weights_says_what_it_holds(plain):
    (plain / "model.safetensors").rename(plain / "weights.safetensors")
    assert "weights.safetensors" in refusal(plain)
    (plain / "weights.safetensors").rename(plain / "adapter_model.safetensors")
    assert "adapter" in refusal(plain)


def test_a_header_that_is_longer_than_its_file_is_a_sentence(plain):
    whole = (plain / "model.safetensors").read_bytes()
    (plain / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + whole[8:])
    assert "model.safetensors cannot be read" in refusal(plain)


def test_weights_that_vanish_after_the_check_are_a_sentence(plain):
    checkpoint = folder_checkpoint(plain)
    (plain / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        build(checkpoint)


def test_a_loaded_model_does_not_change_with_its_file(plain):
    model = load(plain)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    file = plain / "model.safetensors"
    with file.open("r+b") as opened_file:
        opened_file.seek(file.stat().st_size // 2)
        opened_file.write(b"\xff" * (file.stat().st_size // 2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# --- does it fit ---


def machine(root: Path, available: int, groups: dict[str, str], files: dict[str, str]) -> Path:
    """A /proc and a /sys: MemAvailable in bytes, the process's groups by controllers, files below sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available // 1024} kB\n")
    lines = [f"{i}:{kinds}:{path}" for i, (kinds, path) in enumerate(groups.items())]
    (root / "proc/self/cgroup").write_text("\n".join(lines))
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


GIB = 1 << 30
V2 = {"a/memory.max": f"{3 * GIB}\n", "a/memory.current": f"{2 * GIB}\n"}


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        ({}, {}, 8 * GIB),
        ({"": "/a"}, V2, GIB),
        ({"": "/a"}, V2 | {"a/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 0\n"}, 2 * GIB),
        ({"": "/a"}, V2 | {"a/memory.max": "max"}, 8 * GIB),
        ({"": "/a/b"}, V2 | {"a/b/memory.max": "max", "a/b/memory.current": "1"}, GIB),  # the limit is one level up
        (
            {"": "/elsewhere"},
            {"memory.max": str(GIB), "memory.current": "0"},
            GIB,
        ),  # mounted as the root in a container
        ({"": "/a"}, V2 | {"a/memory.current": str(4 * GIB)}, 0),
        (
            {"cpu": "/", "memory": "/docker/x"},
            {
                "memory/docker/x/memory.limit_in_bytes": str(4 * GIB),
                "memory/docker/x/memory.usage_in_bytes": str(3 * GIB),
                "memory/docker/x/memory.stat": f"total_inactive_file {GIB}\ninactive_file 7\n",
            },
            2 * GIB,
        ),
    ],
)
def test_free_memory_is_the_least_of_what_the_machine_and_its_limits_leave(tmp_path, groups, files, free):
    assert fits.free_bytes("cpu", machine(tmp_path, 8 * GIB, groups, files)) == free


def test_a_system_that_does_not_say_refuses_nothing(tmp_path, monkeypatch):
    assert fits.free_bytes("cpu", tmp_path) is None
    monkeypatch.setattr(fits, "free_bytes", lambda device: None)
    assert check_fits(LlamaConfig(num_hidden_layers=1000)) > 1 << 39


def test_this_machine_says_how_much_is_free():
    total = next(
        int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines() if "MemT" in line
    )
    assert 0 < fits.free_bytes() <= total


def test_what_cannot_fit_is_refused_with_both_numbers_before_a_weight_is_read(plain, monkeypatch):
    checkpoint = open_checkpoint(plain)
    needed = checkpoint.config.weight_bytes("float32")
    monkeypatch.setattr(fits, "free_bytes", lambda device: needed)
    assert check_fits(checkpoint) == needed  # exactly full fits
    monkeypatch.setattr(fits, "free_bytes", lambda device: 5 << 20)
    large = checkpoint.config.with_(vocab_size=1 << 20)
    with pytest.raises(CheckpointError, match=r"256 MiB in float32.* 5 MiB of free") as refused:
        check_fits(large)
    assert "bfloat16" in str(refused.value)

    def numbers():
        raise AssertionError("a weight was read")
        yield

    checkpoint.config, checkpoint.tensors = large, numbers()
    with pytest.raises(CheckpointError, match="free memory"):
        build(checkpoint)


# --- memory ---


def test_loading_peaks_at_the_models_own_bytes_and_little_more(tmp_path):
    found = measure(write_folder(tmp_path, layers=6, shards=2), "float32")
    assert found["bytes"] == 4 * 100_414_464  # in the file, half of it
    assert 0.9 * found["bytes"] < found["peak"] <= 1.3 * found["bytes"] + 200 * MIB
    assert found["peak"] < 1.45 * found["bytes"], "the stored half beside the model would make it 1.5 and more"


# --- progress, and loading once ---


def test_progress_grows_to_one_and_what_it_raises_ends_the_load(plain):
    told = []
    load(plain, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert told[0] < 0.5

    class StopError(BaseException):
        pass

    def stop(share):
        raise StopError

    with pytest.raises(StopError):
        load(plain, progress=stop)


def test_five_who_ask_at_once_load_once_and_a_failed_load_is_tried_again(sharded, monkeypatch):
    shelf, calls, together = Shelf(1 << 30, lambda model: model.nbytes()), [], threading.Barrier(5)
    real = checkpoints.build
    shard = shard_of(sharded, NORM)
    shard.rename(sharded / "away")

    def make():
        checkpoint = open_checkpoint(sharded)
        calls.append(1)
        return real(checkpoint)

    with pytest.raises(CheckpointError, match="lacks"):
        shelf.get_or_make("rig", make)
    (sharded / "away").rename(shard)

    def ask(_):
        together.wait()
        return shelf.get_or_make("rig", make)

    with ThreadPoolExecutor(5) as pool:
        models = list(pool.map(ask, range(5)))
    assert len(calls) == 1
    assert all(model is models[0] for model in models)
    assert shelf.nbytes() == models[0].nbytes()


def test_a_config_error_comes_before_the_weights_are_opened(plain, opened):
    edit_json(plain / "config.json", lambda raw: raw.update(model_type="gemma3"))
    with pytest.raises(ConfigError, match="gemma3"):
        folder_checkpoint(plain)
    assert "model.safetensors" not in opened
