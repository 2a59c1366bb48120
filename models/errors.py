"""Why a model cannot be served, as sentences for the operator."""


class ModelError(Exception):
    """Base of all that can be wrong with a model; the message is one sentence that says what to do."""


class UnsupportedModel(ModelError):  # noqa: N818
    """The model is sound but asks for something this server does not do."""


class BrokenModel(ModelError):  # noqa: N818
    """The model's folder lacks something or contradicts itself."""
