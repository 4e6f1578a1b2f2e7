"""The words of the two paths of attention: beside each other, and wherever a number says which one made it."""

from __future__ import annotations

EN: dict[str, str] = {
    "paths": "Two paths",
    "paths.explicit": "explicit",
    "paths.fused": "fused",
    "paths.lead": "The explicit path makes scores, masked and weights tensors, which can be seen, kept and edited. The "
    "fused path hands queries, keys and values to torch's scaled_dot_product_attention, which goes through the same "
    "cells in pieces and keeps nothing of T × S.",
    "paths.was.explicit": "This pass took the explicit path: the maps on this page are tensors of the pass.",
    "paths.was.fused": "This pass took the fused path and had no maps: those on this page were made after it, from its "
    "q_rot and k_rot, explicitly.",
    "paths.was.some": "This pass was {path}. Where it was fused it had no maps: those on this page were made after it, "
    "from its q_rot and k_rot, explicitly.",
    "paths.made": "Made explicitly, from q_rot and k_rot: the pass ran fused and had no such tensor.",
    "paths.own": "Of the pass itself: in layer {layer} it ran explicitly.",
    "paths.compare": "Compare their numbers",
    "paths.comparing": "Running the {tokens} tokens once more, on the other path",
    "paths.layer": "layer",
    "paths.line.apart": "{step} apart",
    "paths.line.rms": "{step} rms",
    "paths.apart.axis": "size",
    "paths.apart.alt": "Largest differences between the two paths in {layers} layers: {steps}.",
    "paths.apart.alt.one": "{step} at most {apart}, its usual size {rms}",
    "paths.apart.look": "Solid: the cell at which explicit and fused differ most. Dotted: the usual size (rms) of the "
    "same step. Each decade between them is one more digit that agrees.",
    "paths.apart.same": "A layer without a point is the same on both, bit for bit.",
    "paths.apart": "{step}, largest |Δ|",
    "paths.apart.share": "{share} × rms, layer {layer}",
    "paths.apart.share.logits": "{share} × rms",
    "paths.within": "That is rounding: both add the same products, in another order. In {dtype} it may reach {bound} × "
    "rms; here it reaches {share} ×.",
    "paths.within.bfloat16": "In bfloat16 the explicit path rounds every score to two or three digits before the "
    "softmax, which the fused one does not.",
    "paths.beyond": "That is more than rounding explains: in {dtype} it may reach {bound} × rms, and here it reaches "
    "{share} ×. One of the two paths computes something else.",
    "paths.next": "After “{token}” both expect “{next}”.",
    "paths.next.other": "After “{token}” the explicit path expects “{explicit}”, the fused one “{fused}”.",
    "paths.next.all": "At every one of {n} positions they expect the same token.",
    "paths.next.some": "At {differ} of {n} positions they expect different tokens.",
    "paths.time": "Measure time and memory",
    "paths.time.again": "Measure again",
    "paths.time.on": "Timing both paths: {done} of {n} lengths",
    "paths.time.stop": "stop",
    "paths.time.stopped": "You stopped it: longer prompts were not timed.",
    "paths.time.ended": "Longer prompts were left out: they would take more than the {seconds} of this measurement, or "
    "more memory than is free.",
    "paths.axis": "tokens T (log)",
    "paths.tokens": "tokens",
    "paths.seconds": "Seconds of one pass (log)",
    "paths.seconds.look": "Measured: medians of up to five plain passes on this server, the two paths in turn, nothing "
    "recorded. "
    "The dotted line is this prompt's length.",
    "paths.bytes": "Memory of one pass (log)",
    "paths.bytes.look": "Computed from shapes: what a pass needs at once beside the weights. Explicitly, scores, "
    "masked and weights of all heads of a layer stand there together and grow with T².",
    "paths.cost.alt": "{name}, from {first} to {last} tokens; at the last {explicit} explicitly, {fused} fused.",
    "paths.cost.at": "Over {T} tokens a pass takes {explicit} explicitly and {fused} fused, and needs {bytes} at once "
    "against {fewer}.",
    "paths.cost.equal": "Over {T} tokens a pass takes {explicit} explicitly and {fused} fused. Both need {bytes} at "
    "once: the logits, T × V, are larger than the maps of a layer as yet.",
    "paths.cost.room": "Over {T} tokens the explicit path, {bytes} at once, does not fit into the memory that is free; "
    "fused takes {fused} and {fewer}.",
    # statistics that a fused pass has not
    "paths.not_yet": "not computed yet",
    "paths.stats.not_yet": "Not computed yet: {at}. The pass ran fused and had no such tensor.",
    "paths.stats.compute": "Compute the statistics",
    "paths.stats.computing": "Making {at} from q_rot and k_rot, head by head",
    "paths.stats.source": "Δ is left out: the statistics of {source} are not computed yet.",
    "paths.stats.changed": "Against {source}: comes with the statistics.",
    "paths.stats.made": "{step} was made again from q_rot and k_rot by the explicit path; the pass had no such tensor.",
    "paths.stats.head_out": "head_out is the fused kernel's own: it never had the weights.",
    "paths.stats.explicit": "In layer {layer} this pass ran explicitly.",
    "paths.stats.same": "The pass ran fused; {step} itself is computed the same way on both paths.",
    "paths.missing": "Not computed yet: {steps} of {layers} layers. The pass ran fused and never had them as tensors.",
    "paths.missing.one": "Not computed yet: {steps} of 1 layer. The pass ran fused and never had them as tensors.",
    "paths.missing.compute": "Compute them",
    "paths.missing.computing": "Making scores and weights of every layer, head by head",
    "paths.missing.column": "numbers",
    "paths.missing.chosen": "Not computed yet.",
}
