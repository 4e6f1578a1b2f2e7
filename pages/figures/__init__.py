"""Arrays and labels in, a plotly Figure out.

Nothing here knows torch, streamlit, a model or a run; of the core only `steps` is read.
Every figure has a fixed height, numeric axes, and in `fig.layout.meta` what a page says
about it: `meta["alt"]`, one sentence, and `notes(fig)`, the sentences of its caption.

    theme       colours, scales, template, the chart config, plain(text)
    numbers     how numbers, counts, bytes, durations and shapes are written
    heatmap     maps of values and of attention, pooling, picking a cell
    histogram   how the values of a tensor are spread
    next_token  the most likely next tokens
"""
