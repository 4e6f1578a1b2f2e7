"""Text, ids and pieces: every id keeps its place, and nothing on a label misleads."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from rigs import byte_tokenizer
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from llama_core.checkpoints.gguf_file import gguf_checkpoint
from llama_core.errors import TokenizerError
from llama_core.tokenizer import PRE_TOKENIZERS, Tokenizer, byte_alphabet, check_ids, parse_ids

ROOT = Path(__file__).parent.parent
SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
REFERENCE = json.loads((ROOT / "tests/reference/smollm2-135m-q4_1.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    assert SMOLLM2.is_file(), "The trained model is missing: run scripts/fetch_model.py first."
    return gguf_checkpoint(SMOLLM2).tokenizer


@pytest.fixture(scope="module")
def bytes_only() -> Tokenizer:
    """256 bytes without merges, and one control token."""
    backend = byte_tokenizer()
    backend.add_special_tokens([AddedToken("<|eot_id|>", special=True)])
    return Tokenizer(backend)


def labels(tokenizer: Tokenizer, text: str, special: bool = True) -> list[str]:
    return [piece.text for piece in tokenizer.pieces(tokenizer.encode(text, special))]


def gguf_fields(**changes) -> dict:
    fields = {"model": "gpt2", "pre": "gpt-2", "tokens": [*byte_alphabet(), "<s>", "</s>"], "merges": []}
    fields |= {"token_type": [1] * 256 + [3, 3], "bos_token_id": 256, "eos_token_id": 257} | changes
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


# --- the trained model ---


@pytest.mark.parametrize(("text", "ids"), [("prompt", "ids"), ("text", "text_ids")])
def test_smollm2_from_gguf_gives_the_reference_ids(smollm2, text, ids):
    assert smollm2.encode(REFERENCE[text]) == REFERENCE[ids]


def test_smollm2_decodes_what_the_reference_generated(smollm2):
    assert smollm2.decode(REFERENCE["greedy_24_ids"]) == REFERENCE["greedy_24"]


def test_smollm2_shows_visible_spaces_and_counts_its_vocabulary(smollm2):
    assert labels(smollm2, REFERENCE["prompt"]) == ["The", "·capital", "·of", "·France", "·is"]
    assert smollm2.vocab_size == 49152
    assert (smollm2.bos_token_id, smollm2.eos_token_id) == (1, 2)
    assert {0, 1, 2} <= smollm2.special_ids


def test_a_token_that_holds_a_space_and_a_part_of_a_character_says_both(smollm2):
    assert labels(smollm2, "in 東京") == ["in", "·東 1/3", "東 2/3", "東 3/3", "京 1/2", "京 2/2"]


# --- pieces ---


@pytest.mark.parametrize(("text", "count"), [("a b", 3), ("東京", 6), ("👍🏽", 8), ("é", 2)])
def test_bytes_come_back_as_the_text(bytes_only, text, count):
    ids = bytes_only.encode(text)
    assert len(ids) == count == len(bytes_only.pieces(ids))
    assert bytes_only.decode(ids) == text


def test_parts_of_a_character_are_counted(bytes_only):
    assert labels(bytes_only, "東京") == ["東 1/3", "東 2/3", "東 3/3", "京 1/3", "京 2/3", "京 3/3"]
    assert labels(bytes_only, "é") == ["é 1/2", "é 2/2"]
    assert labels(bytes_only, "👍🏽") == [f"{c} {k}/4" for c in "👍🏽" for k in (1, 2, 3, 4)]
    assert not any(piece.whole for piece in bytes_only.pieces(bytes_only.encode("東")))


def test_a_space_a_newline_and_a_tab_are_visible(bytes_only):
    assert labels(bytes_only, "a b\n\tc\r") == ["a", "·", "b", "⏎", "⇥", "c", "␍"]


def test_invisible_characters_and_look_alikes_of_the_signs_are_spelt_out():
    tokenizer = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"\u200d": 0, "·": 1, "\ufffd": 2, "\x00": 3})))
    assert [p.text for p in tokenizer.pieces([0, 1, 2, 3])] == ["‹U+200D›", "‹U+00B7›", "‹U+FFFD›", "‹U+0000›"]


def test_stray_bytes_are_hex_and_never_a_replacement_character(bytes_only):
    east = bytes_only.encode("東")
    assert [p.text for p in bytes_only.pieces(east[:2])] == ["‹E6›", "‹9D›"]
    assert bytes_only.decode(east[1:]) == "‹9D›‹B1›"
    assert [p.text for p in bytes_only.pieces([*east[:1], *bytes_only.encode("a")])] == ["‹E6›", "a"]


def test_a_control_token_ends_a_character_that_was_cut(bytes_only):
    first, *rest = bytes_only.encode("é")
    pieces = bytes_only.pieces([first, 256, *rest])
    assert [p.text for p in pieces] == ["‹C3›", "<|eot_id|>", "‹A9›"]
    assert [p.special for p in pieces] == [False, True, False]


def test_one_and_a_half_characters_in_a_token_read_as_both():
    signs = {raw: sign for sign, raw in byte_alphabet().items()}
    spelt = "".join(signs[bytes([byte])] for byte in "東京".encode())
    backend = tokenizers.Tokenizer(models.BPE({spelt[:4]: 0, spelt[4:]: 1}, []))
    backend.decoder = decoders.ByteLevel()
    assert [p.text for p in Tokenizer(backend).pieces([0, 1])] == ["東 + 京 1/2", "京 2/2"]


def test_ids_without_a_token_are_named_and_keep_their_place(bytes_only):
    assert [p.text for p in bytes_only.pieces([300, 10**12, -1])] == [
        "id 300 (no token)",
        "id 1000000000000 (no token)",
        "id -1 (no token)",
    ]
    assert bytes_only.decode([300]) == ""


def test_markup_in_a_token_stays_letter_for_letter(bytes_only):
    text = "<b>*a*</b>&amp;$x$\"'"
    assert "".join(labels(bytes_only, text)) == text


def test_sentencepiece_spellings_read_as_text():
    backend = tokenizers.Tokenizer(models.BPE({"▁the": 0, "<0xE6>": 1, "<0x9D>": 2, "<0xB1>": 3}, []))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces = Tokenizer(backend).pieces([0, 1, 2, 3])
    assert [p.text for p in pieces] == ["·the", "東 1/3", "東 2/3", "東 3/3"]


# --- control tokens and BOS ---


def test_a_typed_control_token_is_one_token_or_its_letters(bytes_only):
    assert len(bytes_only.encode("a<|eot_id|>b")) == 3
    assert len(bytes_only.encode("a<|eot_id|>b", special=False)) == 12
    assert labels(bytes_only, "a<|eot_id|>b") == ["a", "<|eot_id|>", "b"]


def test_threads_that_differ_in_special_do_not_disturb_each_other(bytes_only):
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(lambda i: len(bytes_only.encode("a<|eot_id|>b", special=i % 2 == 0)), range(400)))
    assert sizes == [3, 12] * 200


def test_bos_is_added_only_when_the_gguf_says_so_and_never_twice():
    silent, asked = (Tokenizer.from_gguf_fields(gguf_fields(add_bos_token=flag)) for flag in (False, True))
    a = silent.encode("a")
    assert len(a) == 1
    assert asked.encode("a") == [256, *a]
    assert asked.encode("<s>a") == [256, *a] == silent.encode("<s>a")
    assert asked.encode("<s>a", special=False)[0] == 256
    assert len(asked.encode("<s>a", special=False)) == 5
    assert asked.encode("<s><s>a") == [256, 256, *a], "typed twice is meant twice"


def test_bos_is_added_when_tokenizer_json_says_so_and_its_truncation_is_ignored(tmp_path):
    backend = byte_tokenizer(258, special=("<s>",))
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json", bos_token_id=0)
    assert tokenizer.encode("<s>a") == tokenizer.encode("a")
    assert tokenizer.encode("a")[0] == 0
    assert tokenizer.decode(tokenizer.encode("a long sentence")) == "<s>a long sentence"


def test_user_defined_tokens_are_not_control_tokens():
    tokenizer = Tokenizer.from_gguf_fields(gguf_fields(token_type=[1] * 256 + [3, 4]))
    assert tokenizer.special_ids == {256}
    assert tokenizer.encode("</s>", special=False) == [257]


# --- how a GGUF cuts text ---


@pytest.mark.parametrize(
    ("pre", "cuts"),
    [
        ("gpt-2", ["I", "'m", " 1234", ",", " ok", "!!", "\n\n", " x"]),
        ("smollm", ["I", "'m", " ", "1", "2", "3", "4", ",", " ok", "!!", "\n\n", " x"]),
        ("llama-bpe", ["I", "'m", " ", "123", "4", ",", " ok", "!!\n\n", " x"]),
        ("qwen2", ["I", "'m", " ", "1", "2", "3", "4", ",", " ok", "!!\n\n", " x"]),
        ("default", ["I", "'", "m", " ", "123", "4", ",", " ok", "!!", "\n\n", " x"]),
    ],
)
def test_each_rule_cuts_text_where_it_should(pre, cuts):
    tokenizer = Tokenizer.from_gguf_fields(gguf_fields(pre=pre))
    signs = tokenizer._backend.pre_tokenizer.pre_tokenize_str("I'm 1234, ok!!\n\n x")
    alphabet = byte_alphabet()
    assert [b"".join(alphabet[c] for c in piece).decode() for piece, _ in signs] == cuts
    assert pre in PRE_TOKENIZERS


@pytest.mark.parametrize("changes", [{"pre": "tekken"}, {"model": "llama"}, {"pre": ["gpt-2"]}])
def test_a_tokenizer_we_do_not_know_is_refused_by_name(changes):
    with pytest.raises(TokenizerError, match=r"tekken|llama|gpt-2"):
        Tokenizer.from_gguf_fields(gguf_fields(**changes))


@pytest.mark.parametrize(
    "changes", [{"merges": ["x y z"]}, {"tokens": 5}, {"bos_token_id": 10**12}, {"merges": ["zz q"]}]
)
def test_a_broken_gguf_vocabulary_is_a_sentence(changes):
    with pytest.raises(TokenizerError, match="vocabulary"):
        Tokenizer.from_gguf_fields(gguf_fields(add_bos_token=True, **changes))


# --- refusals ---


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "1.0"}', "not json"])
def test_a_bad_tokenizer_json_is_a_sentence(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


def test_half_a_surrogate_pair_is_a_sentence(bytes_only):
    with pytest.raises(TokenizerError, match="surrogate"):
        bytes_only.encode("a\ud83d")


def test_a_word_outside_a_closed_vocabulary_is_a_sentence():
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(TokenizerError, match="cannot encode"):
        Tokenizer(backend).encode("a b")


def test_ids_are_read_with_commas_spaces_or_brackets():
    assert parse_ids("10,20,30,40,50", 64) == [10, 20, 30, 40, 50]
    assert parse_ids(" [0, 63]\n", 64) == [0, 63]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no token ids"),
        (" , ", "no token ids"),
        ("1,two", "'two' is not a token id"),
        ("1.5", "'1.5' is not a token id"),
        ("9" * 5000, "is not a token id"),
        ("٣", "is not a token id"),
        ("3 64", "Token id 64 at position 1 .* 64 ids, 0 to 63"),
        ("-1", "Token id -1 .* 64 ids"),
    ],
)
def test_ids_that_cannot_be_are_named(text, says):
    with pytest.raises(TokenizerError, match=says):
        parse_ids(text, 64)


def test_an_id_beyond_the_table_names_both_sizes():
    with pytest.raises(TokenizerError, match=r"id 64 .* 64 ids.* knows 65 ids"):
        check_ids([1, 64], 64, tokenizer_size=65)
