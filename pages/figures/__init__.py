"""Arrays and labels in, a plotly Figure out (an SVG text from decoder_map).

Nothing here knows torch, streamlit, a model or a run; of the core only `steps` is read.
Every Figure has a fixed height, numeric axes, and in `fig.layout.meta` what a page says
about it: `meta["alt"]`, one sentence, and what `notes(fig)` of maps and histograms turns
into the sentences of a caption. Its parts are plain dicts, made a Figure once, unchecked, by
`theme.figure`: a new kind of figure belongs in the list that tests/test_figures.py checks.

    colours      the colour of each kind of step
    theme        scales, template, the chart config, plain(text), figure(parts), an empty figure
    numbers      how numbers, counts, bytes, durations and shapes are written
    pooling      which positions of a map are drawn, and what stands beside them
    heatmap      maps of values and of attention, picking a cell
    tensor_map   one step as the map that suits its axes
    histogram    how the values of a tensor are spread
    stream       the size of the residual stream over the layers
    next_token   the most likely next tokens
    sampling     the same with what temperature, top-k and top-p keep and cut
    loss         the loss at each position
    lens         what each layer would say
    attribution  the parts of a logit
    embedding    the rows that go in, and near tokens
    costs        parameters as areas, what grows with the context
    token_axis   tokens along an axis
    decoder_map  the decoder as a drawing
"""
