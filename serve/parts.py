"""What every handler works with."""

from dataclasses import dataclass

from corymb.serve.chat import ChatTemplate
from corymb.serve.engine import Engine
from corymb.serve.grammar_store import GrammarStore
from corymb.serve.metrics import Metrics
from corymb.serve.output_parser import OutputParsers
from corymb.serve.settings import HttpSettings
from corymb.serve.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts behind the HTTP surface."""

    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None: the model has no chat template
    settings: HttpSettings
    metrics: Metrics
    parsers: OutputParsers
    grammars: GrammarStore
