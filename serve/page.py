"""GET /: the web page. Its files lie in `web/` and are read once, so no path of a request reaches the disk.

The files are public: they hold nothing of this server, and a browser cannot send a key when it opens a page. What the
page shows comes from routes that need the user's key where one is set; the page asks for it.
"""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import PurePath

from corymb.serve.call import Call
from corymb.serve.routes import Handler

_ENTRY = "page.html"
_TYPES = {".html": b"text/html", ".css": b"text/css", ".js": b"text/javascript", ".svg": b"image/svg+xml"}
# Text of a model must never become code: no script but the page's own files, none inline, and no place to send to but
# this server. With Trusted Types the browser even refuses to parse a string as markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


def page_files() -> Mapping[str, Handler]:
    """What answers each path of the page."""
    folder = files("corymb.serve").joinpath("web")
    found = {file.name: _File(file.name, file.read_bytes()) for file in folder.iterdir()}
    return {"/": found.pop(_ENTRY), **{f"/web/{name}": file for name, file in sorted(found.items())}}


class _File:
    """One file, answered from memory."""

    def __init__(self, name: str, content: bytes) -> None:
        self._content = content
        kind = _TYPES[PurePath(name).suffix]
        self._headers = [(b"content-type", kind + b"; charset=utf-8"), *_HEADERS]

    async def __call__(self, call: Call) -> None:
        """Answers a GET."""
        await call.answer(200, self._content, headers=self._headers)
