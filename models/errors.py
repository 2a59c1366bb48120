"""What can be wrong with a model that somebody names."""


class SourceError(Exception):
    """A model cannot be found, fetched or read; the message is one sentence for the operator."""
