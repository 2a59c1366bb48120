"""Drives JSON-Schema-Test-Suite through the gate: how much of it is accepted, and whether all of that is enforced.

The suite comes with the source distribution of jsonschema (PyPI):

pip download --no-deps --no-binary :all: jsonschema==4.26.0 && tar xzf jsonschema-4.26.0.tar.gz
python benchmarks/schema_suite.py jsonschema-4.26.0/json/tests --write docs/structured.md
"""

import argparse
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import record

from corymb.models.grammar_backends import Backend, Program, Vocabulary, make_backend
from corymb.scheduler.messages import Grammar
from corymb.serve.rules import TooComplex
from corymb.serve.schema_words import Unsupported
from corymb.serve.schemas import schema_rules
from corymb.serve.tokenizer import BYTE_SPECIALS, byte_tokenizer

DRAFTS = ("draft2020-12", "draft7")
EOS_ID = 257
BEGIN, END = "<!-- schema_suite begins -->\n", "<!-- schema_suite ends -->\n"


@dataclass
class Figures:
    """Of one draft."""

    schemas: int = 0
    accepted: int = 0
    valid: int = 0  # values of accepted schemas that are right
    reached: int = 0  # those that an answer can be
    invalid: int = 0
    violated: list[str] = field(default_factory=list)  # wrong values that an answer can be
    refused: Counter[str] = field(default_factory=Counter)  # by keyword


def main() -> None:
    """Counts, records, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, help="the folder that holds the drafts")
    parser.add_argument("--write", type=Path, help="the document whose table to rewrite")
    parser.add_argument("--backends", nargs="+", default=["xgrammar", "llguidance"])
    options = parser.parse_args()
    found = {
        (draft, name): measure(_backend(name), options.suite / draft) for name in options.backends for draft in DRAFTS
    }
    for (draft, name), figures in found.items():
        params = {"draft": draft, "backend": name}
        record("schema_suite", "schemas_accepted", figures.accepted / figures.schemas, "share", **params)
        record("schema_suite", "valid_values_reached", figures.reached / figures.valid, "share", **params)
        record("schema_suite", "accepted_but_violated", len(figures.violated), "values", **params)
    if options.write:
        text = options.write.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        options.write.write_text(before + BEGIN + table(found) + END + after)
    violated = [line for figures in found.values() for line in figures.violated]
    print("\n".join(violated))
    sys.exit(bool(violated))


def measure(backend: Backend, folder: Path) -> Figures:
    """Every case of one draft."""
    figures = Figures()
    for path in sorted(folder.rglob("*.json")):
        for case in json.loads(path.read_text()):
            figures.schemas += 1
            try:
                rules = schema_rules(case["schema"])
            except (Unsupported, TooComplex) as refusal:
                word = re.search(r"keyword '([^']*)'", str(refusal))
                figures.refused[word[1] if word else "(no value is right)"] += 1
                continue
            figures.accepted += 1
            program = backend.compile(Grammar("json_schema", rules))
            for test in case["tests"]:
                count(figures, program, test, f"{path.name}: {case['description']}: {test['description']}")
    return figures


def count(figures: Figures, program: Program, test: dict[str, Any], name: str) -> None:
    """One value."""
    reached = any(accepts(program, text) for text in written(test["data"]))
    if test["valid"]:
        figures.valid += 1
        figures.reached += reached
    else:
        figures.invalid += 1
        figures.violated += [name] if reached else []


def written(value: Any) -> Iterator[str]:
    """The usual ways to write a value as JSON."""
    for ascii_only, separators in itertools.product((True, False), ((",", ":"), (", ", ": "))):
        text = json.dumps(value, ensure_ascii=ascii_only, separators=separators)
        if text.isascii() or not re.search("[\ud800-\udfff]", text):
            yield text


def accepts(program: Program, text: str) -> bool:
    """Whether an answer can be this text."""
    matcher = program.matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(EOS_ID)


def table(found: dict[tuple[str, str], Figures]) -> str:
    """For the document."""
    lines = [
        "| draft | back end | schemas | accepted | wrong values that an answer can be | right values that an answer "
        "can be | refused most often for |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (draft, name), figures in found.items():
        words = ", ".join(f"`{word}`" for word, _ in figures.refused.most_common(8) if not word.startswith("("))
        lines.append(
            f"| {draft} | {name} | {figures.schemas} | {figures.accepted} ({figures.accepted / figures.schemas:.0%}) | "
            f"{len(figures.violated)} of {figures.invalid} | {figures.reached} of {figures.valid} | {words} |"
        )
    return "\n".join(lines) + "\n"


def _backend(name: str) -> Backend:
    spelling = byte_tokenizer().spelling
    tokens = [spelling[index] for index in range(256 + len(BYTE_SPECIALS))]
    return make_backend(name, Vocabulary(tokens, spelling.specials, [EOS_ID]))


if __name__ == "__main__":
    main()
