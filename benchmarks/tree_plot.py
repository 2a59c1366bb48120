"""Draws how match and insert grow with tokens, nodes and components, from results/tree.jsonl into results/tree.svg.

python benchmarks/tree_plot.py
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
WIDTH, HEIGHT, LEFT, TOP = 380, 260, 60, 40  # of one panel's axes, and the room beside and above it
COLOURS = ("#1b6ca8", "#8a8a8a", "#c8553d", "#588157", "#6a4c93")
PANELS = (
    ("tree_match_ms", "by tokens", "tokens", "match, tokens"),
    ("tree_match_ms", "by nodes", "nodes", "match, nodes in the tree"),
    ("tree_insert_ms", "by tokens", "tokens", "insert, tokens"),
    ("tree_insert_ms", "by nodes", "nodes", "insert, nodes in the tree"),
)
Point = tuple[float, float]


def main() -> None:
    """The newest figure of each point, page size 1."""
    lines = [json.loads(line) for line in (RESULTS / "tree.jsonl").read_text().splitlines()]
    panels = [(title, series(lines, metric, case, by)) for metric, case, by, title in PANELS]
    (RESULTS / "tree.svg").write_text(page(panels))
    print(RESULTS / "tree.svg")


def series(lines: Iterable[dict], metric: str, case: str, by: str) -> dict[str, list[Point]]:
    """Points by combination of components: what grows, and milliseconds."""
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for line in lines:
        params = line["params"]
        if line["metric"] != metric or params.get("case") != case or params["page_size"] != 1:
            continue
        if params.get("call", "match") == "match":
            found[params["components"]][params[by]] = line["value"]
    return {name: sorted(points.items()) for name, points in found.items()}


def page(panels: Sequence[tuple[str, dict[str, list[Point]]]]) -> str:
    """All panels side by side, with one legend."""
    total = len(panels) * (WIDTH + LEFT) + 40
    body = [panel(index * (WIDTH + LEFT), title, lines) for index, (title, lines) in enumerate(panels)]
    names = dict.fromkeys(name for _, lines in panels for name in lines)
    for place, name in enumerate(names):
        x, y = LEFT + place * 190, TOP + HEIGHT + 50
        body.append(f'<rect x="{x}" y="{y - 9}" width="12" height="12" fill="{COLOURS[place]}"/>')
        body.append(text(x + 18, y + 2, name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{TOP + HEIGHT + 80}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def panel(left: float, title: str, lines: dict[str, list[Point]]) -> str:
    """One plot, both axes logarithmic, milliseconds upward."""
    points = [point for line in lines.values() for point in line]
    if not points:
        return text(left + LEFT, TOP, f"{title}: no figures")
    low_x, high_x = span(x for x, _ in points)
    low_y, high_y = span(y for _, y in points)

    def place(point: Point) -> str:
        x = left + LEFT + WIDTH * (math.log10(point[0]) - low_x) / (high_x - low_x)
        y = TOP + HEIGHT - HEIGHT * (math.log10(point[1]) - low_y) / (high_y - low_y)
        return f"{x:.1f},{y:.1f}"

    parts = [text(left + LEFT, TOP - 14, f"{title} (ms)")]
    for exponent in range(low_y, high_y + 1):
        start, stop = place((10**low_x, 10.0**exponent)), place((10**high_x, 10.0**exponent))
        parts.append(f'<polyline points="{start} {stop}" stroke="#dddddd"/>')
        parts.append(text(left + 14, float(start.split(",")[1]) + 4, f"{10.0**exponent:g}"))
    for exponent in range(low_x, high_x + 1):
        x = float(place((10.0**exponent, 10**low_y)).split(",")[0])
        parts.append(text(x - 10, TOP + HEIGHT + 18, f"{10**exponent:,}"))
    for colour, line in zip(COLOURS, lines.values(), strict=False):
        path = " ".join(place(point) for point in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "\n".join(parts)


def span(values: Iterable[float]) -> tuple[int, int]:
    """The powers of ten around the values."""
    logs = [math.log10(value) for value in values]
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    return low, max(high, low + 1)


def text(x: float, y: float, words: str) -> str:
    """Words at a place."""
    return f'<text x="{x:.0f}" y="{y:.0f}">{words}</text>'


if __name__ == "__main__":
    main()
