"""Makes a virtual environment with pip in it, also where the distribution splits `ensurepip` off (Debian does)."""

import hashlib
import html.parser
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

INDEX = "https://pypi.org/simple/"
PIP = "pip-25.3-py3-none-any.whl"
PIP_SHA256 = "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd"


class _Links(html.parser.HTMLParser):
    """Collects the addresses that a page of a simple index links to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def main(folder: str) -> None:
    """Makes the environment at `folder`."""
    if sys.version_info < (3, 11):
        sys.exit(f"Corymb needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=…")
    has_pip = importlib.util.find_spec("ensurepip") is not None
    subprocess.run([sys.executable, "-m", "venv", *([] if has_pip else ["--without-pip"]), folder], check=True)
    python = str(pathlib.Path(folder) / "bin" / "python")
    if has_pip:
        # Debian ships `ensurepip` as a stub that fails; trust what was made, not what was promised.
        has_pip = subprocess.run([python, "-m", "pip", "--version"], check=False, capture_output=True).returncode == 0
    if not has_pip:
        with tempfile.TemporaryDirectory() as scratch:
            wheel = _fetch_pip(pathlib.Path(scratch))
            subprocess.run([python, f"{wheel}/pip", "install", "--quiet", "--no-index", str(wheel)], check=True)


def _fetch_pip(scratch: pathlib.Path) -> pathlib.Path:
    page = f"{INDEX}pip/"
    with urllib.request.urlopen(page, timeout=60) as answer:
        links = _Links()
        links.feed(answer.read().decode())
    address = next(link for link in links.links if f"/{PIP}" in link)
    with urllib.request.urlopen(urllib.parse.urljoin(page, address), timeout=180) as answer:
        body = answer.read()
    if hashlib.sha256(body).hexdigest() != PIP_SHA256:
        sys.exit(f"{PIP} from {INDEX} does not have the expected hash; nothing was installed.")
    wheel = scratch / PIP
    wheel.write_bytes(body)
    return wheel


if __name__ == "__main__":
    main(sys.argv[1])
