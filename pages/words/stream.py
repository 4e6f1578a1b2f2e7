"""The words of the page about norms and the residual stream."""

from __future__ import annotations

EN: dict[str, str] = {
    "stream.lead": "Every token has one vector that runs through all layers, the residual stream: attention and MLP "
    "only ever add to it, so it grows. Before each of them reads it, a norm brings every token to the same size, "
    "whatever the stream has become.",
    "stream.embed": "embed",
    "stream.after": "after layer",
    "stream.token": "token",
    "stream.map.name": "size of the residual stream (rms)",
    "stream.map.look": "Read a column downwards: one token's stream after each layer. Colours are logarithmic, so a "
    "token that becomes a hundred times larger than the rest does not hide how the others grow. Framed is the token "
    "chosen above.",
    "stream.map.click": "A click on a cell chooses its token and layer.",
    "stream.outlier": "The first token is an outlier here: in layer {layer} its stream has size {size} where the "
    "others have {others}, {ratio} times as much, and in {n} layers, from {first} to {last}, it is at least {least} "
    "times as large. Heads with "
    "nothing to look for rest on it; the norm takes its size away before anyone reads it.",
    "stream.added": "What each layer adds to {token}, position {position}",
    "stream.line.stream": "stream entering the layer",
    "stream.line.attention": "attention",
    "stream.line.mlp": "MLP",
    "stream.cosine": "cosine with the stream",
    "stream.sizes.alt": "Sizes of the stream and of what attention and MLP add to {token} (position {position}).",
    "stream.sizes.look": "Size (rms) of the two additions beside the stream they are added to. Where a line crosses "
    "the grey one, a single layer wrote more than all before it.",
    "stream.cosines.alt": "Cosines of what attention and MLP add to {token} (position {position}) with the stream.",
    "stream.cosines.look": "Near 1 an addition makes the stream longer, near −1 it takes away what is there, near 0 "
    "it writes something new.",
    # the norms
    "stream.norm": "The norm, from inside",
    "stream.norm.which": "which norm",
    "stream.norm.before": "rms before",
    "stream.norm.after": "rms after",
    "stream.norm.scale": "scale",
    "stream.norm.alt": "Size of each token before the norm, from {low} to {high}, and after it, about {after}.",
    "stream.norm.look": "{at} reads {source}. The scale is the mirror image of the size before, so the sizes after "
    "lie on one line: what is left of their differences comes from the weight.",
    "stream.weight.axis": "channels, sorted",
    "stream.weight.name": "weight",
    "stream.weight.hover": "channel %{customdata}<br><b>%{y:.4~g}</b>",
    "stream.weight.alt": "The norm's weight, sorted, from {low} to {high}.",
    "stream.weight.look": "The norm's learnt weight, sorted. Channels at the left end are hardly read; those at the "
    "right end are made louder.",
    "stream.weight.look.same": "The norm's weight, sorted: all the same, as they are before any training.",
    "stream.number.square": "mean of squares",
    "stream.number.here": "{token}, position {position}",
    "stream.number.scale": "scale",
    "stream.number.scale.small": "every channel times this",
    "stream.number.mean": "mean",
    "stream.number.mean.small": "LayerNorm would subtract it",
    "stream.number.eps": "eps's part",
    "stream.number.eps.small": "of what is under the root",
    "stream.number.most": "eps's largest part",
    "stream.number.most.small": "at position {position}",
    "stream.eps": "eps",
    "stream.eps.own": "{eps} · this model",
    "stream.eps.scale": "scale",
    "stream.eps.change": "change",
    "stream.eps.look": "What another eps would make of {token} (position {position}). It matters where the mean of "
    "squares is small itself: in the first layers, and with weights drawn small.",
    "stream.others": "Other norms on the same vector, {token}",
    "stream.difference.ours": "result of this norm",
    "stream.difference.hover": "channel %{text}<br>this norm %{x:.4~g}<br>difference <b>%{y:.4~g}</b>",
    "stream.difference.alt": "{name}: {n} channels, the largest difference {largest}.",
    "stream.difference.some": "One channel in {every} is drawn.",
    "stream.layer.axis": "LayerNorm minus RMSNorm",
    "stream.layer.look": "One point a channel. LayerNorm first subtracts the mean, so it differs most where the mean "
    "is far from 0 and where the weight is large; with a mean of 0 all points lie on the line.",
    "stream.bfloat16.axis": "bfloat16 minus float32",
    "stream.bfloat16.look": "The same norm with its statistics in bfloat16: the mean of squares keeps 8 bits, so the "
    "scale is off by up to about 0.4 %, and the points lie on one slanted line.",
    "stream.others.cosine": "cosine",
    "stream.others.largest": "largest difference",
    "stream.others.here": "{token}, position {position}",
    "stream.others.worst": "furthest apart: {token}, {position}",
}
