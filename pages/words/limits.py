"""The words of limits and settings, and of files that change under the app's feet."""

from __future__ import annotations

EN: dict[str, str] = {
    "limit.text": "The prompt's text takes {size}; this server splits at most {limit} into tokens ({setting}). "
    "Shorten it, or start the app with a higher setting.",
    "limit.tokens": "The prompt has {count} tokens; a page of this server runs at most {limit} ({setting}). "
    "Shorten it by {over}, or start the app with a higher setting.",
    "limit.model": "The weights take {needed} in {dtype}; this server loads no model above {limit} ({setting}). "
    "{advice}",
    "limit.model.stored": "The weights' files take {needed}; this server loads no model above {limit} ({setting}). "
    "{advice}",
    "limit.model.random": "Choose fewer layers, a smaller hidden width, MLP width or vocabulary.",
    "limit.model.narrow": "In bfloat16 they take {needed}: choose that dtype on the left, or start the app with a "
    "higher setting.",
    "limit.model.smaller": "Take a smaller model, or start the app with a higher setting.",
    "limit.trace": "A run of {count} tokens keeps {needed} at the least, the stream of every layer; all traces of this "
    "server may take {limit} ({setting}). At most {fits} tokens of this model fit: shorten the prompt, or start the "
    "app with a higher setting.",
    "limit.sweep": "There are {parts} parts to switch off in turn; a sweep of this server has at most {limit} "
    "({setting}). {advice}",
    "limit.sweep.layers": "Sweep over whole layers, of which there are {layers}, or start the app with a higher "
    "setting.",
    "limit.new": "More than {limit} are not written after a prompt on this server ({setting}).",
    "limit.held": "A trace holds at most {limit} ({setting}); the rest is made again when it is looked at.",
    "note.replaced": "The files of {model} have changed since they were last read: they are read again, and nothing "
    "on the screen is of the old ones.",
}
