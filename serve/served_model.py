"""What the server serves."""

import msgspec

Info = dict[str, int | float | str | bool | None]


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What is served, for those who ask. Sizes of pools are 0 until the scheduler is ready."""

    names: tuple[str, ...]  # the first is the one that answers carry
    path: str
    tokenizer_path: str
    context_length: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    max_total_num_tokens: int = 0
    page_size: int = 1
    architecture: str = ""
    hidden_size: int = 0  # of embeddings; 0: the model has none to give
    version: str = ""  # of this server
    started_at: float = 0.0  # Unix time
    config: Info = {}  # every flag as resolved, secrets excluded
    scheduler: Info = {}  # what the scheduler said when it was ready
