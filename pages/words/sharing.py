"""The words of the page about shared heads."""

from __future__ import annotations

EN: dict[str, str] = {
    "sharing.lead": "Every query head asks its own question, but the keys and values that answer are made once for a "
    "whole group of query heads. That makes the cache of keys and values smaller, while the questions still differ.",
    "sharing.lead.mha": "In this model every query head has a key and value head of its own: multi-head attention, "
    "MHA. Nothing is shared; the page shows what sharing would save.",
    "sharing.lead.mqa": "In this model all query heads ask their own questions of one single key and value head: "
    "multi-query attention, MQA. The cache of keys and values is as small as it can be; the questions still differ.",
    "sharing.drawing": "{heads} query heads and the {kv} key/value heads that they read",
    "sharing.drawing.look": "A line leads from each query head to the key and value head that it reads: head h reads "
    "h // {group}, so Q{head} reads {head} // {group} = KV{kv}. One colour is one group.",
    "sharing.drawing.look.mha": "A line leads from each query head to the key and value head that it reads: its own. "
    "Q{head} reads KV{kv}.",
    "sharing.drawing.look.mqa": "A line leads from each query head to the key and value head that it reads: they all "
    "read the same one, KV0.",
    "sharing.head": "query head",
    "sharing.sizes.title": "The sizes of q, k and v",
    "sharing.sizes.look": "Queries have {heads} heads, keys and values {kv}: {times} times as many numbers per token "
    "in q as in k. Before the scores are computed each key head is shown to its group (k_shared), which copies "
    "nothing.",
    "sharing.sizes.look.mha": "Queries, keys and values have {heads} heads each, so they are equally large.",
    "sharing.sizes.step": "tensor",
    "sharing.sizes.shape": "shape",
    "sharing.sizes.token": "numbers per token",
    "sharing.sizes.weight": "weight",
    "sharing.sizes.weight.shape": "its shape",
    "sharing.sizes.cache": "kept in the KV cache",
    "sharing.yes": "yes",
    "sharing.no": "no",
    "sharing.cost.title": "MHA, GQA and MQA in this model",
    "sharing.cost.kind": "sharing",
    "sharing.cost.kv": "KV heads",
    "sharing.cost.layer": "a token in a layer",
    "sharing.cost.token": "a token",
    "sharing.cost.prompt": "this prompt",
    "sharing.cost.context": "{context} positions",
    "sharing.cost.saved": "saved",
    "sharing.cost.parameters": "parameters",
    "sharing.cost.own": "{name} · this model",
    "sharing.cost.look": "Bytes of keys and values in {dtype}, all else the same: 2 × KV heads × head width × bytes "
    "of a number. The bars are the whole context of {context} positions.",
    "sharing.cost.look.gqa": "This model shares as {name}; of MHA's cache that saves {saved}.",
    "sharing.cost.look.window": "Layers with a sliding window keep {window} positions only.",
    "sharing.bars.alt": "KV cache of the whole context: {bars}.",
    "sharing.likeness.title": "Do heads of one group look at the same tokens?",
    "sharing.likeness.name": "cosine of weights",
    "sharing.likeness.look": "Each cell compares the attention weights of two query heads in layer {layer}: 1 is the "
    "same map. Framed are the heads that share a key head. Same keys do not mean same looks: stronger colours inside "
    "the frames would say that they do.",
    "sharing.likeness.look.mha": "Each cell compares the attention weights of two query heads in layer {layer}: 1 is "
    "the same map. No two heads share keys here.",
    "sharing.likeness.look.mqa": "Each cell compares the attention weights of two query heads in layer {layer}: 1 is "
    "the same map. All heads share the same keys here, and still their looks differ where a cell is faint.",
    "sharing.likeness.begin": "Colours begin at {begin}.",
    "sharing.likeness.one": "With one token in the prompt each head can look only at that token: all maps are equal, "
    "and there is nothing to compare. Write a longer prompt.",
    "sharing.number.within": "within groups",
    "sharing.number.across": "across groups",
    "sharing.number.pairs": "{n} pairs",
    "sharing.number.none": "no such pair",
    "sharing.number.closest": "most alike",
    "sharing.number.farthest": "least alike",
    "sharing.tiled.title": "Grouped or tiled: does it matter?",
    "sharing.tiled.axis": "largest difference of head_out",
    "sharing.tiled.rms": "usual size of head_out (rms) {rms}",
    "sharing.tiled.alt": "How far the output of each of {heads} heads moves when heads are tiled: from {low} to "
    "{high}.",
    "sharing.row.query": "query head",
    "sharing.row.grouped": "grouped",
    "sharing.row.tiled": "tiled",
    "sharing.tiled.look": "Grouped is what this model was trained with; tiled ({order} …) is the usual slip, "
    "repeating the whole row of heads instead of each one. Heads that read the same KV head either way stand at zero.",
    "sharing.tiled.say": "Not the same output: on this input a head's output moves by up to {largest}, where outputs "
    "usually have size {rms}. The grouped output computed here is within {rounding} of the captured one.",
    "sharing.tiled.say.equal": "On this input the outputs hardly differ: by {largest} at most, where outputs usually "
    "have size {rms}; the grouped output computed here is within {rounding} of the captured one. A longer prompt or "
    "another layer may tell them apart.",
    "sharing.tiled.mha": "Every query head has its own key head, so grouped and tiled sharing are the same map: head "
    "h reads h. The output is the same, to the last bit.",
    "sharing.tiled.mqa": "There is one key head, and every way of sharing reads it: grouped and tiled are the same "
    "map, and so is the output.",
}
