"""Draws hit rates and modelled times to the first token by trace and eviction order, as bars."""

from collections.abc import Mapping
from pathlib import Path

PLOT = Path(__file__).parent / "results" / "eviction.svg"
WIDTH, BAR, GAP, LABEL = 300, 16, 6, 96  # of a panel's longest bar; of a bar and the room below it; beside the bars
COLOURS = {"lru": "#8a8a8a", "lfu": "#588157", "slru": "#1b6ca8", "priority": "#c9a227", "tlru": "#c8553d"}
METRICS = (
    ("hit_rate", "hit rate", "{:.1%}"),
    ("ttft_ms_p50", "TTFT p50, ms", "{:,.0f}"),
    ("ttft_ms_p99", "TTFT p99, ms", "{:,.0f}"),
)
Rows = Mapping[str, Mapping[str, float]]  # by order, by metric


def draw(found: Mapping[str, Rows]) -> None:
    """A row of three panels a trace."""
    body, top = [], 10
    for trace, rows in found.items():
        for place, (metric, title, style) in enumerate(METRICS):
            body += _panel(
                place * (WIDTH + LABEL + 80), top, f"{trace}: {title}", {n: (r[metric], style) for n, r in rows.items()}
            )
        top += 50 + len(rows) * (BAR + GAP)
    width = len(METRICS) * (WIDTH + LABEL + 80)
    PLOT.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" font-family="sans-serif" '
        'font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )
    print(PLOT)


def _panel(left: int, top: int, title: str, bars: Mapping[str, tuple[float, str]]) -> list[str]:
    longest = max(value for value, _ in bars.values()) or 1.0
    parts = [_text(left + LABEL, top + 14, title)]
    for nth, (name, (value, style)) in enumerate(bars.items()):
        y, length = top + 24 + nth * (BAR + GAP), WIDTH * value / longest
        colour = COLOURS[name.split()[0]]
        parts.append(f'<rect x="{left + LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
        parts += [_text(left + 10, y + 12, name), _text(left + LABEL + length + 6, y + 12, style.format(value))]
    return parts


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}">{words}</text>'
