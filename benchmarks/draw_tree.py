"""Draws the tree of a running server, or of a saved answer of /debug/tree, as an SVG.

python benchmarks/draw_tree.py http://127.0.0.1:30000 tree.svg --max-nodes 400
python benchmarks/draw_tree.py answer.json tree.svg

Every node is a bar from where its tokens begin to where they end, below its parent; its stripes are the components that
it holds, and a missing stripe is a tombstone. Bars in a frame are pinned by running requests.
"""

import argparse
import json
import os
import urllib.request
from pathlib import Path

COLOURS = {"full": "#1b6ca8", "index": "#8a8a8a", "sliding": "#588157", "recurrent": "#c8553d"}
WIDTH, ROW, STRIPE = 1200, 18, 4


def main() -> None:
    """Reads, lays out, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a server's URL, or a file")
    parser.add_argument("target", type=Path, help="the SVG to write")
    parser.add_argument("--max-nodes", type=int, default=400)
    options = parser.parse_args()
    tree = fetch(options.source, options.max_nodes)
    options.target.write_text(draw(tree))
    print(f"{len(tree['nodes']) - 1} of {tree['num_nodes']} nodes in {options.target}")


def fetch(source: str, max_nodes: int) -> dict:
    """The answer of /debug/tree; the operator's key comes from CORYMB_ADMIN_API_KEY."""
    if not source.startswith(("http://", "https://")):
        return json.loads(Path(source).read_text())
    request = urllib.request.Request(f"{source}/debug/tree?max_nodes={max_nodes}")  # noqa: S310
    if key := os.environ.get("CORYMB_ADMIN_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)


def draw(tree: dict) -> str:
    """One line a leaf; inner nodes stand on the line of their first child."""
    nodes = {node["id"]: node for node in tree["nodes"]}
    children: dict[int, list[int]] = {number: [] for number in nodes}
    starts = {}
    for number, node in nodes.items():
        parent = node["parent"]
        starts[number] = 0 if parent is None else starts[parent] + nodes[parent]["length"]
        if parent is not None:
            children[parent].append(number)
    lines = lines_of(children, next(iter(nodes)))
    longest = max(starts[number] + node["length"] for number, node in nodes.items()) or 1
    names = list(dict.fromkeys(name for node in nodes.values() for name in node["components"]))
    bars = [bar(node, starts[number], lines[number], names, WIDTH / longest) for number, node in nodes.items()]
    legend = [f'<text x="{10 + 110 * i}" y="14" fill="{COLOURS[name]}">{name}</text>' for i, name in enumerate(names)]
    height = ROW * (max(lines.values()) + 3)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 20}" height="{height}" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *legend, *bars, "</svg>\n"])


def lines_of(children: dict[int, list[int]], root: int) -> dict[int, int]:
    """The line of every node, from the root down and left to right."""
    lines, next_line, stack = {root: 0}, 0, [root]
    while stack:
        number = stack.pop()
        for place, child in enumerate(children[number]):
            lines[child] = lines[number] if place == 0 else -1
        if lines[number] < 0:
            next_line += 1
            lines[number] = next_line
            for child in children[number][:1]:
                lines[child] = next_line
        stack += reversed(children[number])
    return lines


def bar(node: dict, start: int, line: int, names: list[str], scale: float) -> str:
    """One node's stripes, and its frame if it is pinned."""
    x, y = 10 + start * scale, ROW * (line + 1.5)
    width = max(node["length"] * scale - 1, 1)
    words = f"{node['length']} tokens, {node['hits']} hits, {node['leases']} leases, age {node['age']}"
    parts = [f"<g><title>{words}: {node['components']}</title>"]
    for place, name in enumerate(names):
        if name in node["components"]:
            box = f'x="{x:.1f}" y="{y + place * STRIPE:.1f}" width="{width:.1f}" height="{STRIPE - 1}"'
            parts.append(f'<rect {box} fill="{COLOURS[name]}"/>')
    if node["leases"] and node["parent"] is not None:
        box = f'x="{x:.1f}" y="{y - 1:.1f}" width="{width:.1f}" height="{len(names) * STRIPE + 1}"'
        parts.append(f'<rect {box} fill="none" stroke="black"/>')
    return "".join(parts) + "</g>"


if __name__ == "__main__":
    main()
