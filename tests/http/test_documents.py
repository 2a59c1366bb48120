"""The documentation says what the code does."""

import pytest

from corymb.serve.errors import KINDS
from tests.http.tables import documents, filled, tables


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_generated_tables_are_those_of_the_code(simulated_tape, path) -> None:
    made = tables(route.endpoint.route for route in simulated_tape.app.routes)
    text = path.read_text()
    assert filled(text, made) == text, "run: PYTHONPATH=.dev:. python -m tests.http.tables"


def test_every_table_has_a_place(simulated_tape) -> None:
    made = tables(route.endpoint.route for route in simulated_tape.app.routes)
    text = "".join(path.read_text() for path in documents())
    assert [name for name in made if f"<!-- table: {name} -->" not in text] == []


def test_every_kind_of_error_has_an_openai_type() -> None:
    for kind in KINDS.values():
        assert 400 <= kind.status < 600
        assert (kind.type == "invalid_request_error") == (kind.status < 500 and kind.status not in (401, 403, 429))
