"""The words of the Activations page."""

from __future__ import annotations

EN: dict[str, str] = {
    "ranges.lead": "A forward pass is a long chain of tensors, and each has a range: most are small, a few reach very "
    "far. This page shows the range of every step in every layer, so that what is unusual, or broken, can be found and "
    "opened.",
    "ranges.broken.first": "The first step that is not finite is {at} ({where}): {nan} NaN and {inf} infinite cells, "
    "computed in {dtype}. Everything after it inherits them; look at what this step reads.",
    "ranges.measure": "what the colours show",
    "ranges.layer": "layer",
    "ranges.step": "step",
    "ranges.rms": "rms",
    "ranges.rms.name": "rms, the usual size of a value",
    "ranges.rms.look": "A row that grows stronger to the right grows with depth; the norms bring it back to about 1.",
    "ranges.largest": "largest |x|",
    "ranges.largest.name": "largest |x| of the step",
    "ranges.largest.look": "The furthest value of each step: what a number format of small range must hold.",
    "ranges.outlier": "outlier ratio",
    "ranges.outlier.name": "largest |x| divided by rms",
    "ranges.outlier.look": "How many times its usual size a step's largest value is: about 4 or 5 when values are "
    "spread like a bell, hundreds where a few carry nearly all. Such steps suffer when they are rounded to 8 bits.",
    "ranges.zeros": "zeros",
    "ranges.zeros.name": "share of exact zeros",
    "ranges.zeros.look": "Where many values are exactly 0.",
    "ranges.zeros.none": "No step of any layer holds an exact zero.",
    "ranges.broken": "NaN and inf",
    "ranges.broken.name": "cells that are NaN or infinite",
    "ranges.broken.look": "The first coloured cell, from the left and from the top, is where the numbers broke.",
    "ranges.broken.none": "There is none: every cell of every layer is finite.",
    "ranges.map.click": "Colours of sizes are logarithmic. A click on a cell chooses that step; embed, final_norm and "
    "logits, which belong to no layer, stand in the table below.",
    "ranges.map.alt": "{name} of {steps} steps in {layers} layers.",
    "ranges.open": "open this step",
    # one step over all layers
    "ranges.spread": "One step over all layers",
    "ranges.spread.counting": "Counting values: layer {ready} of {total}",
    "ranges.spread.values": "value",
    "ranges.spread.hover": "layer %{y}<br>%{customdata[0]:.4~g} … %{customdata[1]:.4~g}<br>"
    "<b>%{customdata[2]:.3~r} %</b> · %{customdata[3]:,d} values",
    "ranges.spread.look": "Each row is the histogram of {step} in one layer; the stronger, the more of its values lie "
    "there. Faint cells far from the middle are single outliers.",
    "ranges.spread.axis": "The axis is even near zero and logarithmic beyond {unit}, the usual size (median).",
    "ranges.spread.some": "Of large tensors every {every}th value is counted.",
    "ranges.spread.seen": "Only cells that a query may see are counted.",
    "ranges.spread.alt": "How the values of {name} are spread in {layers} layers, as far as {high}.",
    "ranges.channels.causal": "Scores and weights stand between a query and a key: they have no channels. Choose "
    "another step to see which of its channels reach furthest.",
    "ranges.channels.here": "The channels of {step} in layer {layer} that reach furthest:",
    "ranges.channels.shared": "Channels that are among the {n} furthest in several layers:",
    "ranges.channels.channel": "channel",
    "ranges.channels.value": "value",
    "ranges.channels.usual": "against the usual channel",
    "ranges.channels.times": "{ratio} ×",
    "ranges.channels.token": "at token",
    "ranges.channels.furthest": "furthest value",
    "ranges.channels.layers": "layers",
    "ranges.channels.head": "head {head} · {channel}",
    "ranges.channels.look": "A channel that many layers share carries the outlier through the stream: nobody removes "
    "it until a late layer does.",
    "ranges.channels.alone": "No channel is among the {n} furthest in more than one layer.",
    # the table
    "ranges.table": "Every step of this run",
    "ranges.table.at": "address",
    "ranges.table.shape": "shape",
    "ranges.table.rms": "rms",
    "ranges.table.largest": "largest |x|",
    "ranges.table.outlier": "outlier ratio",
    "ranges.table.mean": "mean",
    "ranges.table.std": "std",
    "ranges.table.min": "min",
    "ranges.table.max": "max",
    "ranges.table.look": "In the order of execution; a click on a heading sorts. Measures are of finite cells that a "
    "query may see. Choosing a row chooses that step.",
}
