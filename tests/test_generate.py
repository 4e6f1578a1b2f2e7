"""generate: transformers' tokens, a trace for each, a cache that changes nothing, and text that only grows."""

from __future__ import annotations

import gc
import threading
import weakref
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from rigs import MORE_RIGS, PROMPT, ROPE, byte_tokenizer, more_rig
from test_tokenizer import SENTENCEPIECE, spm_fields
from transformers import LlamaConfig, LlamaForCausalLM

from llama_core import KVCache, generate, load, run, runner
from llama_core.checkpoints.gguf_tokenizer import read_tokenizer
from llama_core.config import PRESETS, config_from_dict
from llama_core.errors import AddressError, GlassLlamaError, RunError
from llama_core.generation import End, Sampling, compare_cached, prefill, stop_ids
from llama_core.kv_cache import cache_bytes
from llama_core.rebuild import run_bytes
from llama_core.sampling import cut
from llama_core.sizes import cache_size, pass_flops, sharing, token_flops
from llama_core.tokenizer import TextStream, Tokenizer

BOUND = 2e-5
LONG = [(7 * i * i + 3 * i + 5) % 64 for i in range(32)]  # beyond the 16 original positions of the scaled rigs
SMOLLM2 = Path(__file__).parent.parent / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TYPES = tuple(f"llama {kind}" for kind in ROPE)
WINDOWED = ("mistral window", "qwen2 window", "qwen3 window")


def tokens(generation) -> list[int]:
    return [token for token, _ in generation]


def greedy(model, ids, new: int, **given) -> list[int]:
    """So many tokens, whatever they are: the rigs' config names token 2 as their end."""
    return tokens(generate(model, ids, max_new_tokens=new, **{"stop": ()} | given))


def greedy_of(theirs, ids: list[int], new: int, eos: int | None = None) -> list[int]:
    """transformers' own greedy continuation."""
    theirs = deepcopy(theirs)  # dynamic scaling remembers its longest pass
    theirs.generation_config.eos_token_id = eos
    given = torch.tensor([ids])
    asked = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        found = theirs.generate(given, attention_mask=torch.ones_like(given), **asked)
    return found[0, len(ids) :].tolist()


# --- the tokens are those of transformers ---


@pytest.mark.parametrize("name", ["gqa", "tied", "biased", "qwen3", "llama3"])
def test_fifty_greedy_tokens_are_those_of_transformers(make, name):
    theirs = make.reference(name)
    assert greedy(make.decoder(theirs), PROMPT, 50) == greedy_of(theirs, PROMPT, 50)


@pytest.mark.parametrize("name", [*TYPES, *WINDOWED])
def test_greedy_tokens_of_every_rope_and_window_are_those_of_transformers(make, name):
    theirs = more_rig(name)  # 16 or 32 original positions: dynamic scaling passes its context on the way
    assert greedy(make.decoder(theirs), PROMPT, 40) == greedy_of(theirs, PROMPT, 40)


@pytest.fixture(scope="module")
def smollm2():
    return load(SMOLLM2)


def test_fifty_greedy_tokens_of_the_trained_model_are_those_of_transformers(smollm2):
    config = smollm2.config
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings")
    with torch.device("meta"):
        theirs = LlamaForCausalLM(LlamaConfig(**{name: getattr(config, name) for name in names})).eval()
    theirs.load_state_dict(smollm2.state_dict(), assign=True)
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(theirs.config)  # a buffer that no checkpoint holds
    ids = smollm2.tokenizer.encode("A good recipe for bread begins with")
    generation = generate(smollm2, ids, max_new_tokens=50, stop=())
    stream = TextStream(smollm2.tokenizer, ids)
    text = "".join(stream.add(token) for token, _ in generation)
    assert list(generation.ids) == greedy_of(theirs, ids, 50)
    assert text + stream.end() == smollm2.tokenizer.decode(generation.ids)


# --- every token has its own trace ---


def test_each_trace_chose_its_token_and_none_overwrites_another(ours):
    found = list(generate(ours, PROMPT[:4], max_new_tokens=3, stop=()))
    assert [trace["1.weights"].shape for _, trace in found] == [(1, 4, 4, 4), (1, 4, 1, 5), (1, 4, 1, 6)]
    assert [trace.ids for _, trace in found] == [tuple(PROMPT[:4]), (found[0][0],), (found[1][0],)]
    assert [trace.past for _, trace in found] == [0, 4, 5]
    ids = [*PROMPT[:4], *(token for token, _ in found)]
    full = run(ours, ids[:-1])
    for token, trace in found:
        assert trace.next_tokens(top=1)[0][0] == token
        rows = slice(trace.past, trace.dims["S"])
        assert trace.dims["S"] <= len(ids) - 1  # a label for each key; the last token has no row
        for layer in (0, 1):
            weights = full[f"{layer}.weights"][:, :, rows, : rows.stop]
            assert np.abs(trace[f"{layer}.weights"] - weights).max() < BOUND
            assert trace.visible(layer).shape == (len(trace.ids), rows.stop)
        assert np.abs(trace["logits"] - full["logits"][:, rows]).max() < BOUND


def test_the_traces_hold_what_they_held_after_more_tokens_came(ours):
    generation = generate(ours, PROMPT, max_new_tokens=50, stop=())
    _, first = next(generation)
    _, second = next(generation)
    before = [trace[at].copy() for trace in (first, second) for at in trace.walk]
    list(generation)  # the cache grows over its first buffer
    after = [trace[at] for trace in (first, second) for at in trace.walk]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_cache_afterwards_holds_all_tokens_but_the_last_and_can_go_on(ours):
    generation = generate(ours, PROMPT, max_new_tokens=6, stop=())
    first = tokens(generation)
    assert generation.cache.length == len(PROMPT) + 5
    second = greedy(ours, first[-1:], 4, cache=generation.cache)
    assert first + second == greedy(ours, PROMPT, 10)


# --- why it ends ---


def test_a_stop_token_ends_it_and_is_its_last(ours):
    plain = greedy(ours, PROMPT, 20)
    stop = plain[7]
    generation = generate(ours, PROMPT, max_new_tokens=20, stop=[stop, 1000])
    assert tokens(generation) == plain[: plain.index(stop) + 1]
    assert generation.end == End("stop", stop)


def test_the_stop_tokens_are_the_models_own_unless_others_are_given(make):
    theirs = make.reference("gqa")
    plain = greedy(make.decoder(theirs), PROMPT, 20)
    ours = make.decoder(theirs, eos_token_id=plain[3])
    assert stop_ids(ours) == {plain[3]}
    stopped = tokens(generate(ours, PROMPT, max_new_tokens=20))
    assert stopped == plain[: plain.index(plain[3]) + 1] == greedy_of(theirs, PROMPT, 20, eos=plain[3])
    assert greedy(ours, PROMPT, 20) == plain


def test_a_file_may_name_several_stop_tokens():
    raw = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    config = config_from_dict(raw | {"num_attention_heads": 4, "eos_token_id": [5, 6, 9]})
    assert stop_ids(load(config)) == {5, 6, 9}


def test_the_tokenizers_end_token_stops_too(smollm2):
    assert stop_ids(smollm2) == {2}


def test_the_length_that_was_asked_for_ends_it(ours):
    generation = generate(ours, PROMPT, max_new_tokens=3, stop=())
    seen = []
    for token, _ in generation:
        seen.append((token, generation.end))
    assert [end for _, end in seen] == [None, None, End("length")]
    assert generation.ids == tuple(token for token, _ in seen)


@pytest.mark.parametrize("T", [60, 64])
def test_the_context_ends_it_without_an_exception(ours, T):
    generation = generate(ours, [1] * T, max_new_tokens=50, stop=())
    assert len(tokens(generation)) == 64 - T + 1  # the last position chooses one more, which has no place
    assert generation.end == End("context")
    assert generation.cache.length == 64


def test_a_pass_beyond_the_memory_ends_it_without_an_exception(ours, monkeypatch):
    monkeypatch.setattr(runner, "SMALL", 0)
    monkeypatch.setattr(runner, "free_for", lambda needed, device: 2 * run_bytes(ours.config, 1, 9))
    generation = generate(ours, PROMPT, max_new_tokens=50, stop=(), chunk=1)
    assert len(tokens(generation)) == 6
    assert generation.end == End("memory")


# --- leaving early, and others at the same time ---


def test_closing_early_leaves_nothing(ours):
    attributes = {name: sorted(module.__dict__) for name, module in ours.named_modules()}
    clean = run(ours, PROMPT)
    generation = generate(ours, PROMPT, max_new_tokens=9, stop=())
    next(generation)
    with torch.no_grad():
        ours(torch.tensor([[1, 2]]))  # a recorder left behind would refuse these shapes
    generation.close()
    assert generation.end == End("closed")
    assert list(generation) == []
    assert {name: sorted(module.__dict__) for name, module in ours.named_modules()} == attributes
    assert np.array_equal(run(ours, PROMPT)["logits"], clean["logits"])


def test_a_trace_that_the_caller_drops_is_gone_at_once(ours):
    generation = generate(ours, PROMPT, max_new_tokens=5, stop=())
    gc.disable()
    try:
        gone = []
        for _, trace in generation:
            gone.append(weakref.ref(trace))
        del trace
        assert [ref() for ref in gone] == [None] * 5
    finally:
        gc.enable()


class Stop(BaseException):
    """As a page's rerun is: no Exception."""


def test_progress_grows_to_one_and_what_it_raises_ends_the_step(ours):
    told = []
    greedy(ours, PROMPT, 4, chunk=2, progress=told.append)
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] < 1.0 + 1e-9
    assert told[-1] > 0.9
    cache = KVCache(ours.config)

    def refuse(share: float) -> None:
        if share > 0.7:
            raise Stop

    generation = generate(ours, PROMPT, max_new_tokens=4, stop=(), cache=cache, progress=refuse)
    next(generation)
    with pytest.raises(Stop):
        list(generation)
    generation._progress = None  # the same step again: the rows of the one that was ended were not committed
    list(generation)
    assert list(generation.ids) == greedy(ours, PROMPT, 4)


def test_a_prompt_that_was_stopped_between_two_chunks_goes_on_behind_the_first(ours):
    refused = []

    def refuse_once(share: float) -> None:
        if share > 0.3 and not refused:
            refused.append(share)
            raise Stop

    generation = generate(ours, PROMPT, max_new_tokens=4, stop=(), chunk=2, progress=refuse_once)
    with pytest.raises(Stop):
        next(generation)
    assert generation.cache.length == 2
    assert tokens(generation) == greedy(ours, PROMPT, 4)


def test_two_generations_at_once_never_mix():
    model = load(PRESETS["nano"], std=0.3)
    prompts = {3: [1, 2, 3], 7: [9, 8, 7, 6, 5, 4, 3]}
    serial = {T: greedy(model, ids, 8) for T, ids in prompts.items()}
    wrong, start = [], threading.Barrier(2)

    def work(T: int) -> None:
        start.wait()
        for _ in range(10):
            for place, (token, trace) in enumerate(generate(model, prompts[T], max_new_tokens=8)):
                fits = trace.dims["S"] == T + place and token == serial[T][place]
                wrong.extend([] if fits else [(T, place)])

    threads = [threading.Thread(target=work, args=(T,)) for T in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_steps_of_two_generations_may_alternate_in_one_thread(ours):
    alone = [greedy(ours, ids, 5) for ids in (PROMPT, LONG)]
    both = zip(*(generate(ours, ids, max_new_tokens=5, stop=()) for ids in (PROMPT, LONG)), strict=True)
    assert [list(column) for column in zip(*(((a[0], b[0])) for a, b in both), strict=True)] == alone


# --- sampling (what is kept is compared with transformers' processors in test_sampling) ---


def test_the_same_seed_gives_the_same_tokens_and_another_one_others(ours):
    def sampled(seed: int) -> list[int]:
        return greedy(ours, PROMPT, 20, temperature=1.5, seed=seed)

    assert sampled(1) == sampled(1)
    assert len({tuple(sampled(seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (2.5, 7, 1.0), (0.7, 0, 0.95), (3.0, 9, 0.8)]
)
def test_draws_are_as_frequent_as_their_probabilities(temperature, top_k, top_p):
    logits = np.random.default_rng(3).normal(scale=2, size=40).astype(np.float32)
    kept = cut(logits, temperature, top_k, top_p)
    sampling, random, n = Sampling(temperature, top_k, top_p), np.random.default_rng(0), 5000
    drawn = np.bincount([sampling.draw(logits, random) for _ in range(n)], minlength=40)
    assert drawn.sum() == drawn[kept.ids[: kept.kept]].sum() == n  # what was cut never comes
    expected = n * kept.after
    often = expected >= 5  # the usual rule for chi-square; the rest is one class
    counts, wanted = drawn[kept.ids[: kept.kept]], expected
    pooled = np.append(counts[often], counts[~often].sum()), np.append(wanted[often], wanted[~often].sum())
    classes = pooled[1] > 0
    chi = (((pooled[0] - pooled[1]) ** 2)[classes] / pooled[1][classes]).sum()
    free = classes.sum() - 1
    assert chi < free + 4 * np.sqrt(2 * free)  # mean and deviation of chi-square; seed fixed


def test_a_sampled_continuation_uses_every_filter(ours):
    generation = generate(ours, PROMPT, max_new_tokens=30, stop=(), temperature=2.0, top_k=5, top_p=0.9, seed=4)
    ranks = []
    for token, trace in generation:
        found = cut(trace["logits"][0, -1], 2.0, 5, 0.9)
        ranks.append(found.ids.tolist().index(token))
        assert ranks[-1] < found.kept <= 5
    assert len(set(ranks)) > 2


# --- chunks, and cached against uncached ---


@pytest.mark.parametrize("sizes", [(4, 1), (2, 3), (1, 1, 1, 1, 1)])
def test_chunks_and_single_steps_give_the_numbers_of_one_pass(ours, sizes):
    full, cache, start = run(ours, PROMPT), KVCache(ours.config), 0
    for size in sizes:
        trace = run(ours, PROMPT[start : start + size], cache=cache)
        rows = slice(start, start + size)
        assert np.abs(trace["logits"] - full["logits"][:, rows]).max() < BOUND
        assert np.abs(trace["1.weights"] - full["1.weights"][:, :, rows, : rows.stop]).max() < BOUND
        hidden = ~trace.visible()
        assert hidden.sum() == size * (size - 1) // 2  # a chunk masks inside itself
        assert not trace["1.weights"][..., hidden].any()
        start += size
    keys, values = cache.arrays(1)
    assert keys.shape == values.shape == (1, 5, 2, 8)


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 99])
def test_a_prompt_in_chunks_goes_on_with_the_same_tokens(ours, chunk):
    generation = generate(ours, PROMPT, max_new_tokens=12, stop=(), chunk=chunk)
    _, first = next(generation)
    assert len(first.ids) == (len(PROMPT) - 1) % chunk + 1
    assert first.dims["S"] == len(PROMPT)
    list(generation)
    assert list(generation.ids) == greedy(ours, PROMPT, 12)


def test_prefill_hands_out_a_trace_of_each_pass(ours):
    parts = [trace.ids for trace in prefill(ours, PROMPT, KVCache(ours.config), 2)]
    assert parts == [tuple(PROMPT[:2]), tuple(PROMPT[2:4]), tuple(PROMPT[4:])]


@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("name", [name for name in MORE_RIGS if "dynamic" not in name])
def test_cached_equals_uncached_in_float32(make, name, chunk):
    found = compare_cached(make.decoder(more_rig(name)), LONG, chunk=chunk)
    assert found.differences.shape == (len(LONG),)
    assert found.largest < BOUND
    assert found.kind in ("exact", "rounding")
    assert found.largest <= found.bound < 1e-4


@pytest.mark.parametrize("name", ["llama dynamic", "qwen3 dynamic"])
def test_dynamic_scaling_is_equal_up_to_its_context_and_explained_beyond(make, name):
    ours = make.decoder(more_rig(name))
    assert compare_cached(ours, LONG[:16]).largest < BOUND
    beyond = compare_cached(ours, LONG)
    assert beyond.kind == "dynamic"
    assert beyond.largest > 0.1
    assert compare_cached(ours, LONG, chunk=len(LONG)).kind == "exact"


def test_bfloat16_differs_by_rounding_only_and_says_its_bound(make):
    ours = make.decoder(make.reference("qwen3")).to(torch.bfloat16)
    found = compare_cached(ours, LONG)
    assert found.kind in ("exact", "rounding")
    assert found.bound == pytest.approx(2**-4 * np.abs(run(ours, LONG)["logits"]).max())


def test_a_cache_that_is_wrong_is_told(ours, monkeypatch):
    right = KVCache.append

    def shifted(self, layer, k, v):
        k, v = right(self, layer, k, v)
        return k.roll(1, dims=1), v

    monkeypatch.setattr(KVCache, "append", shifted)
    assert compare_cached(ours, PROMPT).kind == "unexplained"


def test_a_comparison_tells_the_work_of_a_step_with_the_cache_and_without(ours):
    told = []
    found = compare_cached(ours, PROMPT, progress=told.append)
    assert told == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert found.cached_flops == sum(token_flops(ours.config, 5).values())
    assert found.full_flops == sum(sum(token_flops(ours.config, S).values()) for S in range(1, 6))
    assert found.cached_seconds > 0
    assert found.full_seconds > 0


@pytest.mark.parametrize("name", ["llama default", *WINDOWED])
@pytest.mark.parametrize(("T", "past"), [(1, 0), (5, 0), (1, 9), (4, 2), (40, 7)])
def test_the_work_of_a_pass_is_that_of_its_tokens(make, name, T, past):
    config = make.decoder(more_rig(name)).config
    each = [token_flops(config, S) for S in range(past + 1, past + T + 1)]
    assert pass_flops(config, T, past) == {part: sum(one[part] for one in each) for part in each[0]}


# --- what a page reads of the cache ---


def test_the_cache_shows_its_keys_and_values_at_any_length_and_refuses_writes(ours):
    generation = generate(ours, PROMPT, max_new_tokens=4, stop=())
    traces = [trace for _, trace in generation]
    cache = generation.cache
    for layer in (0, 1):
        keys, values = cache.arrays(layer)
        np.testing.assert_array_equal(keys, np.concatenate([t[f"{layer}.k_rot"] for t in traces], axis=1))
        np.testing.assert_array_equal(values, np.concatenate([t[f"{layer}.v"] for t in traces], axis=1))
        for trace in traces:
            S = trace.dims["S"]
            np.testing.assert_array_equal(cache.arrays(layer, S)[0], keys[:, :S])
        with pytest.raises(ValueError, match="read-only"):
            keys[0] = 0
    with pytest.raises(RunError, match="holds 8 positions of layer 0; 9 were asked for"):
        cache.arrays(0, 9)
    for layer in (-1, 2):
        with pytest.raises(AddressError, match="this model has 2, 0 to 1"):
            cache.arrays(layer)


def test_the_bytes_of_the_cache_are_counted_now_in_full_and_without_sharing(make):
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        ours = make.decoder(make.reference("gqa")).to(dtype)
        generation = generate(ours, PROMPT, max_new_tokens=3, stop=())
        list(generation)
        found = cache_bytes(ours.config, generation.cache.length, name)
        assert found.now == generation.cache.nbytes()
        assert found.full == cache_size(ours.config, ours.config.max_length, name).total
        assert found.mha_full == next(s for s in sharing(ours.config, 64, name) if s.name == "MHA").cache.total
        assert found.mha_now == 2 * found.now


# --- text that grows ---


@pytest.fixture(scope="module")
def bytes_only() -> Tokenizer:
    return Tokenizer(byte_tokenizer())


@pytest.fixture(scope="module")
def pieced() -> Tokenizer:
    return read_tokenizer(spm_fields())[0]


def test_a_character_is_held_back_until_it_is_whole(bytes_only):
    stream = TextStream(bytes_only)
    assert [stream.add(id) for id in bytes_only.encode("東é")] == ["", "", "東", "", "é"]
    assert [stream.add(id) for id in bytes_only.encode("👍🏽")] == ["", "", "", "👍", "", "", "", "🏽"]
    assert [stream.add(id) for id in bytes_only.encode("東")[:2]] == ["", ""]
    assert stream.end() == "‹E6›‹9D›"
    assert stream.end() == ""


def test_bytes_that_become_no_character_are_told_as_decode_tells_them(bytes_only):
    broken = [*bytes_only.encode("東")[:2], *bytes_only.encode("a👍")[:-1], *bytes_only.encode("b")]
    stream = TextStream(bytes_only)
    assert "".join(map(stream.add, broken)) + stream.end() == bytes_only.decode(broken) == "‹E6›‹9D›a‹F0›‹9F›‹91›b"


def test_the_streamed_text_is_the_decoded_text_however_it_is_cut(pieced):
    for text, ids in SENTENCEPIECE["texts"][::7]:
        stream = TextStream(pieced)
        assert "".join(map(stream.add, ids)) + stream.end() == pieced.decode(ids) == text
        for cut_at in range(1, len(ids)):
            stream = TextStream(pieced, ids[:cut_at])
            grown = "".join(map(stream.add, ids[cut_at:])) + stream.end()
            assert text.endswith(grown)


def test_only_the_first_space_of_a_text_is_taken(pieced):
    ids = pieced.encode("the boats the")
    assert ids[0] == pieced.bos_token_id
    behind_bos = TextStream(pieced, ids[:1])
    assert "".join(map(behind_bos.add, ids[1:])) == "the boats the"
    behind_a_word = TextStream(pieced, ids)
    assert "".join(map(behind_a_word.add, ids[1:])) == " the boats the"


def test_a_control_token_and_an_id_without_one_have_their_text_and_none(pieced):
    stream = TextStream(pieced, pieced.encode("the"))
    assert [stream.add(id) for id in (2, 10**6)] == ["</s>", ""]


def test_a_vocabulary_without_a_spelling_streams_what_its_decoder_says():
    import tokenizers
    from tokenizers import decoders, models

    backend = tokenizers.Tokenizer(models.WordPiece({"un": 0, "##able": 1, "so": 2}, unk_token="un"))
    backend.decoder = decoders.WordPiece()
    tokenizer = Tokenizer(backend)
    stream = TextStream(tokenizer)
    assert [stream.add(id) for id in (0, 1, 2)] == ["un", "able", " so"]


# --- refusals, before anything is computed ---


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0; at least 1"),
        ({"temperature": -1}, "temperature is -1; it must be 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"chunk": 0}, "chunk is 0"),
        ({"prompt": []}, "empty"),
        ({"prompt": "text"}, "no tokenizer"),
        ({"prompt": [0] * 66}, "Shorten it by 2 tokens"),
        ({"prompt": [0] * 80, "chunk": 3}, "Shorten it by 16 tokens"),
    ],
)
def test_what_cannot_be_generated_is_a_sentence_at_once(ours, given, says):
    given = {"prompt": PROMPT, "max_new_tokens": 5} | given
    with pytest.raises(GlassLlamaError, match=says):
        generate(ours, given.pop("prompt"), **given)


def test_a_cache_of_another_model_is_refused_at_once(ours):
    with pytest.raises(RunError, match="another config"):
        generate(ours, PROMPT, max_new_tokens=1, cache=KVCache(ours.config.with_(num_hidden_layers=1)))


def test_logits_that_are_no_numbers_are_a_sentence(ours):
    ours.lm_head.weight[3] = float("nan")
    with pytest.raises(RunError, match="hold NaN or infinity"):
        next(generate(ours, PROMPT, max_new_tokens=1))


def test_chunks_let_a_longer_prompt_through_than_one_pass_has_memory_for(ours, monkeypatch):
    monkeypatch.setattr(runner, "SMALL", 0)
    monkeypatch.setattr(runner, "free_for", lambda needed, device: 2 * run_bytes(ours.config, 8, 24))
    with pytest.raises(RunError, match="shorten the prompt"):
        generate(ours, LONG, max_new_tokens=3)
    assert len(greedy(ours, LONG, 3, chunk=8)) == 3
