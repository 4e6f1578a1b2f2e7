"""The model in the box: what its card says it has learnt, it has. transformers reads the same file beside us."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from random import Random
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import LlamaForCausalLM

from llama_core import load, run
from scripts.tiny_llama import card, corpus, measure
from scripts.tiny_llama.train import first_weights, save, tiny_config

FOLDER = Path(__file__).parent.parent / "assets" / "tiny-llama"
SAMPLES = json.loads((FOLDER / "samples.json").read_text(encoding="utf-8"))
README = (FOLDER / "README.md").read_text(encoding="utf-8")
PERIOD = 50


@pytest.fixture(scope="module")
def model():
    return load(FOLDER)


@pytest.fixture(scope="module")
def reference():
    return LlamaForCausalLM.from_pretrained(FOLDER, attn_implementation="eager", dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def found(model):
    return measure.measure(model)


@pytest.fixture(scope="module")
def repeats(reference, model):
    """Attention and losses that transformers gives on random tokens said twice: [rows L Hq T T] and [rows T-1]."""
    generator = np.random.default_rng(7)
    blocks = generator.integers(2, model.config.vocab_size, (8, PERIOD))
    ids = torch.tensor(np.concatenate([np.zeros((8, 1), dtype=np.int64), blocks, blocks], axis=1))
    with torch.no_grad():
        out = reference(ids, output_attentions=True)
    losses = torch.nn.functional.cross_entropy(out.logits[:, :-1].mT, ids[:, 1:], reduction="none")
    return torch.stack(out.attentions, dim=1).numpy(), losses.numpy()


# --- the file ---


def test_it_is_a_true_llama_that_fits_into_a_repository(model):
    raw = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert (raw["model_type"], raw["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert model.config.num_attention_heads >= 8
    assert model.config.num_key_value_heads >= 2
    assert model.config.num_hidden_layers >= 4
    assert (model.config.bos_token_id, model.config.eos_token_id) == (0, 1)
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 5_000_000
    assert {file.name for file in FOLDER.iterdir()} == {
        *("README.md", "config.json", "model.safetensors", "samples.json", "tokenizer.json")
    }


def test_transformers_reads_the_same_numbers(model, reference):
    ids = [0, *Random(1).choices(range(model.config.vocab_size), k=model.config.max_position_embeddings - 1)]
    for each in (ids, list(run(model, SAMPLES[0]["prompt"]).ids)):
        with torch.no_grad():
            expected = reference(torch.tensor([each])).logits[0].numpy()
        assert np.abs(run(model, each)["logits"][0] - expected).max() < 2e-5


@pytest.mark.parametrize(
    "text", ["Mia gave", " two  spaces\n\tand\r\n", "東京 naïve 🦙", "([{}])", "\x00\x7f‹E6›", "1234"]
)
def test_any_text_can_be_written_and_comes_back_as_it_was(model, text):
    ids = model.tokenizer.encode(text)
    assert ids[0] == model.config.bos_token_id
    assert model.tokenizer.decode(ids) == "<s>" + text
    assert max(ids) < model.config.vocab_size == model.tokenizer.vocab_size


# --- what it has learnt ---


def test_one_head_looks_at_what_followed_the_last_time(repeats, found):
    maps, _ = repeats
    at = found.induction
    rows = np.arange(PERIOD + 1, 2 * PERIOD + 1)
    weight = maps[:, at.layer, at.head, rows, rows - PERIOD + 1].mean()
    assert weight >= 0.5
    assert weight == pytest.approx(at.weight, abs=0.05)  # two draws of random tokens


def test_one_head_looks_at_the_token_before(repeats, found):
    maps, _ = repeats
    at = found.previous
    rows = np.arange(2, 2 * PERIOD + 1)
    weight = maps[:, at.layer, at.head, rows, rows - 1].mean()
    assert weight >= 0.4
    assert weight == pytest.approx(at.weight, abs=0.05)


def test_the_second_time_is_no_surprise(repeats, found):
    _, losses = repeats
    first, second = losses[:, :PERIOD].mean(), losses[:, PERIOD:].mean()
    assert second <= 0.3 * first
    assert (first, second) == pytest.approx((found.loss_first_half, found.loss_second_half), rel=0.15)


def test_it_tells_stories_of_names_that_never_met(found):
    assert found.story_loss <= 1.0  # of ln 1024 = 6.9
    assert found.story_loss <= found.story_loss_known_pairs + 0.1
    assert found.answers["thanks"] >= 0.9
    assert found.answers["what"] >= 0.9


def test_it_closes_brackets(found):
    assert found.brackets >= 0.95


def test_what_was_kept_back_is_in_no_text_of_training():
    rng = Random(3)
    for _ in range(300):
        text = corpus.story(rng)
        names = {name for name in corpus.NAMES if re.search(rf"\b{name}\b", text)}
        assert not any(corpus.kept_back(a, b) for a in names for b in names if a < b), text
        for a, b, total in re.findall(r"(\d+) \+ (\d+) = (\d+)", corpus.sums(rng)):
            assert int(a) + int(b) == int(total)
            assert not corpus.sum_kept_back(int(a), int(b))
    assert sum(corpus.kept_back(a, b) for a in corpus.NAMES for b in corpus.NAMES if a < b) >= 20


# --- the card and the samples ---


def test_the_card_states_these_figures(found):
    said = dict(re.findall(r"^\| (.+) \| ([\d.]+%?) \|$", README, re.MULTILINE))
    now = card.figures(found)
    assert said.keys() == now.keys()
    for what, figure in now.items():
        assert float(said[what].rstrip("%")) == pytest.approx(float(figure.rstrip("%")), rel=0.01, abs=0.011), what


def test_the_card_says_how_the_weights_were_made(model):
    with safe_open(FOLDER / "model.safetensors", framework="np") as file:
        made = file.metadata()
    assert int(made["seconds"]) <= 30 * 60
    assert f"{int(made['seconds']) / 60:.0f} minutes" in README
    assert f"{int(made['steps']):,} steps" in README
    assert f"{model.config.parameter_count():,} parameters" in README
    assert "make train" in README


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["title"])
def test_a_sample_shows_what_its_sentence_says(model, reference, sample):
    trace = run(model, sample["prompt"])
    layer = int(sample["at"].removesuffix(".weights"))
    with torch.no_grad():
        maps = reference(torch.tensor([trace.ids]), output_attentions=True).attentions
    weights = maps[layer][0, sample["head"]].numpy()
    weight = weights[sample["token"], sample["key"]]
    assert weight == pytest.approx(sample["weight"], abs=0.02)
    assert trace[sample["at"]][0, sample["head"], sample["token"], sample["key"]] == pytest.approx(weight, abs=1e-4)
    assert sample["look"].startswith(f"Layer {layer}, head {sample['head']}: ")
    assert shows(sample, trace, weights, lambda id: model.tokenizer.decode([id]))


def shows(sample, trace, weights, says) -> bool:
    """Whether the claim behind the title is so, from the prompt's own text and the weights [T T]."""
    token, key, ids = sample["token"], sample["key"], trace.ids
    weight = weights[token, key]
    text = [piece.text.strip("·") for piece in trace.tokens]
    answer = trace.next_tokens()[0][0]
    # Apart from the sink, it is the brightest cell in its row.
    brightest = weight >= weights[token, 1:].max()
    match sample["title"]:
        case "A name comes back":
            said_before = text.count("Mia") >= 2 and 20 <= len(ids) <= 40
            return brightest and weight >= 0.4 and ids[key] == answer and text[key] == "Mia" and said_before
        case "The token before":
            return key == token - 1 and np.diagonal(weights, -1)[1:].mean() >= 0.4
        case "The second time":
            return brightest and weight >= 0.5 and ids[key - 1] == ids[token] and ids[key] == answer
        case "Close what was opened":
            due = still_open(sample["prompt"])
            closer = {"(": ")", "[": "]", "{": "}"}[sample["prompt"][due]]
            return brightest and key == due + 1 and trace.tokens[0].special and says(answer) == closer
        case "Who gave what to whom":
            return brightest and text[key] == "Mia" and ids[key] == answer
        case "A sum":
            return brightest and text[key] in ("7", "5") and weight >= 0.3
        case "A place to rest":
            return key == 0 and weights[1:, 0].mean() >= 0.5
    return False


def still_open(text: str) -> int:
    """Where the bracket stands that has to be closed next: what is left when closed pairs are blotted out."""
    pair = re.compile(r"\( *\)|\[ *\]|\{ *\}")
    while pair.search(text):
        text = pair.sub(lambda found: " " * len(found[0]), text)
    return len(text.rstrip()) - 1


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["title"])
def test_the_card_links_to_where_a_sample_is(sample):
    (link,) = re.findall(rf"\[{re.escape(sample['title'])}\]\((\S+)\)", README)
    asked = parse_qs(urlsplit(link).query, strict_parsing=True)
    assert urlsplit(link).path == "/Step_by_step"
    assert asked == {
        "model": ["tiny-llama"],
        "prompt": [sample["prompt"]],
        "at": [sample["at"]],
        "head": [str(sample["head"])],
        "token": [str(sample["token"])],
    }
    assert sample["look"] in README


def test_samples_are_what_the_script_finds_in_the_file(model):
    for made, shipped in zip(card.make_samples(model), SAMPLES, strict=True):
        assert asdict(made) | {"weight": None} == shipped | {"weight": None}
        assert made.weight == pytest.approx(shipped["weight"], abs=0.02)


# --- it can be made again ---


def test_the_shipped_files_come_from_this_code(tmp_path):
    tokenizer = corpus.train_tokenizer()
    save(first_weights(tiny_config(tokenizer)), tokenizer, tmp_path, {"steps": 0})
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name
