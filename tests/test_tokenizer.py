"""Text, ids and pieces: every id keeps its place, and nothing on a label misleads."""

import gc
import json
import pickle
import re
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
import torch
from gguf_rigs import tokenizer_fields
from rigs import byte_tokenizer, reference_rig, save_folder
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer
from transformers.integrations.gguf import convert_gguf_tokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS, GGUF_TOKENIZER_MAPPING

from llama_core import load, run
from llama_core.checkpoints.gguf_file import gguf_checkpoint
from llama_core.checkpoints.gguf_tokenizer import RULES, merges_of, read_tokenizer
from llama_core.config import LlamaConfig
from llama_core.errors import RunError, TokenizerError
from llama_core.tokenizer import KEPT, Tokenizer, byte_alphabet, check_ids, parse_ids

ROOT = Path(__file__).parent.parent
SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
REFERENCE = json.loads((ROOT / "tests/reference/smollm2-135m-q4_1.json").read_text(encoding="utf-8"))
SENTENCEPIECE = json.loads((ROOT / "tests/reference/sentencepiece-bpe.json").read_text(encoding="utf-8"))


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


def from_gguf(**changes) -> Tokenizer:
    tokenizer, notes = read_tokenizer(gguf_fields(**changes))
    assert notes == ()
    return tokenizer


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


def test_threads_share_a_tokenizer_and_do_not_disturb_each_other(bytes_only):
    def encode(i: int) -> list[int]:
        return bytes_only.encode(f"a<|eot_id|>{'b' * (i % 50)}", special=i % 2 == 0)

    serial = [encode(i) for i in range(250)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda _: [encode(i) for i in range(250)], range(16))) == [serial] * 16


def test_bos_is_added_only_when_the_gguf_says_so_and_never_twice():
    silent, asked = (from_gguf(add_bos_token=flag) for flag in (False, True))
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
    tokenizer = from_gguf(token_type=[1] * 256 + [3, 4])
    assert tokenizer.special_ids == {256}
    assert tokenizer.encode("</s>", special=False) == [257]


def test_an_end_token_around_a_text_does_not_eat_a_doubled_letter():
    tokenizer = from_gguf(add_bos_token=False, add_eos_token=True)
    a = tokenizer.encode("a", special=False)[0]
    assert tokenizer.encode("aa") == [a, a, 257]
    assert (tokenizer.adds_bos, tokenizer.adds_eos) == (False, True)
    assert not tokenizer.bos_typed("aa")


def test_a_typed_bos_is_told_only_where_the_settings_would_have_added_it():
    silent, asked = (from_gguf(add_bos_token=flag) for flag in (False, True))
    assert asked.bos_typed("<s>a")
    assert asked.bos_typed("<s>")
    assert not asked.bos_typed("a<s>")
    assert not asked.bos_typed("")
    assert not silent.bos_typed("<s>a")
    assert asked.encode("<s>") == [256]


def test_the_control_tokens_that_a_text_spells_out_are_named_in_order(bytes_only):
    assert bytes_only.control_tokens("a<|eot_id|>b<|eot_id|>") == ("<|eot_id|>", "<|eot_id|>")
    assert bytes_only.control_tokens("a<|eot_id>b") == ()
    assert from_gguf(add_bos_token=True).control_tokens("a</s><s>") == ("</s>", "<s>"), "BOS is added, not spelt out"


def test_an_unknown_character_spells_out_no_control_token():
    backend = tokenizers.Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>"))
    backend.add_special_tokens([AddedToken("<unk>", special=True)])
    assert Tokenizer(backend).encode("ab") == [1, 0]
    assert Tokenizer(backend).control_tokens("ab") == ()
    assert Tokenizer(backend).control_tokens("<unk>b") == ("<unk>",)


# --- how a GGUF cuts text ---

LLAMA3 = ["I", "'m", " ", "123", "4", ",", " ok", "!!\n\n", " x"]
QWEN2 = ["I", "'m", " ", "1", "2", "3", "4", ",", " ok", "!!\n\n", " x"]
GPT2 = ["I", "'m", " 1234", ",", " ok", "!!", "\n\n", " x"]
DIGITS = ["I", "'m", " ", "1", "2", "3", "4", ",", " ok", "!!", "\n\n", " x"]


@pytest.mark.parametrize(
    ("pre", "cuts"),
    [
        ("gpt-2", GPT2),
        ("mellum", GPT2),
        ("trillion", GPT2),
        ("smollm", DIGITS),
        ("minerva-7b", DIGITS),
        ("llama-bpe", LLAMA3),
        ("llama3", LLAMA3),
        ("llama-v3", LLAMA3),
        ("falcon3", LLAMA3),
        ("smaug-bpe", LLAMA3),
        ("qwen2", QWEN2),
        ("deepseek-r1-qwen", QWEN2),
        ("megrez", QWEN2),
        ("qwen35", QWEN2),
        ("tekken", ["I", "'m", " ", "1", "2", "3", "4", ",", " ok", "!!\n\n", " x"]),
        ("gpt-4o", ["I'm", " ", "123", "4", ",", " ok", "!!\n\n", " x"]),
        ("seed-coder", ["I", "'m", " ", "1", "2", "3", "4", ",", " ok", "!!", "\n\n", " x"]),
        ("deepseek-coder", ["I", "'", "m", " ", "1", "2", "3", "4", ",", " ok", "!!", "\n", "\n", " x"]),
        ("default", ["I", "'", "m", " ", "123", "4", ",", " ok", "!!", "\n\n", " x"]),
    ],
)
def test_each_rule_cuts_text_where_it_should(pre, cuts):
    signs = from_gguf(pre=pre)._backend.pre_tokenizer.pre_tokenize_str("I'm 1234, ok!!\n\n x")
    alphabet = byte_alphabet()
    assert [b"".join(alphabet[c] for c in piece).decode() for piece, _ in signs] == cuts


def test_every_rule_was_asked():
    asked = test_each_rule_cuts_text_where_it_should.pytestmark[0].args[1]
    assert [pre for pre, _ in asked] == sorted(RULES, key=[pre for pre, _ in asked].index)


TEXTS = [text for text, _ in SENTENCEPIECE["texts"]] + [
    "HTMLParser IsÉtéÀÇA don't WE'LL l'été",
    "x  \n\n  y\t/\r\n//",
    "١٢٣٤ ½ ⅻ",
    "नमस्ते हि",
]


@pytest.mark.parametrize("pre", [pre for pre in RULES if pre in GGUF_PRE_TOKENIZER_SPLITS] + ["gpt-2"])
def test_transformers_reads_the_same_ids_by_the_same_rule(pre):
    fields = tokenizer_fields(byte_tokenizer(320, special=("<|end|>",)), pre=pre) | {
        "tokenizer.ggml.add_bos_token": False
    }
    named = {key.removeprefix("tokenizer."): value for key, value in fields.items()}
    theirs, _ = convert_gguf_tokenizer(
        "llama", {name: named[key] for key, name in GGUF_TOKENIZER_MAPPING["tokenizer"].items() if key in named}
    )
    ours, _ = read_tokenizer(fields)
    normal = [text for text in TEXTS if "e\u0301" not in text]  # Qwen's own composes; transformers' reading does not
    assert [ours.encode(text) for text in normal] == [theirs.encode(text).ids for text in normal]


def test_qwen2_composes_a_letter_and_its_accent():
    fields = gguf_fields(pre="qwen2")
    assert read_tokenizer(fields)[0].encode("e\u0301") == read_tokenizer(fields)[0].encode("é")


def test_a_rule_that_takes_whole_words_ignores_merges_that_would_not_make_them():
    tokens = [*byte_alphabet(), "<s>", "</s>", "abc"]
    for pre, ids in (("llama-bpe", [256, 258]), ("gpt-2", [ord(c) - 33 for c in "abc"])):
        assert from_gguf(pre=pre, tokens=tokens, token_type=[1] * 256 + [3, 3, 1]).encode("abc") == ids


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pre": "viking"}, "rule 'viking'.*llama-bpe"),
        ({"pre": ["gpt-2"]}, "rule .*gpt-2"),
        ({"model": "t5"}, "kind 't5'"),
        ({"model": "llama"}, "no scores"),
        ({"model": "llama", "scores": [-1000.0] * 258}, "no scores"),
        ({"model": "llama", "scores": [*range(258)], "precompiled_charsmap": [1]}, "rewrites the text"),
        ({"model": "llama", "scores": [*range(258)], "remove_extra_whitespaces": True}, "rewrites the text"),
    ],
)
def test_a_tokenizer_we_do_not_know_is_none_with_a_note_that_says_why(changes, says):
    tokenizer, (note,) = read_tokenizer(gguf_fields(**changes))
    assert tokenizer is None
    assert note.startswith("The file's tokenizer was not read: ")
    assert re.search(says, note)


def test_a_file_without_a_tokenizer_has_nothing_to_say():
    assert read_tokenizer({}) == read_tokenizer({"tokenizer.ggml.model": "none"}) == (None, ())


@pytest.mark.parametrize(
    "changes",
    [
        {"merges": ["x y z"]},
        {"tokens": 5},
        {"bos_token_id": 10**12},
        {"merges": ["zz q"]},
        {"model": "llama", "scores": [1.0, 2.0, 3.0]},
    ],
)
def test_a_broken_gguf_vocabulary_is_a_sentence(changes):
    with pytest.raises(TokenizerError, match="convert it again"):
        read_tokenizer(gguf_fields(add_bos_token=True, **changes))


# --- SentencePiece in a GGUF ---


def spm_fields(**changes) -> dict:
    fields = {"model": "llama"} | {key: SENTENCEPIECE[key] for key in ("tokens", "scores", "token_type")} | changes
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


@pytest.fixture(scope="module")
def pieced() -> Tokenizer:
    tokenizer, notes = read_tokenizer(spm_fields())
    assert notes == ()
    return tokenizer


def test_scores_give_the_ids_that_sentencepiece_gives(pieced):
    assert len(SENTENCEPIECE["texts"]) > 400
    for text, ids in SENTENCEPIECE["texts"]:
        assert pieced.encode(text, special=False) == [1, *ids], text
        assert pieced.decode(pieced.encode(text, special=False)[1:]) == text


def test_control_tokens_part_the_text_as_in_llama_cpp(pieced):
    for text, ids in SENTENCEPIECE["llama_cpp"]:
        assert pieced.encode(text) == ids, text


def test_transformers_makes_the_same_tokenizer_of_the_same_scores(pieced):
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in spm_fields().items()}
    theirs, _ = convert_gguf_tokenizer("llama", fields | {"tokenizer_type": "llama", "bos_token_id": 1})
    texts = [text for text, _ in SENTENCEPIECE["texts"] if text and not text.startswith(" ")]  # it adds no second space
    texts = [text for text in texts if "<" not in text]
    assert [theirs.encode(text, add_special_tokens=False).ids for text in texts] == [
        pieced.encode(text)[1:] for text in texts
    ]


def test_bos_is_added_to_sentencepiece_text_unless_the_file_says_no(pieced):
    assert (pieced.bos_token_id, pieced.eos_token_id, pieced.adds_bos) == (1, 2, True)
    assert pieced.encode("") == [1]
    assert pieced.encode("<s>a") == [1, *pieced.encode("a")[1:]]
    silent, _ = read_tokenizer(spm_fields(add_bos_token=False, add_eos_token=True))
    assert silent.encode("a") == [*pieced.encode("a")[1:], 2]


def test_without_the_leading_space_a_text_begins_as_it_is(pieced):
    bare, _ = read_tokenizer(spm_fields(add_space_prefix=False))
    assert bare.encode(" the", special=False) == pieced.encode("the", special=False)
    assert bare.encode("the") != pieced.encode("the")
    assert bare.decode(bare.encode(" the")[1:]) == " the"


def test_sentencepiece_pieces_show_spaces_bytes_and_control_tokens(pieced):
    shown = pieced.pieces(pieced.encode("the 👍<|user|></s>"))
    assert [piece.text for piece in shown][-7:] == ["·", "👍 1/4", "👍 2/4", "👍 3/4", "👍 4/4", "<|user|>", "</s>"]
    assert [piece.special for piece in shown][-2:] == [False, True]
    assert shown[0].text == "<s>"


def test_the_longest_left_part_is_joined_first():
    tokens = ["a", "aa", "aaa", "b", "<s>"]
    merges = merges_of(tokens, [-9.0, -1.0, -2.0, -9.0, 0.0], [1, 1, 1, 1, 3])
    assert merges == [("a", "a"), ("aa", "a"), ("a", "aa")]


# --- a Hugging Face folder ---


def tokenizer_folder(folder: Path, settings: dict | None = None, frame: str | None = None) -> Path:
    """byte_tokenizer with <s> and </s> as transformers reads it."""
    backend = byte_tokenizer(300, special=("<s>", "</s>"))
    if frame:
        backend.post_processor = processors.TemplateProcessing(single=frame, special_tokens=[("<s>", 0), ("</s>", 1)])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 302}))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


CONFIG = LlamaConfig(vocab_size=300, bos_token_id=0, eos_token_id=1)
NAMES = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("settings", "frame", "notes"),
    [
        (None, None, ()),
        (NAMES, "<s> $A", ()),
        (NAMES | {"add_bos_token": True}, "<s> $A", ()),
        (NAMES | {"add_bos_token": True}, None, ("add_bos_token to true, but tokenizer.json does not add it",)),
        (NAMES | {"add_bos_token": False}, "<s> $A", ("add_bos_token to false, but tokenizer.json adds it",)),
        (NAMES | {"add_eos_token": True}, "<s> $A", ("add_eos_token to true, but tokenizer.json does not add it",)),
        (NAMES | {"add_eos_token": True, "add_bos_token": None}, "<s> $A </s>", ()),
    ],
)
def test_what_is_put_around_a_text_is_what_transformers_puts(tmp_path, settings, frame, notes):
    folder = tokenizer_folder(tmp_path, settings, frame)
    ours, said = Tokenizer.from_folder(folder, CONFIG)
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in ("hi", "", "a</s>b", "the harbour <s>"):
        assert ours.encode(text) == theirs(text)["input_ids"], text
    assert len(said) == len(notes)
    assert all(note in sentence for note, sentence in zip(notes, said, strict=True))


def listed(content: str, special: bool = True) -> dict:
    return {"content": content, "special": special} | dict.fromkeys(
        ("lstrip", "rstrip", "normalized", "single_word"), False
    )


def test_tokens_that_only_tokenizer_config_lists_are_read_as_transformers_reads_them(tmp_path):
    the = byte_tokenizer(300, special=("<s>", "</s>")).token_to_id("in")
    table = {str(the): listed("in"), "300": listed("<|x|>"), "301": listed("<y>", special=False)}
    folder = tokenizer_folder(tmp_path, NAMES | {"added_tokens_decoder": table})
    ours, notes = Tokenizer.from_folder(folder, CONFIG.with_(vocab_size=302))
    theirs = AutoTokenizer.from_pretrained(folder)
    assert notes == ()
    for text in ("a<|x|>b<y>c", "begin in winter", "<s>"):
        assert ours.encode(text) == theirs(text)["input_ids"], text
    assert ours.special_ids == {0, 1, the, 300}
    assert ours.control_tokens("x in <|x|>") == ("in", "<|x|>")
    assert len(ours.encode("<|x|>", special=False)) > 1


def test_a_listed_token_without_a_place_is_noted_and_stays_text(tmp_path):
    folder = tokenizer_folder(
        tmp_path, NAMES | {"added_tokens_decoder": {"999": listed("<|x|>")}, "pad_token": "[PAD]"}
    )
    ours, (note,) = Tokenizer.from_folder(folder, CONFIG)
    assert "'<|x|>' the id 999" in note
    assert ours.vocab_size == 300
    assert len(ours.encode("<|x|>")) > 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "tokenizer_config.json cannot be read"),
        ("[]", "holds list"),
        ('{"added_tokens_decoder": []}', None),
        ('{"added_tokens_decoder": [1]}', "form we do not know"),
        ('{"added_tokens_decoder": {"x": 1}}', "form we do not know"),
        ('{"added_tokens_decoder": {"7": 1}}', "lists the token '1'"),
        ('{"bos_token": 7}', "lists the token '7'"),
    ],
)
def test_a_damaged_tokenizer_config_is_a_sentence(tmp_path, content, says):
    (tokenizer_folder(tmp_path) / "tokenizer_config.json").write_text(content)
    if says is None:
        assert Tokenizer.from_folder(tmp_path, CONFIG)[0] is not None
        return
    with pytest.raises(TokenizerError, match=says):
        Tokenizer.from_folder(tmp_path, CONFIG)


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "vocab.json"])
def test_another_tokenizer_format_gives_none_and_a_note(tmp_path, name):
    assert Tokenizer.from_folder(tmp_path, CONFIG) == (None, ())
    (tmp_path / name).write_bytes(b"\n\x0e")
    tokenizer, (note,) = Tokenizer.from_folder(tmp_path, CONFIG)
    assert tokenizer is None
    assert name in note


@pytest.mark.parametrize(
    ("rows", "says"),
    [(310, "310 ids, the tokenizer 300: ids 300 to 309 have no text"), (200, "from 200 on is refused")],
)
def test_a_table_of_another_size_than_the_tokenizer_is_noted(tmp_path, rows, says):
    _, (note,) = Tokenizer.from_folder(tokenizer_folder(tmp_path), CONFIG.with_(vocab_size=rows))
    assert says in note


# --- in a run ---


def byte_signs(count: int) -> tokenizers.Tokenizer:
    """A tokenizer whose tokens are the first signs of the byte alphabet: "!", the double quote, "#" and so on."""
    backend = tokenizers.Tokenizer(models.BPE({sign: id for id, sign in enumerate(list(byte_alphabet())[:count])}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(False, use_regex=False), decoders.ByteLevel()
    return backend


def test_an_id_without_a_token_can_win_and_is_named(tmp_path):
    theirs = reference_rig()
    before = run(load(save_folder(theirs, tmp_path / "rig", byte_signs(60))), "ABC")
    with torch.no_grad():
        theirs.lm_head.weight[62] = 10 * torch.from_numpy(before["final_norm"][0, -1].copy())
    model = load(save_folder(theirs, tmp_path / "rig", byte_signs(60)))
    trace = run(model, "ABC")
    best, _ = trace.next_tokens()[0]
    assert best == 62
    assert model.tokenizer.pieces([best])[0].text == "id 62 (no token)"
    assert [token.text for token in trace.tokens] == ["A", "B", "C"]


def test_an_id_beyond_the_table_is_refused_before_the_forward(tmp_path):
    model = load(save_folder(reference_rig(), tmp_path / "rig", byte_signs(65)))
    with pytest.raises(TokenizerError, match=r"id 64 .* 64 ids"):
        run(model, "A" + list(byte_alphabet())[64])


def test_an_empty_text_is_a_sentence_and_one_token_attends_to_itself_alone(tmp_path):
    model = load(save_folder(reference_rig(vocab_size=256), tmp_path / "rig", byte_tokenizer()))
    with pytest.raises((RunError, TokenizerError), match="empty"):
        run(model, "")
    trace = run(model, "a")
    assert trace["0.weights"].tolist() == [[[[1.0]]] * 4]
    with pytest.raises(RunError, match="64 positions"):
        run(model, "a" * 65)


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


def test_what_was_asked_before_changes_no_answer_and_is_not_kept_for_ever():
    def fresh() -> Tokenizer:
        return Tokenizer.from_file(ROOT / "assets/tiny-llama/tokenizer.json", bos_token_id=1)

    tokenizer, texts = fresh(), ["<s>Tom", "Tom</s>", "", "東京", "a" * (KEPT + 1)]
    for text in [*texts, *reversed(texts)]:
        for special in (True, False, True):
            assert tokenizer.encode(text, special) == fresh().encode(text, special)
        assert tokenizer.control_tokens(text) == fresh().control_tokens(text)
        assert tokenizer.bos_typed(text) == fresh().bos_typed(text)
    assert tokenizer.encode("<s>Tom") != tokenizer.encode("<s>Tom", special=False)
    tokenizer.encode("Tom").clear()  # a list of the caller's own
    assert tokenizer.encode("Tom") == fresh().encode("Tom") != []
    assert pickle.loads(pickle.dumps(tokenizer)).encode("Tom") == fresh().encode("Tom")
    gone = weakref.ref(tokenizer)
    gc.disable()  # what holds itself goes by collection alone, and never where models are frozen
    try:
        del tokenizer
        assert gone() is None
    finally:
        gc.enable()
