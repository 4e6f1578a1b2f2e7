"""The tokenizer in a GGUF file's metadata: byte-level BPE ("gpt2"), and SentencePiece BPE with scores ("llama").

Where we do not know how a file cuts text, there is no tokenizer and a note says why: another rule would
give wrong ids without an error, and a model can be asked by ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from ..errors import TokenizerError
from ..tokenizer import Tokenizer

Get = Callable[..., Any]


def read_tokenizer(fields: Mapping[str, Any]) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """(tokenizer, notes) from `tokenizer.ggml.*`; None when the file has none or one of a kind we do not know.

    TokenizerError when the file's lists do not make a vocabulary.
    """
    get = {key.removeprefix("tokenizer.ggml."): value for key, value in fields.items()}.get
    kind = get("model", "none")
    if kind == "none":
        return None, ()
    reason = _unknown(get)
    if reason:
        return None, (
            f"The file's tokenizer was not read: {reason}. Type token ids, or take the model as a folder with a "
            "tokenizer.json.",
        )
    return (_byte_level if kind == "gpt2" else _sentencepiece)(get), ()


def _unknown(get: Get) -> str:
    """What about this tokenizer we do not know; empty when we know all of it."""
    kind, pre = get("model"), get("pre", "default")
    if kind not in ("gpt2", "llama"):
        return f"it is of the kind {str(kind)[:60]!r}, and we know 'gpt2' (byte-level BPE) and 'llama' (SentencePiece)"
    if kind == "gpt2":
        known = isinstance(pre, str) and pre in RULES
        return "" if known else f"it cuts text by the rule {str(pre)[:60]!r}, and we know {', '.join(RULES)}"
    if get("precompiled_charsmap") or get("remove_extra_whitespaces"):
        return "it rewrites the text before cutting it, which we do not do"
    scores = get("scores")
    if not isinstance(scores, list) or len(set(scores)) < 3:
        return "its tokens have no scores of their own, so nothing says which pieces are joined first"
    return ""


# --- byte-level BPE ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """How text is cut before the merges; every pattern cuts what the one before left.

    whole_words: a cut that is a token is taken as it is, whatever the merges say. bos: added unless the file says no.
    nfc: the text is composed first, as Qwen's own tokenizers do (llama.cpp does not).
    """

    cuts: tuple[str, ...]
    whole_words: bool = False
    bos: bool = False
    nfc: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Upper case, then lower case: "HTMLParser" is two words. {s}: where a short form such as 's may follow.
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{s}|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{s}|"
    r"{digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _CASED.replace("{s}", "").replace("{digits}", r"\p{N}")
_GPT4O = _CASED.replace("{s}", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("{digits}", r"\p{N}{1,3}")

_LLAMA3_RULE = Rule((_LLAMA3,), whole_words=True, bos=True)
_DIGITS_RULE = Rule((r"\p{N}", _GPT2))

RULES: Mapping[str, Rule] = {
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": Rule((_GPT2,)),
    "mellum": Rule((_GPT2,)),
    "trillion": Rule((_GPT2,)),
    "smollm": _DIGITS_RULE,
    "minerva-7b": _DIGITS_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "falcon3": _LLAMA3_RULE,
    "smaug-bpe": Rule((_LLAMA3,)),
    "tekken": Rule((_TEKKEN,), whole_words=True, bos=True),
    "gpt-4o": Rule((_GPT4O,)),
    "qwen2": Rule((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": Rule((_QWEN2,)),
    "megrez": Rule((_QWEN2,)),
    "qwen35": Rule((_QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}"),), nfc=True),
    "deepseek-coder": Rule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")),
    "seed-coder": Rule((_QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+"),)),
}
"""llama.cpp's names of the rules that Llama, Mistral and Qwen files use.

The patterns are those of the models' tokenizer.json. llama.cpp cuts by the same ones, but for "tekken" and "gpt-4o",
where it takes small and capital letters outside a-z and A-Z for both.
"""


def _byte_level(get: Get) -> Tokenizer:
    rule = RULES[get("pre", "default")]
    tokens, merges, types = (_list(get, key) for key in ("tokens", "merges", "token_type"))
    pairs = [tuple(merge.split(" ", 1)) for merge in merges if isinstance(merge, str)]
    backend = tokenizers.Tokenizer(_bpe(tokens, pairs, ignore_merges=rule.whole_words))
    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in rule.cuts]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    _add_tokens(backend, tokens, types)
    return _finished(backend, get, bos=get("bos_token_id"), eos=get("eos_token_id"), add_bos=rule.bos)


# --- SentencePiece BPE -------------------------------------------------------------------------

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6


def _sentencepiece(get: Get) -> Tokenizer:
    tokens, scores, types = (_list(get, key) for key in ("tokens", "scores", "token_type"))
    if not len(tokens) == len(scores) == len(types):
        raise TokenizerError(
            f"The file has {len(tokens)} tokens, {len(scores)} scores and {len(types)} token types; each token needs "
            "one of each. Usually the file was converted by an older or broken script; convert it again."
        )
    bos, eos, unknown = (get(f"{name}_token_id", id) for name, id in (("bos", 1), ("eos", 2), ("unknown", 0)))
    backend = tokenizers.Tokenizer(
        _bpe(
            tokens,
            merges_of(tokens, scores, types),
            unk_token=tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = get("add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
    _add_tokens(backend, tokens, types)
    return _finished(backend, get, bos, eos, add_bos=True)


def merges_of(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """The pairs that SentencePiece joins, the best first.

    It joins any two neighbours whose text together is a token, the highest score first, then the leftmost. So every
    way to split a token into two tokens is a merge with that token's score. Of the ways to split one token the
    longest left part comes first: in a run of one character, the leftmost pair is the one with the longer left part.
    """
    place = {token: id for id, token in enumerate(tokens) if types[id] not in (_UNKNOWN, _CONTROL, _BYTE)}
    pairs = []
    for token, id in place.items():
        for cut in range(len(token) - 1, 0, -1):
            if token[:cut] in place and token[cut:] in place:
                pairs.append((-scores[id], id, (token[:cut], token[cut:])))
    pairs.sort(key=lambda pair: pair[:2])
    return [pair for _, _, pair in pairs]


# --- what both share ---------------------------------------------------------------------------


def _list(get: Get, key: str) -> list:
    value = get(key, [])
    if not isinstance(value, list):
        raise TokenizerError(
            f"The file's tokenizer.ggml.{key} is {str(value)[:40]!r}, not the list that makes a vocabulary. "
            "Usually the file was converted by an older or broken script; convert it again."
        )
    return value


def _bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE({token: id for id, token in enumerate(tokens)}, merges, **options)
    except Exception as error:  # a list of something else, or the library's bare Exception
        raise TokenizerError(
            f"The file's tokens and merges do not make a vocabulary: {error}. "
            "Usually the file was converted by an older or broken script; convert it again."
        ) from error


def _add_tokens(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Make control and user-defined tokens be found in the text before it is cut."""
    kinds = zip(tokens, types, strict=False)
    found = [(token, kind) for token, kind in kinds if token and kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    backend.add_tokens([AddedToken(token, special=kind != _USER_DEFINED, normalized=False) for token, kind in found])


def _finished(backend: tokenizers.Tokenizer, get: Get, bos: Any, eos: Any, add_bos: bool) -> Tokenizer:
    size = backend.get_vocab_size()
    bos, eos = (id if isinstance(id, int) and 0 <= id < size else None for id in (bos, eos))
    wanted = {"bos": bool(get("add_bos_token", add_bos)), "eos": bool(get("add_eos_token", False))}
    for name, id in (("bos", bos), ("eos", eos)):
        if get(f"add_{name}_token") and id is None:
            raise TokenizerError(
                f"The file puts the control token {str(get(f'{name}_token_id'))[:40]} around each text, but its "
                f"vocabulary has {size} tokens. Usually the file was converted by an older or broken script; convert "
                "it again."
            )
    before = [backend.id_to_token(bos)] if wanted["bos"] and bos is not None else []
    after = [backend.id_to_token(eos)] if wanted["eos"] and eos is not None else []
    if before or after:
        special = [(token, backend.token_to_id(token)) for token in {*before, *after}]
        backend.post_processor = processors.TemplateProcessing([*before, "$A", *after], special_tokens=special)
    return Tokenizer(backend, bos, eos)
