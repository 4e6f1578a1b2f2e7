"""Damaged files by the hundreds, from a fixed seed: a model with the right shapes, or one of our sentences.

Every case is a small model whose config, header, index, tokenizer or GGUF was changed at one or a few places, and
which is then opened and built through the public door. A case that takes longer than its alarm, raises
another exception or warns names its number, so that it can be run again alone.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from gguf_rigs import write_gguf
from rigs import byte_tokenizer, gguf_order, reference_rig, save_folder
from safetensors.torch import load_file, save_file

from llama_core.checkpoints import build, open_checkpoint
from llama_core.errors import GlassLlamaError

ALARM = 5  # seconds a case may take; it should take well under one
CASES = 150  # of each kind

VALUES = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31, 2**53 + 1, 2**64, 10**40, -(10**40)),
    *(0.0, 0.5, -1.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", "0", "4", "silu", "llama3", "F32", "a" * 3000, "\x00", "../../etc/passwd", "😀", "\ud800"),
    *([], [1], [[1, 2], [3]], ["a"] * 50, {}, {"a": {"b": [None]}}, {"rope_type": "yarn"}, {"type": "dynamic"}),
]
SCALINGS = [
    {"rope_type": "linear", "factor": 2.0},
    {"type": "dynamic", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 32},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1},
]


class TooLongError(BaseException):
    """A case went on beyond its alarm: not an Exception, so that nothing takes it for a refusal."""


@contextlib.contextmanager
def alarm(case: str) -> Iterator[None]:
    def ring(*_):
        raise TooLongError(f"{case} went on for over {ALARM} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, ALARM)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(path: Path, case: str) -> bool:
    """Whether the model was read; anything but that or one of our errors fails the test."""
    with alarm(case), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            checkpoint = open_checkpoint(path)
            model = build(checkpoint)
            found = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
            assert found == checkpoint.config.parameter_shapes(), f"{case}: other shapes than the config's"
            assert all(note.endswith(".") for note in checkpoint.notes), f"{case}: {checkpoint.notes}"
        except GlassLlamaError as error:
            said = str(error)
            assert len(said) > 20, f"{case}: {said!r} is no sentence"
            assert len(said) < 3000, f"{case}: a sentence of {len(said)} letters"
            return False
        except (Exception, TooLongError) as error:
            raise AssertionError(f"{case} raised {type(error).__name__}: {error}") from error
    assert not warned, f"{case} warned: {warned[0].message}"
    return True


def fuzz(kind: str, path: Path, change: Callable[[random.Random], None], cases: int = CASES) -> None:
    """Run all cases of a kind; some must have been refused and some read, or the changes show nothing."""
    read = 0
    for number in range(cases):
        dice = random.Random(f"{kind} {number}")
        change(dice)
        read += outcome(path, f"{kind}, case {number}")
    assert 0 < read < cases, f"{kind}: {read} of {cases} were read"


# --- changes ---


def places(value, path: tuple = ()) -> Iterator[tuple]:
    """The address of every value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


def change_value(raw: dict, dice: random.Random) -> dict:
    """A JSON object with one to three values changed, moved, doubled or taken out."""
    raw = json.loads(json.dumps(raw))
    for _ in range(dice.choice((1, 1, 2, 3))):
        spots = list(places(raw))
        if not spots:
            break
        *way, key = dice.choice(spots)
        home = raw
        for step in way:
            home = home[step]
        roll = dice.random()
        if roll < 0.2:
            del home[key]
        elif roll < 0.3 and isinstance(home, dict):
            home[f"{key}_"] = home.pop(key)
        elif roll < 0.4 and isinstance(home[key], (int, float)) and not isinstance(home[key], bool):
            home[key] = home[key] * dice.choice((2, -1, 0.5, 10**6)) + dice.choice((0, 1))
        elif roll < 0.5:
            home[key] = [home[key]]
        else:
            home[key] = dice.choice(VALUES)
    return raw


def change_text(text: str, dice: random.Random) -> bytes:
    """The bytes of a JSON text, damaged as bytes."""
    data, roll = bytearray(text.encode("utf-8", "surrogatepass")), dice.random()
    at = dice.randrange(len(data))
    if roll < 0.3:
        return bytes(data[:at])
    if roll < 0.5:
        data[at] ^= 1 << dice.randrange(8)
        return bytes(data)
    if roll < 0.6:
        return bytes(data[:at]) + b"\xff\xfe" + bytes(data[at:])
    if roll < 0.7:
        return b'{"a":' * 20_000 + bytes(data)
    if roll < 0.8:
        return b"\xef\xbb\xbf" + bytes(data)
    if roll < 0.9:
        return bytes(data).replace(b"{", b'{"model_type": "llama", "model_type": "qwen2",', 1)
    return bytes(data).replace(b"2", b"9" * 5000, 1)


def changed(raw: dict, dice: random.Random) -> bytes:
    text = json.dumps(change_value(raw, dice))
    return text.encode("utf-8", "surrogatepass") if dice.random() < 0.7 else change_text(json.dumps(raw), dice)


def header_of(data: bytes) -> tuple[dict, bytes]:
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def with_header(text: bytes, numbers: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text + numbers


def change_header(data: bytes, dice: random.Random) -> bytes:
    """A safetensors file with its header, its length or its offsets changed."""
    header, numbers = header_of(data)
    names = [name for name in header if name != "__metadata__"]
    roll, name, other = dice.random(), dice.choice(names), dice.choice(names)
    if roll < 0.25:
        return with_header(changed(header, dice), numbers)
    if roll < 0.4:  # two tensors share their bytes, or change places
        header[name]["data_offsets"], header[other]["data_offsets"] = (
            header[other]["data_offsets"],
            header[dice.choice((name, other))]["data_offsets"],
        )
    elif roll < 0.5:
        header[name]["shape"] = header[name]["shape"][::-1] + dice.choice(([], [1], [0], [2**62, 4]))
    elif roll < 0.6:
        header[name]["dtype"] = dice.choice(("F64", "F16", "BF16", "I8", "F8_E4M3", "Q4", "", "BOOL"))
    elif roll < 0.7:
        return struct.pack("<Q", dice.choice((0, 1, 2**63, 2**64 - 1, len(data), 100_000_001))) + data[8:]
    elif roll < 0.8:
        return data[: dice.randrange(len(data))]
    elif roll < 0.9:
        damaged = bytearray(data)
        damaged[dice.randrange(len(data) - len(numbers))] = dice.randrange(256)
        return bytes(damaged)
    else:
        return data + bytes(dice.randrange(1, 99))
    return with_header(json.dumps(header).encode(), numbers)


# --- the kinds ---


@pytest.fixture(scope="module")
def rig():
    return reference_rig()


def test_configs(rig, tmp_path):
    path = save_folder(rig, tmp_path / "rig", byte_tokenizer())
    raw = json.loads((path / "config.json").read_text(encoding="utf-8"))
    raw |= {"sliding_window": None, "torch_dtype": "float32", "layer_types": None, "head_dim": 8}

    def change(dice: random.Random) -> None:
        base = raw | dice.choice(({}, {"rope_scaling": dice.choice(SCALINGS)}, {"model_type": "mistral"}))
        (path / "config.json").write_bytes(changed(base, dice))

    fuzz("config.json", path, change, 2 * CASES)


def test_metas_params(rig, tmp_path):
    raw = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "hidden_dim": 48, "norm_eps": 1e-6}
    raw |= {"rope_theta": 10000.0, "vocab_size": -1, "use_scaled_rope": True, "sliding_window": 8, "multiple_of": 16}
    heads = {"q_proj": 4, "k_proj": 2}
    tensors = {
        name.removeprefix("model."): tensor[gguf_order(len(tensor), heads[part])] if part in heads else tensor
        for name, tensor in rig.state_dict().items()
        for part in [name.split(".")[-2]]
    }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "consolidated.safetensors")

    def change(dice: random.Random) -> None:
        (tmp_path / "params.json").write_bytes(changed(raw, dice))

    raw["vocab_size"] = 64
    fuzz("params.json", tmp_path, change)


def test_safetensors_headers(rig, tmp_path):
    path = save_folder(rig, tmp_path / "rig")
    whole = (path / "model.safetensors").read_bytes()
    fuzz(
        "safetensors",
        path,
        lambda dice: (path / "model.safetensors").write_bytes(change_header(whole, dice)),
        2 * CASES,
    )


def test_indexes(rig, tmp_path):
    path = tmp_path / "rig"
    rig.save_pretrained(path, max_shard_size="20KB")
    index = path / "model.safetensors.index.json"
    raw, shards = (
        json.loads(index.read_text(encoding="utf-8")),
        sorted(file.name for file in path.glob("*.safetensors")),
    )

    def change(dice: random.Random) -> None:
        if dice.random() < 0.4:
            index.write_bytes(changed(raw, dice))
            return
        mapped = dict(raw["weight_map"])
        name = dice.choice(list(mapped))
        mapped[name] = dice.choice(
            (*shards, "../x.safetensors", "/etc/passwd", "", ".", "a" * 300, "config.json", mapped[name])
        )
        if dice.random() < 0.3:
            mapped[dice.choice(("extra.weight", "lm_head.bias", "a" * 5000))] = dice.choice(shards)
        index.write_text(json.dumps({"weight_map": mapped}), encoding="utf-8")

    fuzz("index", path, change)


def test_shards(rig, tmp_path):
    path = tmp_path / "rig"
    rig.save_pretrained(path, max_shard_size="20KB")
    whole = {file: file.read_bytes() for file in sorted(path.glob("*.safetensors"))}

    def change(dice: random.Random) -> None:
        for file, data in whole.items():
            file.write_bytes(data)
        file = dice.choice(list(whole))
        file.write_bytes(change_header(whole[file], dice))
        if dice.random() < 0.2:
            one, other = dice.sample(list(whole), 2)
            one.write_bytes(whole[other])

    fuzz("shards", path, change)


def test_tensors_of_other_names_and_shapes(rig, tmp_path):
    path = save_folder(rig, tmp_path / "rig")
    whole = load_file(path / "model.safetensors")

    def change(dice: random.Random) -> None:
        tensors = dict(whole)
        name, roll = dice.choice(list(tensors)), dice.random()
        if roll < 0.2:
            tensors[name.replace("q_proj", "qkv_proj").replace("gate_proj", "gate_up_proj") + "x"[: roll < 0.05]] = (
                tensors.pop(name)
            )
        elif roll < 0.4:
            new = (
                name.removeprefix("model.")
                if roll < 0.3
                else name.replace("layers.0", dice.choice(("layers.00", "layers.9")))
            )
            tensors[new] = tensors.pop(name)
        elif roll < 0.6:
            tensors[name] = dice.choice((torch.zeros(()), torch.zeros(0), torch.zeros(1, 1, 1), tensors[name][:1]))
        elif roll < 0.8:
            dtype = dice.choice((torch.int64, torch.bool, torch.float8_e5m2, torch.complex64, torch.bfloat16))
            tensors[name] = tensors[name].to(dtype)
        else:
            tensors[
                dice.choice(
                    ("rope.freqs", "a.rotary_emb.inv_freq", "x.qweight", "tok_embeddings.weight", "x", "é.weight")
                )
            ] = torch.zeros(2)
        (path / "model.safetensors").unlink()
        save_file({key: tensor.clone() for key, tensor in tensors.items()}, path / "model.safetensors")

    fuzz("tensors", path, change)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_tokenizers(rig, tmp_path, name):
    path = save_folder(rig, tmp_path / "rig", byte_tokenizer(270, special=("<s>", "</s>")))
    settings = {"add_bos_token": True, "add_eos_token": False, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    settings |= {"added_tokens_decoder": {"0": {"content": "<s>", "special": True, "lstrip": False}}, "padding": None}
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    raw = json.loads((path / name).read_text(encoding="utf-8"))
    fuzz(name, path, lambda dice: (path / name).write_bytes(changed(raw, dice)))


@pytest.mark.parametrize("reads_text", [False, True])
def test_ggufs(rig, tmp_path, reads_text):
    path = write_gguf(rig, tmp_path / "rig.gguf", tokenizer=byte_tokenizer() if reads_text else None)
    whole = path.read_bytes()
    header = whole.index(b"blk.0.attn_q.weight") + 400
    numbers = [struct.pack("<Q", n) for n in (0, 1, 2, 2**31, 2**40, 2**63, 2**64 - 1)]

    def change(dice: random.Random) -> None:
        data, roll = bytearray(whole), dice.random()
        for _ in range(dice.choice((1, 1, 2, 5))):
            at = dice.randrange(4, header)
            if roll < 0.5:
                data[at] = dice.randrange(256)
            elif roll < 0.7:
                data[at : at + 8] = dice.choice(numbers)
            elif roll < 0.8:
                data[at:at] = bytes(dice.randrange(1, 9))
            elif roll < 0.9:
                del data[at : at + dice.randrange(1, 9)]
        if roll >= 0.9:
            del data[dice.randrange(len(data)) :]
        path.write_bytes(data)

    fuzz(f"gguf, text {reads_text}", path, change)


def test_whole_folders_of_the_wrong_things(tmp_path):
    dice = random.Random("folders")
    names = ["config.json", "params.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"]
    contents = [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\x80\x04.",
        b"PK\x03\x04",
        b"GGUF",
        b"\xff" * 64,
        b'{"model_type": "llama"}',
    ]
    for number in range(CASES):
        path = tmp_path / "x"
        path.mkdir()
        for name in dice.sample(names, dice.randrange(len(names) + 1)):
            if dice.random() < 0.1:
                (path / name).mkdir()
            elif dice.random() < 0.1:
                (path / name).symlink_to(dice.choice((name, "config.json", "/etc/passwd", "nowhere")))
            else:
                (path / name).write_bytes(dice.choice(contents))
        assert not outcome(path, f"folder {number}")
        shutil.rmtree(path)
