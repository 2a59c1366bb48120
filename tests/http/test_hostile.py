"""Nothing a client sends harms the server: hostile bodies for every route, and a look at the server after them.

Fields are those that /openapi.json tells, so a new route or field joins the corpus by itself.
"""

import json
import re
from collections.abc import Iterator

import pytest

from tests.http.client import at_once, complete, tape

pytestmark = pytest.mark.server

# Bodies that are no request at all, whatever the route.
NO_REQUEST = [
    b"", b"{", b"[]", b'"x"', b"null", b"5", b"true", b"\x00", b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b'{"a": \xff}',
    b"[" * 100_000, b'{"a":' * 100_000, b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\\ud800"}', b'{"prompt": 1e999}', b'{"prompt": NaN}', b"{'a': 1}",
    b'{"prompt": "' + b"9" * 1_000_000, b'{"' + b"k" * 1_000_000 + b'": 1}', b'{"prompt": ' + b"9" * 100_000 + b"}",
    b"{" + b",".join(b'"%d": 1' % i for i in range(20_000)) + b"}", b'{"__proto__": {"a": 1}}', b"<xml/>",
    b'{"prompt": "a"} trailing', b'{"prompt": "a", "prompt": ["b"], "prompt": 5}', b"prompt=a&max_tokens=5",
]  # fmt: skip
# What stands in for the value of each field, one field at a time.
VALUES = [
    True,
    -1,
    0,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    1.5,
    -0.0,
    1e308,
    "",
    "x",
    "\u0000",
    "\ud83d\ude00" * 500,
    "%s%n{0}",
    "../../etc/passwd",
    "'; DROP TABLE x; --",
    "x" * 100_000,
    [],
    [[]],
    [None],
    [True],
    [-1],
    ["", 1],
    [2**63],
    {},
    {"": {}},
    {"type": "x"},
    {"a" * 5000: 1},
    {"-1": 1},
    {"97": "x"},
    {"type": "json_schema", "json_schema": {}},
    [{}] * 2000,
]
# Grammars and tools that other servers died of.
NESTED: dict = {"type": "string"}
for _ in range(200):
    NESTED = {"type": "object", "properties": {"a": NESTED}, "required": ["a"]}
GRAMMARS = {
    "regex": [
        "(",
        "a{2,1}",
        "(?=a)b",
        "(a+)+$",
        "a" * 20_000,
        "|".join(map(str, range(20_000))),
        "(" * 5000 + ")" * 5000,
        "[z-a]",
        "\\p{Nope}",
        "(?<x>a)\\k<y>",
        "a{1000000}",
        "\\",
    ],
    "ebnf": ["root ::= foo", "", "root ::= root", 'root ::= "a" root root | root', "::=", 'root ::= "' + "x" * 50_000],
    "json_schema": [
        "{",
        "{}",
        json.dumps({"type": "foo"}),
        json.dumps({"$ref": "#/$defs/nope"}),
        "false",
        json.dumps({"$ref": "#"}),
        json.dumps(NESTED),
        json.dumps({"enum": [f"x{i}" for i in range(20_000)]}),
        json.dumps({"type": "string", "pattern": "("}),
        json.dumps({"minimum": "x"}),
    ],
    "structural_tag": ["{}", '{"type": "structural_tag"}', "x", '{"format": {"type": "nope"}}'],
}
# They would stop the others, or write traces.
OPERATORS = {"/flush_cache", "/abort_request", "/pause_generation", "/start_profile", "/stop_profile"}
ENOUGH = 300


@pytest.fixture(scope="module")
def server(serving):
    with serving("corymb/tape", "--max-total-tokens", "8192", "--context-length", "512") as server:
        yield server


def bodies(server) -> Iterator[tuple[str, bytes]]:
    """The corpus: (path, body)."""
    user = [{"role": "user", "content": tape("a")}]
    base = {
        "messages": user,
        "prompt": tape("a"),
        "text": tape("a"),
        "tokens": [97],
        "max_tokens": 8,
        "input": tape("a"),
    }
    for path, item in server.client.get("/openapi.json").json()["paths"].items():
        if "requestBody" not in item.get("post", {}) or path in OPERATORS:
            continue
        yield from ((path, body) for body in NO_REQUEST)
        schema = item["post"]["requestBody"]["content"]["application/json"]["schema"]
        fields = set(schema.get("properties", base))
        good = {
            name: value for name, value in base.items() if name in fields and (name, path) != ("prompt", "/tokenize")
        }
        for name in sorted(fields):
            for value in VALUES:
                yield path, json.dumps({**good, "max_tokens": 8, name: value}).encode()
        for name, grammars in GRAMMARS.items():
            for grammar in grammars:
                yield path, json.dumps({**good, name: grammar, "sampling_params": {name: grammar}}).encode()


def status(server, path: str, body: bytes) -> int:
    response = server.client.post(path, content=body, headers={"content-type": "application/json"})
    assert len(response.content) < 16_384 or response.status_code == 200
    assert not re.search(r"Traceback|site-packages|AttributeError|pydantic", response.text)
    return response.status_code


def pools(server) -> dict[str, float]:
    """Tokens by kind of use, over all pools."""
    found = re.findall(r"^corymb_pool_(\w+)_tokens{.*} (\S+)$", server.client.get("/metrics").text, re.MULTILINE)
    return {use: sum(float(value) for name, value in found if name == use) for use, _ in found}


def test_nothing_in_the_corpus_harms_the_server(server) -> None:
    children = {name: child.pid for name, child in server.children.items()}
    server.wait_for(lambda: pools(server).get("capacity"), 10)
    capacity = pools(server)["capacity"]
    corpus = sorted(set(bodies(server)))
    assert len(corpus) >= ENOUGH

    def quarter(first: int) -> list[tuple[str, bytes, int]]:
        return [(path, body, status(server, path, body)) for path, body in corpus[first::4]]

    answers = [answer for part in at_once([lambda i=i: quarter(i) for i in range(4)]) for answer in part]
    assert [(path, body[:200], code) for path, body, code in answers if code >= 500] == []
    assert sum(code >= 400 for _, _, code in answers) >= ENOUGH
    assert {name: child.pid for name, child in server.children.items()} == children
    assert "Traceback" not in server.log
    assert complete(server, tape("still here"), max_tokens=20).json()["choices"][0]["text"] == "still here"
    assert server.client.post("/flush_cache").json()["success"] is True
    server.wait_for(lambda: pools(server) == {"used": 0, "evictable": 0, "capacity": capacity}, 5)
