"""Text <-> ids <-> pieces a person can read. No torch here, and no HTML: a piece is plain text.

A `Tokenizer` wraps a `tokenizers.Tokenizer` and never changes it after it is built, so any number
of threads may share one. `pieces(ids)` always returns one piece per id: a visible space, `東 1/3`
for a token that holds only a part of a character, `‹E6›` for a byte that belongs to none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from .errors import TokenizerError

SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
"""What a piece shows for a character that has no ink."""


@dataclass(frozen=True)
class Piece:
    """One token as a person reads it.

    special: a control token, such as an end of turn. whole: False when the token starts or ends
    inside a character, so that its text names a part.
    """

    id: int
    text: str
    special: bool = False
    whole: bool = True


class Tokenizer:
    """Turns text into ids, and ids into text or pieces, by one model's vocabulary."""

    def __init__(
        self, backend: tokenizers.Tokenizer, bos_token_id: int | None = None, eos_token_id: int | None = None
    ) -> None:
        backend.no_padding()  # a file may ask for either, and labels must count as many as positions
        backend.no_truncation()
        self._backend = backend
        self._literal = _without_control_tokens(backend)
        self._added = {id: str(token.content) for id, token in backend.get_added_tokens_decoder().items()}
        self._spelling = _spelling(backend)
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.special_ids = frozenset(id for id, t in backend.get_added_tokens_decoder().items() if t.special)
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @staticmethod
    def from_file(path: Path, bos_token_id: int | None = None, eos_token_id: int | None = None) -> Tokenizer:
        """Read a Hugging Face tokenizer.json; TokenizerError when it cannot be one."""
        try:
            backend = tokenizers.Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
        except Exception as error:  # the library raises a bare Exception whatever is wrong
            raise TokenizerError(
                f"{Path(path).name} cannot be read as a tokenizer: {error}. Usually the download is incomplete or the "
                "file is another tokenizer format; fetch tokenizer.json again, or remove it and type ids."
            ) from error
        return Tokenizer(backend, bos_token_id, eos_token_id)

    @staticmethod
    def from_gguf_fields(fields: Mapping[str, Any]) -> Tokenizer:
        """Byte-level BPE from a GGUF file's `tokenizer.ggml.*` metadata."""
        return _from_gguf(fields)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of `text`, with BOS where the model's own settings ask for it.

        special=True reads a typed control token such as `<|im_end|>` as that one token;
        special=False reads it letter by letter.
        """
        backend = self._backend if special else self._literal
        try:
            framed = backend.encode(text).ids
            bare = backend.encode(text, add_special_tokens=False).ids
        except Exception as error:
            raise TokenizerError(_unencodable(text, error)) from error
        doubled = len(framed) > len(bare) > 0 and framed[0] == framed[1] == bare[0]
        return framed[1:] if doubled else framed  # BOS was typed, and the settings added it once more

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included; a byte that belongs to no character reads as ‹E6›."""
        known = [id for id in ids if self._token(id) is not None]
        if self._spelling != "bytes":
            return self._backend.decode(known, skip_special_tokens=False)
        text = b"".join(self._bytes(id) for id in known).decode("utf-8", "surrogateescape")
        return "".join(_hex(c) if _is_stray(c) else c for c in text)

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """One readable piece per id; a character spread over several tokens is counted through them."""
        pieces: list[Piece] = []
        for kind, run in groupby(ids, self._kind):
            run = list(run)
            if kind == "text":
                spelt = _spell([self._bytes(id) for id in run])
                pieces += [
                    Piece(id, text or f"id {id} (empty)", whole=whole)
                    for id, (text, whole) in zip(run, spelt, strict=True)
                ]
            elif kind == "special":
                pieces += [Piece(id, visible(self._token(id)) or f"id {id} (empty)", special=True) for id in run]
            else:
                pieces += [Piece(id, f"id {id} (no token)") for id in run]
        return pieces

    def _token(self, id: int) -> str | None:
        return self._backend.id_to_token(int(id)) if 0 <= id < self.vocab_size else None

    def _kind(self, id: int) -> str:
        if id in self.special_ids:
            return "special"
        return "none" if self._token(id) is None else "text"

    def _bytes(self, id: int) -> bytes:
        """The bytes of text that a token stands for."""
        token = self._token(id)
        if id in self._added:
            return self._added[id].encode()
        if self._spelling == "bytes":
            return b"".join(byte_alphabet().get(c) or c.encode() for c in token)
        if self._spelling == "metaspace":
            byte = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
            return bytes.fromhex(byte[1]) if byte else token.replace("▁", " ").encode()
        return token.encode()


# --- pieces ----------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, bytes]:
    """GPT-2's sign for each byte: printable bytes stand for themselves, the others start at U+0100."""
    inked = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in inked]
    signs = {chr(byte): bytes([byte]) for byte in inked}
    return signs | {chr(256 + i): bytes([byte]) for i, byte in enumerate(hidden)}


def visible(text: str) -> str:
    """`text` with a sign for everything that has no ink; what could be mistaken for a sign is spelt out."""
    return "".join(_sign(char) for char in text)


def _sign(char: str) -> str:
    if char in SIGNS:
        return SIGNS[char]
    if char.isprintable() and char != "\ufffd" and char not in SIGNS.values():
        return char
    return f"‹U+{ord(char):04X}›"


def _is_stray(char: str) -> bool:
    return "\udc80" <= char <= "\udcff"  # how surrogateescape marks a byte that is not UTF-8


def _hex(char: str) -> str:
    return f"‹{ord(char) - 0xDC00:02X}›"


def _spell(chunks: Sequence[bytes]) -> list[tuple[str, bool]]:
    """For each chunk of one UTF-8 stream: how it reads, and whether it holds whole characters only."""
    owner = [i for i, chunk in enumerate(chunks) for _ in chunk]
    parts: list[list[tuple[str, int]]] = [[] for _ in chunks]  # (text, place of a cut character or -1)
    place = 0
    for char in b"".join(chunks).decode("utf-8", "surrogateescape"):
        stray = _is_stray(char)
        size = 1 if stray else len(char.encode())
        owners = list(dict.fromkeys(owner[place : place + size]))
        for k, i in enumerate(owners, start=1):
            if stray:
                parts[i].append((_hex(char), place))
            elif len(owners) == 1:
                parts[i].append((_sign(char), -1))
            else:
                parts[i].append((f"{_sign(char)} {k}/{len(owners)}", place))
        place += size
    return [(_joined(part), all(cut < 0 for _, cut in part)) for part in parts]


def _joined(parts: list[tuple[str, int]]) -> str:
    """Whole characters run together; a part of one stands apart, "東 + 京 1/3", but for a leading space."""
    groups = ("".join(text for text, _ in run) for _, run in groupby(parts, key=lambda part: part[1]))
    return re.sub(r"^(·+) \+ ", r"\1", " + ".join(groups))


# --- what a backend is -------------------------------------------------------------------------


def _without_control_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A twin on the same model that reads control tokens as text (the switch is not per call)."""
    twin = tokenizers.Tokenizer(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(backend, part) is not None:
            setattr(twin, part, getattr(backend, part))
    twin.add_tokens([token for _, token in sorted(backend.get_added_tokens_decoder().items())])
    twin.encode_special_tokens = True
    return twin


def _spelling(backend: tokenizers.Tokenizer) -> str:
    """How token strings spell text: "bytes" (GPT-2's alphabet), "metaspace" (▁, <0xE6>) or "plain"."""
    parts = [part for part in (backend.decoder, backend.pre_tokenizer) if part is not None]
    kinds = {kind for part in parts for kind in _kinds(json.loads(part.__getstate__()))}
    if "ByteLevel" in kinds:
        return "bytes"
    return "metaspace" if kinds & {"Metaspace", "ByteFallback"} else "plain"


def _kinds(state: Any) -> set[str]:
    """Every "type" named in a serialised part, sequences included."""
    if isinstance(state, list):
        return set().union(*map(_kinds, state))
    if not isinstance(state, dict):
        return set()
    return {state.get("type", "")}.union(*map(_kinds, state.values()))


def _unencodable(text: str, error: Exception) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        return (
            "The text holds half of a surrogate pair, which is no character and has no UTF-8 form. "
            "Usually a string was cut in the middle of an emoji; paste it again."
        )
    return f"This tokenizer cannot encode the text: {error}. Usually its vocabulary lacks a character of it."


# --- a GGUF file's tokenizer -------------------------------------------------------------------

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# llama.cpp's names, and how each cuts text before the merges: every rule cuts what the one before left.
PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),),
}
_CONTROL, _USER_DEFINED = 3, 4


def _from_gguf(fields: Mapping[str, Any]) -> Tokenizer:
    get = {key.removeprefix("tokenizer.ggml."): value for key, value in fields.items()}.get
    pre = _known_rule(get("model"), get("pre", "default"))
    tokens, merges, types = (get(key, []) for key in ("tokens", "merges", "token_type"))
    backend = tokenizers.Tokenizer(_bpe(tokens, merges, ignore_merges=pre == "llama-bpe"))
    rules = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in PRE_TOKENIZERS[pre]]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*rules, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    added = ((token, kind) for token, kind in zip(tokens, types, strict=False) if kind in (_CONTROL, _USER_DEFINED))
    backend.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False) for token, kind in added])
    bos, eos = get("bos_token_id"), get("eos_token_id")
    add_bos, add_eos = get("add_bos_token", pre == "llama-bpe"), get("add_eos_token", False)
    _frame(backend, bos if add_bos else None, eos if add_eos else None)
    return Tokenizer(backend, bos, eos)


def _known_rule(model: Any, pre: Any) -> str:
    """The pre-tokenizer's name when we know how it and the model behind it cut text."""
    if model != "gpt2":
        raise TokenizerError(
            f"The file's tokenizer is of the kind {model!r}. We read 'gpt2', which is byte-level BPE; "
            "the same model as a Hugging Face folder with a tokenizer.json will load."
        )
    if str(pre) not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"The file's tokenizer cuts text by the rule {pre!r}. We know {', '.join(PRE_TOKENIZERS)}; another rule "
            "would give wrong ids without an error. The model as a folder with a tokenizer.json will load."
        )
    return pre


def _bpe(tokens: Sequence[str], merges: Sequence[str], ignore_merges: bool) -> models.BPE:
    try:
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        return models.BPE({token: id for id, token in enumerate(tokens)}, pairs, ignore_merges=ignore_merges)
    except Exception as error:  # a list that is none, or the library's bare Exception
        raise TokenizerError(
            f"The file's tokens and merges do not make a vocabulary: {error}. "
            "Usually the file was converted by an older or broken script; convert it again."
        ) from error


def _frame(backend: tokenizers.Tokenizer, bos: int | None, eos: int | None) -> None:
    """Make the backend put these control tokens around each text; None stands for nothing."""
    size = backend.get_vocab_size()
    ids = [id for id in (bos, eos) if id is not None]
    for id in ids:
        if not 0 <= id < size:
            raise TokenizerError(
                f"The file puts the control token {id} around each text, but its vocabulary has {size} tokens. "
                "Usually the file was converted by an older or broken script; convert it again."
            )
    if ids:
        before, after = ([] if id is None else [backend.id_to_token(id)] for id in (bos, eos))
        special = [(backend.id_to_token(id), id) for id in ids]
        backend.post_processor = processors.TemplateProcessing([*before, "$A", *after], special_tokens=special)


# --- ids without a tokenizer -------------------------------------------------------------------


def parse_ids(text: str, vocab_size: int) -> list[int]:
    """Ids typed by hand, "10,20,30 40" or "[10, 20]"; TokenizerError names what cannot be one."""
    words = text.strip().strip("[]()").replace(",", " ").split()
    for word in words:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", word):
            raise TokenizerError(
                f"{word[:40]!r} is not a token id. Ids are whole numbers from 0 to {vocab_size - 1}, "
                "separated by commas or spaces, for example 10,20,30,40,50."
            )
    return check_ids([int(word) for word in words], vocab_size)


def check_ids(ids: Sequence[int], vocab_size: int, tokenizer_size: int | None = None) -> list[int]:
    """`ids` as a list when the model has a row for each of them; TokenizerError otherwise."""
    if len(ids) == 0:
        raise TokenizerError("There are no token ids to run. The text is empty: type at least one character or id.")
    for place, id in enumerate(ids):
        if not 0 <= id < vocab_size:
            reason = "" if tokenizer_size is None else f" The tokenizer knows {tokenizer_size} ids."
            raise TokenizerError(
                f"Token id {id} at position {place} is outside this model's vocabulary of {vocab_size} ids, "
                f"0 to {vocab_size - 1}.{reason} Usually the tokenizer or the ids belong to another model."
            )
    return [int(id) for id in ids]
