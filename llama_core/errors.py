"""Every error of ours. Its text is the sentence the page shows, so each one says
what was asked, what was found, the usual reason and the next move.

A caller who wants to catch "anything Glass Llama refuses" catches GlassLlamaError;
any other exception that comes out of this package is a bug.
"""


class GlassLlamaError(Exception):
    """Base of all our refusals; `str(error)` is a finished sentence for a person."""


class ConfigError(GlassLlamaError):
    """Sizes that cannot go together, or a config.json that we cannot honour."""


class CheckpointError(GlassLlamaError):
    """A model that cannot be found, opened or trusted."""


class TokenizerError(GlassLlamaError):
    """Text or ids that this model's vocabulary cannot take."""


class AddressError(GlassLlamaError):
    """An address such as `3.q_rot` that does not exist in this model."""


class NotComputedError(AddressError):
    """The address exists, but the run stopped before it."""


class RunError(GlassLlamaError):
    """A forward pass that cannot be started (too long, too large, wrong device)."""
