"""The tables of the HTTP documentation, made from the code. To rewrite them: `python -m tests.http.tables`."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from corymb.serve.admin import abort_fields, pause_fields, profile_fields
from corymb.serve.anthropic_fields import count_fields, message_fields
from corymb.serve.chat_completions import chat_fields
from corymb.serve.completions import completion_fields
from corymb.serve.decisions import decision_fields
from corymb.serve.embeddings import classify_fields, embed_fields, embedding_fields
from corymb.serve.engine import ServedModel
from corymb.serve.errors import KINDS
from corymb.serve.fields import Field
from corymb.serve.native_fields import native_fields, native_sampling_fields
from corymb.serve.ollama import show_fields
from corymb.serve.ollama_fields import ollama_chat_fields, ollama_generate_fields, option_fields
from corymb.serve.parse_routes import parse_fields, separate_fields
from corymb.serve.rerank import rerank_fields
from corymb.serve.responses_fields import response_fields
from corymb.serve.routes import Route
from corymb.serve.score import score_fields
from corymb.serve.settings import HttpSettings
from corymb.serve.text_routes import detokenize_fields, tokenize_fields

DOCS = Path(__file__).parents[2] / "docs"
_VOCAB_SIZE = 1 << 17  # only the form of ids is told, not their range
_INFO = ServedModel(
    names=("model",), path="", tokenizer_path="", context_length=8192, vocab_size=_VOCAB_SIZE, eos_ids=()
)


def field_tables() -> dict[str, dict[str, Field]]:
    """Every table of fields by the name of its place in the documents."""
    return {
        "completions": completion_fields(_INFO, HttpSettings()),
        "chat": chat_fields(_INFO, HttpSettings(reasoning_parser="qwen3")),
        "generate": native_fields(_INFO, HttpSettings(), lambda _, value: value),
        "sampling_params": native_sampling_fields(_VOCAB_SIZE),
        "tokenize": tokenize_fields(_INFO, HttpSettings()),
        "detokenize": detokenize_fields(_INFO, HttpSettings()),
        "abort": abort_fields(),
        "parse_function_call": parse_fields(),
        "separate_reasoning": separate_fields(),
        "pause": pause_fields(),
        "profile": profile_fields(),
        "messages": message_fields(_INFO, HttpSettings()),
        "count_tokens": count_fields(),
        "embeddings": embedding_fields(_INFO, HttpSettings()),
        "ollama_embed": embed_fields(_INFO, HttpSettings()),
        "classify": classify_fields(),
        "score": score_fields(_INFO, HttpSettings()),
        "rerank": rerank_fields(_INFO, HttpSettings()),
        "decisions": decision_fields(_INFO, HttpSettings()),
        "ollama_chat": ollama_chat_fields(_INFO),
        "ollama_generate": ollama_generate_fields(_INFO),
        "ollama_options": option_fields(),
        "ollama_show": show_fields(),
        "responses": response_fields(_INFO, HttpSettings(enable_response_store=True)),
    }


def tables(routes: Iterable[Route]) -> dict[str, str]:
    """Every generated table by the name of its place in the documents."""
    return {name: _fields(table) for name, table in field_tables().items()} | {
        "routes": _rows(("Route", "Methods", "Who"), (_route(route) for route in routes)),
        "errors": _rows(
            ("Status", "`code`", "`type`", "When"),
            ((str(kind.status), f"`{kind.code}`", f"`{kind.type}`", kind.about) for kind in KINDS.values()),
        ),
    }


def filled(document: str, made: Mapping[str, str]) -> str:
    """The document with every place `<!-- table: NAME -->` … `<!-- end -->` filled."""

    def fill(place: re.Match[str]) -> str:
        return f"<!-- table: {place[1]} -->\n\n{made[place[1]]}\n\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->.*?<!-- end -->", fill, document, flags=re.DOTALL)


def _fields(table: Mapping[str, Field]) -> str:
    order = {"honoured": 0, "refused": 1, "ignored": 2}
    fields = sorted(table.values(), key=lambda field: order[field.treatment])
    return _rows(("Field", "Treatment", "What it takes"), ((f"`{f.name}`", f.treatment, f.accepts) for f in fields))


def _route(route: Route) -> tuple[str, str, str]:
    return f"`{route.path.replace('{id:path}', '{id}')}`", ", ".join(route.methods), route.access.name.lower()


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def documents() -> list[Path]:
    """The files that hold generated tables."""
    return sorted(DOCS.glob("*.md"))


def main() -> None:
    """Rewrites the documents in place."""
    from tests.http.conftest import simulated

    with simulated("tape") as server:
        made = tables(route.endpoint.route for route in server.app.routes)
    for path in documents():
        path.write_text(filled(path.read_text(), made))


if __name__ == "__main__":
    main()
