"""The words of KV cache."""

from __future__ import annotations

EN: dict[str, str] = {
    "cache.lead": "Keys and values of a position never change once it has been read. So they are kept, and a step "
    "reads only the newest token: its query looks at the keys that are already there.",
    # the rows
    "cache.prompt_only": "Only the prompt has been read, all of it in one pass. Let the model write, and watch the "
    "cache grow by one row with each step.",
    "cache.write": "Write {n} tokens",
    "cache.filled": "rows that are filled",
    "cache.filled.help": "Moves the chosen token: the cache as it stood after the pass that read it.",
    "cache.position": "position",
    "cache.channel": "channel",
    "cache.keys": "keys · layer {layer} · KV{kv}",
    "cache.values": "values · layer {layer} · KV{kv}",
    "cache.to_come.hover": "<b>not read yet</b><br>%{y}",
    "cache.map.alt": "Map of {name}: {filled} of {total} rows are filled, {channels} channels each.",
    "cache.look.chunk": "Framed: the prompt's pass wrote its {T} rows at once.",
    "cache.look.step": "Framed: the pass that read “{token}” wrote row {last} and read all {S}.",
    "cache.look": "Keys are kept as they were turned by their position; values are not turned. Rows above a new one "
    "stay as they are.",
    "cache.look.slider": "Move the slider to see it.",
    "cache.look.group": "KV{kv} is read by the query heads {first} to {last}; it is there once.",
    "cache.look.window": "This layer looks at the last {window} positions only; older rows stay here so that the app "
    "can go back.",
    # the bytes
    "cache.bytes": "What it takes",
    "cache.bytes.one": "one position",
    "cache.bytes.one.small": "all {layers} layers",
    "cache.bytes.now": "so far",
    "cache.bytes.now.small": "{n} positions",
    "cache.bytes.full": "full context",
    "cache.bytes.mha": "without sharing",
    "cache.bytes.mha.small": "{heads} KV heads, full context",
    "cache.bytes.saved": "saved by sharing",
    "cache.bytes.saved.small": "{n} query heads to one KV head",
    "cache.bytes.look": "2 (key and value) × {kv} KV heads × {width} channels × {layers} layers × positions × the "
    "bytes of one number in {dtype}.",
    # the operations
    "cache.operations": "Operations for one more token",
    "cache.with": "with the cache",
    "cache.without": "without",
    "cache.operations.small": "token {n}",
    "cache.times": "saved",
    "cache.times.small": "fewer operations",
    "cache.operations.look": "Without a cache every token that is there is computed again for each new one. With it "
    "only the new one is: what still grows is its look at the keys. The upright line is the chosen step.",
    # the same numbers
    "cache.same": "The same numbers?",
    "cache.same.say": "The {n} tokens that were read, one by one with a cache, against one pass without.",
    "cache.same.press": "Compare",
    "cache.same.stop": "stop",
    "cache.same.running": "{done} of {n} positions compared",
    "cache.same.exact": "Exactly the same: no logit of any position differs, not in its last bit.",
    "cache.same.rounding": "The same but for rounding: the largest difference of any logit is {largest}. Sums over "
    "one row and over many are added up in another order, and {dtype} rounds each step; for logits of this size that "
    "may come to {bound}.",
    "cache.same.dynamic": "Not the same, and not by rounding: the largest difference is {largest}. Dynamic RoPE "
    "scaling changes its base when a text grows beyond {context} positions. Keys in the cache keep the angles of the "
    "base they were turned by; a pass without a cache turns all of them by the newest. Every implementation with a "
    "cache does so.",
    "cache.same.unexplained": "They differ by {largest}, more than the {bound} that rounding in {dtype} explains. "
    "Something is wrong in this cache.",
    "cache.bound": "rounding, at most {value}",
    "cache.difference.axis": "largest difference",
    "cache.difference.alt": "Largest difference of the logits at {n} positions: at most {largest}; rounding may do "
    "{bound}.",
    "cache.difference.look": "For each position, the logit that differs most. Click a bar to choose its position.",
    "cache.table.read": "tokens read",
    "cache.table.operations": "operations",
    "cache.table.time": "measured",
    "cache.table.look": "The last step of this comparison: one token on the cache, against all of them again. On a "
    "small model or a short text the fixed cost of a pass hides what is saved.",
}
