"""How the answer to a conversation is read, and what it must follow: tools, reasoning and format taken together."""

from dataclasses import dataclass
from typing import Any

import msgspec

from corymb.scheduler.messages import Sampling, TextOptions, Thinking
from corymb.serve.grammars import Wanted
from corymb.serve.output_parser import OutputParsers, Reading, is_opened
from corymb.serve.reasoning import template_variables
from corymb.serve.tool_grammars import after_reasoning, answer_grammar, call_syntax
from corymb.serve.tools import tool_use


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What becomes of one request's text."""

    reading: Reading
    wanted: Wanted | None
    limit: Thinking | None  # of the reasoning
    shown_specials: tuple[int, ...]

    def sampling(self, asked: Sampling) -> Sampling:
        """What the scheduler must know."""
        grammar = self.wanted.grammar if self.wanted is not None else None
        return msgspec.structs.replace(asked, grammar=grammar, thinking=self.limit)

    def text(self, options: TextOptions) -> TextOptions:
        """What the detokenizer must know: marks are shown, and stop strings do not count in reasoning."""
        thinking = self.reading.thinking
        if thinking is None or not self.reading.separates:  # reasoning is content
            return msgspec.structs.replace(options, shown_specials=self.shown_specials)
        return msgspec.structs.replace(
            options,
            shown_specials=self.shown_specials,
            thought="" if self.reading.opened else thinking.opening,
            thought_end=thinking.closing,
        )


def plan_answer(parsers: OutputParsers, values: dict[str, Any], prompt: str, answer: Wanted | None) -> AnswerPlan:
    """From checked values and the rendered prompt. `answer`: what an answer without calls must follow. Raises
    ApiError."""
    use = tool_use(values)
    thinking = parsers.thinking(prompt, template_variables(values))
    syntax = call_syntax(parsers.syntax, use, answer) if use is not None else None
    reading = Reading(
        thinking=thinking,
        opened=thinking is not None and is_opened(prompt, thinking),
        separates=values.get("separate_reasoning", True),
        keeps_space=answer is not None and answer.spaced,
        streams=values.get("stream_reasoning", True),
        syntax=syntax,
        functions=use.parameters if use is not None else {},
    )
    harmony = thinking is not None and thinking.harmony
    wanted = answer_grammar(syntax, use, answer, harmony=harmony)
    if wanted is not None and thinking is not None:
        wanted = after_reasoning(wanted, thinking, parsers.mark_ids, opened=reading.opened)
    return AnswerPlan(reading, wanted, _limit(parsers, values, reading), parsers.shown_specials(reading))


def _limit(parsers: OutputParsers, values: dict[str, Any], reading: Reading) -> Thinking | None:
    max_tokens = values.get("max_thinking_tokens")
    if max_tokens is None:
        return None
    return parsers.limit(max_tokens, opened=reading.opened) if reading.thinking is not None else None
