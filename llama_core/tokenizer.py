"""Text <-> ids <-> pieces a person can read. No torch here, and no HTML: a piece is plain text.

A `Tokenizer` wraps a `tokenizers.Tokenizer` and never changes it after it is built, so any number
of threads may share one. `pieces(ids)` always returns one piece per id: a visible space, `東 1/3`
for a token that holds only a part of a character, `‹E6›` for a byte that belongs to none.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import TokenizerError

if TYPE_CHECKING:  # where ids are given and no text, none is needed
    import tokenizers
    from tokenizers import AddedToken

    from .config import LlamaConfig

SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
"""What a piece shows for a character that has no ink."""
LATELY, KEPT = 4, 1 << 14
"""Encodings that are kept at most, and characters of a text above which its own is not: a page asks for one prompt in
three ways, run after run."""


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
        self._alone: dict[int, str] = {}
        self._added = {id: str(token.content) for id, token in backend.get_added_tokens_decoder().items()}
        self._spelling = _spelling(backend)
        self._lately: dict[tuple[str, bool, bool], tokenizers.Encoding] = {}  # only filled and emptied: any thread may
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.special_ids = frozenset(id for id, t in backend.get_added_tokens_decoder().items() if t.special)
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        # A tokenizer that puts a space before each text takes it off again: its decoder says so.
        self._leads_with_space = self._spelling == "metaspace" and _decoded(backend, "▁a") == "a"
        added = self._encoded("").ids
        self.adds_bos = bool(added) and added[0] == bos_token_id
        self.adds_eos = bool(added) and added[-1] == eos_token_id

    @staticmethod
    def from_file(path: Path, bos_token_id: int | None = None, eos_token_id: int | None = None) -> Tokenizer:
        """Read a Hugging Face tokenizer.json; TokenizerError when it cannot be one."""
        return Tokenizer(_read_backend(path), bos_token_id, eos_token_id)

    @staticmethod
    def from_folder(folder: Path, config: LlamaConfig) -> tuple[Tokenizer | None, tuple[str, ...]]:
        """(tokenizer, notes) from tokenizer.json and the tokenizer_config.json beside it.

        None, with a note where there is something to say, when the folder has no tokenizer.json.
        """
        return _from_folder(Path(folder), config)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of `text`, with BOS where the model's own settings ask for it.

        special=True reads a typed control token such as `<|im_end|>` as that one token;
        special=False reads it letter by letter. A typed BOS is not added once more.
        """
        found = self._encoded(text, special)
        return found.ids[1:] if _is_doubled(found) else found.ids

    def bos_typed(self, text: str) -> bool:
        """Whether `text` begins with a BOS that the settings would have added once more: `encode` gives it once."""
        return _is_doubled(self._encoded(text))

    def control_tokens(self, text: str) -> tuple[str, ...]:
        """The control tokens that `text` spells out, in order; not those that the settings add around it."""
        found = self._encoded(text, framed=False)
        return tuple(
            self._added[id]
            for id, (start, end) in zip(found.ids, found.offsets, strict=True)
            if id in self.special_ids and self._added[id] in text[start:end]  # an unknown character is not spelt out
        )

    def _encoded(self, text: str, special: bool = True, framed: bool = True) -> tokenizers.Encoding:
        asked = (text, special, framed)
        found = self._lately.get(asked)
        if found is None:
            found = self._encode(*asked)
            if len(text) <= KEPT:
                if len(self._lately) >= LATELY:
                    self._lately.clear()
                self._lately[asked] = found
        return found

    def _encode(self, text: str, special: bool, framed: bool) -> tokenizers.Encoding:
        try:
            return (self._backend if special else self._literal).encode(text, add_special_tokens=framed)
        except Exception as error:
            raise TokenizerError(_unencodable(text, error)) from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included; a byte that belongs to no character reads as ‹E6›."""
        known = [id for id in ids if self._token(id) is not None]
        if self._spelling == "plain":
            return self._backend.decode(known, skip_special_tokens=False)
        text = b"".join(self._bytes(id) for id in known).decode("utf-8", "surrogateescape")
        text = "".join(_hex(c) if _is_stray(c) else c for c in text)
        return text.removeprefix(" ") if self._leads_with_space else text

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

    def piece(self, id: int) -> str:
        """How an id reads that stands alone."""
        found = self._alone.get(id)
        if found is None:  # spelt once: pages ask for the same few hundred again and again
            found = self._alone[id] = self.pieces([id])[0].text
        return found

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


# --- text that grows ---------------------------------------------------------------------------


class TextStream:
    """The text of ids as they come: what `add` returns is only ever appended, and together it is what `decode` gives.

    A character whose bytes lie in several tokens is held back until it is whole. ids: what came before, such as the
    prompt; its text is not told again, but any before the first new id takes the space that a SentencePiece text
    begins with. Control tokens are no text: behind BOS alone the first word still begins one.
    """

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._told = 0  # characters, of a "plain" vocabulary
        self._characters = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._begins = tokenizer._leads_with_space
        for id in ids:
            if id not in tokenizer.special_ids:
                self.add(id)

    def add(self, id: int) -> str:
        """The text that is certain now and was not before; often a token's own, sometimes none."""
        if self._tokenizer._token(id) is None:
            return ""
        if self._tokenizer._spelling == "plain":
            self._ids.append(id)
            return self._rest_of(self._tokenizer.decode(self._ids))
        return self._readable(self._characters.decode(self._tokenizer._bytes(id)))

    def end(self) -> str:
        """What was held back, as ‹E6› for each byte: the character will not be finished."""
        return self._readable(self._characters.decode(b"", final=True))

    def _rest_of(self, text: str) -> str:
        rest, self._told = text[self._told :], max(self._told, len(text))
        return rest

    def _readable(self, text: str) -> str:
        text = "".join(_hex(c) if _is_stray(c) else c for c in text)
        if self._begins and text:
            self._begins = False
            return text.removeprefix(" ")
        return text


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


def _is_doubled(found: tokenizers.Encoding) -> bool:
    """Whether the settings added a token in front of the same one, typed. The mask marks what they added."""
    return found.special_tokens_mask[:2] == [1, 0] and found.ids[0] == found.ids[1]


def _decoded(backend: tokenizers.Tokenizer, token: str) -> str:
    return backend.decoder.decode([token]) if backend.decoder is not None else token


def _without_control_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A twin on the same model that reads control tokens as text (the switch is not per call)."""
    import tokenizers

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


# --- a Hugging Face folder ---------------------------------------------------------------------

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_OTHER_FORMATS = ("tokenizer.model", "tekken.json", "vocab.json")


def _from_folder(folder: Path, config: LlamaConfig) -> tuple[Tokenizer | None, tuple[str, ...]]:
    path = folder / "tokenizer.json"
    if not path.is_file():
        other = next((name for name in _OTHER_FORMATS if (folder / name).is_file()), None)
        if other is None:
            return None, ()
        return None, (
            f"The tokenizer is stored as {other}, which we do not read: type token ids, or convert it to a "
            "tokenizer.json (transformers' save_pretrained writes one).",
        )
    settings = _read_settings(folder / "tokenizer_config.json")
    backend = _read_backend(path)
    notes = _add_listed(backend, settings)
    tokenizer = Tokenizer(backend, config.bos_token_id, config.eos_token_id)
    return tokenizer, (*notes, *_ignored_settings(tokenizer, settings), *size_notes(tokenizer, config.vocab_size))


def size_notes(tokenizer: Tokenizer, vocab_size: int) -> tuple[str, ...]:
    """A sentence for the page where the model has more or fewer rows than the tokenizer has ids."""
    known = tokenizer.vocab_size
    if known < vocab_size:
        return (
            f"The model has {vocab_size} ids, the tokenizer {known}: ids {known} to {vocab_size - 1} have no text.",
        )
    if known > vocab_size:
        return (
            f"The tokenizer has {known} ids, the model {vocab_size}: "
            f"text that gives an id from {vocab_size} on is refused.",
        )
    return ()


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
    except Exception as error:  # the library raises a bare Exception whatever is wrong
        raise TokenizerError(
            f"{Path(path).name} cannot be read as a tokenizer: {str(error)[:200]}. Usually the download is incomplete "
            "or the file is another tokenizer format; fetch tokenizer.json again, or remove it and type ids."
        ) from error


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(
            f"{path.name} cannot be read as JSON: {error}. "
            "It says which tokens are control tokens; fetch it again, or remove it."
        ) from error
    if not isinstance(settings, dict):
        raise TokenizerError(
            f"{path.name} holds {type(settings).__name__}, not an object of settings. Fetch it again, or remove it."
        )
    return settings


def _add_listed(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> list[str]:
    """Add the tokens that only tokenizer_config.json lists, as transformers does; what could not be added is noted."""
    notes = []
    have = {str(token.content): token for token in backend.get_added_tokens_decoder().values()}
    for token, stated in _listed_tokens(settings):
        known = have.get(token.content)
        if known is not None and (known.special or not token.special):
            continue
        id = backend.token_to_id(token.content)
        if id is None and stated is None:
            continue  # a name without a row in the model, such as a padding token for training
        if stated not in (None, backend.get_vocab_size() if id is None else id):
            notes.append(
                f"tokenizer_config.json gives {token.content[:60]!r} the id {stated}, for which tokenizer.json has no "
                "place: it is read as plain text."
            )
            continue
        backend.add_tokens([token])
    return notes


def _listed_tokens(settings: Mapping[str, Any]) -> list[tuple[AddedToken, int | None]]:
    """(token, its id or None) from added_tokens_decoder, by id, and from the names such as bos_token."""
    listed = settings.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict) or not all(re.fullmatch("[0-9]{1,8}", id) for id in listed):
        raise TokenizerError(
            "tokenizer_config.json lists added_tokens_decoder in a form we do not know; tokens by id are expected."
        )
    found = [(_token(value), int(id)) for id, value in sorted(listed.items(), key=lambda item: int(item[0]))]
    extra = settings.get("additional_special_tokens") or settings.get("extra_special_tokens") or []
    names = [settings.get(name) for name in _NAMED] + (list(extra) if isinstance(extra, list) else [])
    seen = {token.content for token, _ in found}
    named = [_token(value, special=True) for value in names if value]
    return found + [(token, None) for token in named if token.content not in seen]


def _token(value: Any, special: bool = False) -> AddedToken:
    """An added token as tokenizer_config.json spells it: a string, or its content and switches."""
    from tokenizers import AddedToken

    told = value if isinstance(value, dict) else {"content": value}
    content = told.get("content")
    switches = {name: told[name] for name in ("lstrip", "rstrip", "single_word", "normalized") if name in told}
    whole = isinstance(content, str) and not re.search("[\ud800-\udfff]", content)
    if not whole or not all(isinstance(switch, bool) for switch in switches.values()):
        raise TokenizerError(f"tokenizer_config.json lists the token {str(value)[:60]!a}, which is none.")
    return AddedToken(content, special=bool(told.get("special", special)), **switches)


def _ignored_settings(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> list[str]:
    """Where tokenizer_config.json wants BOS or EOS and tokenizer.json does otherwise: the latter holds.

    So it is in transformers 5, which drops both settings where there is a tokenizer.json.
    """
    notes = []
    for name, adds in (("bos", tokenizer.adds_bos), ("eos", tokenizer.adds_eos)):
        wanted = settings.get(f"add_{name}_token")
        if isinstance(wanted, bool) and wanted != adds:
            notes.append(
                f"tokenizer_config.json sets add_{name}_token to {str(wanted).lower()}, but tokenizer.json "
                f"{'adds' if adds else 'does not add'} it, and tokenizer.json is followed."
            )
    return notes


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
