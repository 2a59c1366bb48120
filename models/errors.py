"""Why a model cannot be served, as sentences for the operator."""


class ModelError(Exception):
    """Base of all that can be wrong with a model; the message is one sentence that says what to do."""


class SourceError(ModelError):
    """The model cannot be found, fetched or read."""


class UnsupportedModel(ModelError):
    """The model is sound but asks for something this server does not do."""


class BrokenModel(ModelError):
    """The model's folder lacks something or contradicts itself."""
