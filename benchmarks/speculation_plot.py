"""Throughput against the speed that each user sees, and the tables beside it, from results/NAME.jsonl."""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
WIDTH, HEIGHT, LEFT, TOP = 560, 340, 80, 30
COLOURS = {"plain": "#8a8a8a", "static": "#1b6ca8", "compact": "#c8553d"}
Curves = dict[str, dict[int, float]]  # by mode, by batch: tokens a second


def main(name: str = "speculation") -> None:
    """The newest figure of every mode and batch."""
    lines = [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
    curves = by_mode(lines, "serving_output_tok_s")
    (RESULTS / f"{name}.svg").write_text(plot(curves))
    print(table(curves))
    print()
    print(windows(lines))
    print()
    print(shares(lines))
    print(RESULTS / f"{name}.svg")


def by_mode(lines: Iterable[dict[str, Any]], metric: str) -> Curves:
    """One metric's newest figures."""
    found: Curves = defaultdict(dict)
    for line in lines:
        if line["metric"] == metric:
            found[line["params"]["mode"]][line["params"]["batch"]] = line["value"]
    return {mode: dict(sorted(found[mode].items())) for mode in COLOURS if mode in found}


def table(curves: Curves) -> str:
    """Tokens a second by batch, and how compact compares."""
    rows = ["| batch | " + " | ".join(curves) + " | compact ÷ best other |", "|---" * (len(curves) + 2) + "|"]
    for batch in sorted({batch for curve in curves.values() for batch in curve}):
        cells = [f"{curve[batch]:,.0f}" if batch in curve else "" for curve in curves.values()]
        others = [curve[batch] for mode, curve in curves.items() if mode != "compact" and batch in curve]
        compact = curves.get("compact", {}).get(batch)
        ratio = f"{compact / max(others):.2f}" if compact and others else ""
        rows.append(f"| {batch} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(rows)


def windows(lines: Iterable[dict[str, Any]]) -> str:
    """Mean windows of compact by kind of task and batch."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for line in lines:
        if line["metric"] == "window_mean" and line["params"]["mode"] == "compact":
            found[line["params"]["batch"]][line["params"]["kind"]] = line["value"]
    kinds = list(dict.fromkeys(kind for row in found.values() for kind in row))
    rows = ["| batch | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for batch, row in sorted(found.items()):
        rows.append(f"| {batch} | " + " | ".join(f"{row[kind]:.2f}" if kind in row else "" for kind in kinds) + " |")
    return "\n".join(rows)


def shares(lines: Iterable[dict[str, Any]]) -> str:
    """What else is asked of steps, by mode and batch."""
    wanted = ("accept_length", "step_overhead_share", "gpu_busy_share", "step_prediction_error", "same_answers")
    found: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for line in lines:
        if line["metric"] in wanted:
            found[line["params"]["mode"], line["params"]["batch"]][line["metric"]] = line["value"]
    rows = ["| mode | batch | " + " | ".join(wanted) + " |", "|---" * (len(wanted) + 2) + "|"]
    for (mode, batch), row in sorted(found.items()):
        cells = [f"{row[metric]:.3f}" if metric in row else "" for metric in wanted]
        rows.append(f"| {mode} | {batch} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def plot(curves: Curves) -> str:
    """Each user's tokens a second to the right, all users' upward; a point a batch."""
    points = {mode: [(rate / batch, rate, batch) for batch, rate in curve.items()] for mode, curve in curves.items()}
    most_x = max(x for line in points.values() for x, _, _ in line)
    most_y = max(y for line in points.values() for _, y, _ in line)
    body = [
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#cccccc"/>',
        text(LEFT + WIDTH / 2 - 90, TOP + HEIGHT + 40, "tokens a second of each user"),
        text(8, TOP - 12, "tokens a second of all users"),
    ]
    for share in (0.25, 0.5, 0.75, 1.0):
        body.append(text(LEFT + WIDTH * share - 16, TOP + HEIGHT + 18, f"{most_x * share:,.0f}"))
        body.append(text(8, TOP + HEIGHT * (1 - share) + 4, f"{most_y * share:,.0f}"))
    for place, (mode, line) in enumerate(points.items()):
        at = [(LEFT + WIDTH * x / most_x, TOP + HEIGHT * (1 - y / most_y), batch) for x, y, batch in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in at)
        body.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[mode]}" stroke-width="2"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[mode]}"/>' for x, y, _ in at]
        if mode == "compact":
            body += [text(x + 5, y - 5, str(batch)) for x, y, batch in at]
        body.append(f'<rect x="{LEFT + WIDTH - 110}" y="{TOP + 14 + 20 * place}" width="12" height="12" ')
        body[-1] += f'fill="{COLOURS[mode]}"/>'
        body.append(text(LEFT + WIDTH - 92, TOP + 25 + 20 * place, mode))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + LEFT + 40}" height="{TOP + HEIGHT + 60}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def text(x: float, y: float, words: str) -> str:
    """One label."""
    return f'<text x="{x:.0f}" y="{y:.0f}">{words}</text>'
