// The radix tree drawn as a corymb: stalks leave the stem where prefixes part, and all their flowers end level.

const EASE_MS = 450;
const FADE = 30; // a branch pales to a half while so many others are used
const PAD = 12;

/** Draws what GET /debug/tree answers; moves nodes to their new places. */
export class TreePicture {
  #canvas;
  #places = new Map(); // id -> where it was, where it goes, and the node itself
  #since = 0;
  #still = matchMedia("(prefers-reduced-motion: reduce)");
  #frame = 0;

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.#redraw()).observe(canvas);
  }

  show(nodes) {
    const targets = layout(nodes);
    const now = performance.now();
    const places = new Map();
    for (const [id, target] of targets) {
      const old = this.#places.get(id) ?? this.#places.get(target.node.parent) ?? target;
      const from = old === target ? target : this.#at(old, now);
      places.set(id, { ...target, fromX: from.x, fromY: from.y });
    }
    this.#places = places;
    this.#since = now;
    this.#describe(nodes);
    this.#redraw();
  }

  #describe(nodes) {
    const leased = nodes.filter((node) => node.leases > 0).length;
    this.#canvas.dataset.nodes = nodes.length;
    this.#canvas.setAttribute("aria-label", `Radix tree of ${nodes.length} nodes, ${leased} of them in use`);
  }

  #at(place, now) {
    const part = this.#still.matches ? 1 : Math.min(1, (now - this.#since) / EASE_MS);
    const eased = 1 - (1 - part) ** 3;
    const fromX = place.fromX ?? place.x;
    const fromY = place.fromY ?? place.y;
    return { x: fromX + (place.x - fromX) * eased, y: fromY + (place.y - fromY) * eased };
  }

  #redraw() {
    this.#frame ||= requestAnimationFrame((now) => {
      this.#frame = 0;
      this.#paint(now);
      if (now - this.#since < EASE_MS) this.#redraw();
    });
  }

  #paint(now) {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const scale = devicePixelRatio;
    this.#canvas.width = width * scale;
    this.#canvas.height = height * scale;
    const pen = this.#canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const colours = palette(this.#canvas);
    const point = ({ x, y }) => ({ x: PAD + x * (width - 2 * PAD), y: height - 6 - y * (height - 6 - PAD) });
    const leaves = [...this.#places.values()].filter((place) => place.isLeaf).length;
    const radius = Math.max(1.6, Math.min(6.5, (width - 2 * PAD) / Math.max(leaves, 1) / 2.3));
    for (const place of this.#places.values()) this.#stalk(pen, place, { now, point, colours });
    for (const place of this.#places.values()) {
      if (place.node.parent !== null) flower(pen, point(this.#at(place, now)), place, { radius, colours });
    }
  }

  #stalk(pen, place, { now, point, colours }) {
    const parent = this.#places.get(place.node.parent);
    if (!parent) return;
    const from = point(this.#at(parent, now));
    const to = point(this.#at(place, now));
    pen.beginPath();
    pen.moveTo(from.x, from.y);
    pen.bezierCurveTo(from.x, from.y + (to.y - from.y) * 0.55, to.x, from.y + (to.y - from.y) * 0.35, to.x, to.y);
    pen.strokeStyle = place.leases ? colours.bloom : colours.stem;
    pen.globalAlpha = place.leases ? 0.85 : 0.3 + 0.6 * freshness(place.node);
    pen.lineWidth = 1 + 3.2 * Math.sqrt(place.share);
    pen.lineCap = "round";
    pen.stroke();
    pen.globalAlpha = 1;
  }
}

function flower(pen, { x, y }, { node, isLeaf, leases }, { radius, colours }) {
  pen.beginPath();
  pen.arc(x, y, isLeaf ? radius : radius * 0.45, 0, 2 * Math.PI);
  if (isEmptied(node)) {
    pen.fillStyle = colours.surface;
    pen.strokeStyle = colours.muted;
    pen.lineWidth = 1.3;
    pen.fill();
    pen.stroke();
    return;
  }
  pen.globalAlpha = leases ? 1 : 0.45 + 0.55 * freshness(node);
  pen.fillStyle = leases ? colours.bloom : colours.leaf;
  pen.fill();
  pen.globalAlpha = 1;
}

/** Places by id, x and y from 0 to 1: leaves level at the top, branching points as high as their depth in tokens. */
function layout(nodes) {
  const places = new Map();
  for (const node of nodes) {
    const depth = (places.get(node.parent)?.depth ?? 0) + node.length;
    places.set(node.id, { node, depth, children: [], tokens: node.length, leases: node.leases });
    places.get(node.parent)?.children.push(places.get(node.id));
  }
  const inOrder = [...places.values()];
  // Children come after their parents, so one walk backwards sums subtrees.
  for (const place of inOrder.toReversed()) {
    const parent = places.get(place.node.parent);
    if (parent) parent.tokens += place.tokens;
  }
  const deepest = Math.max(...inOrder.map(({ depth }) => depth), 1);
  const whole = Math.max(inOrder[0]?.tokens ?? 1, 1);
  const leaves = inOrder.length ? leavesOf(inOrder[0]) : [];
  leaves.forEach((leaf, i) => (leaf.x = (i + 0.5) / leaves.length));
  for (const place of inOrder.toReversed()) {
    const { children } = place;
    place.isLeaf = children.length === 0;
    place.share = place.tokens / whole;
    if (!place.isLeaf) place.x = children.reduce((total, child) => total + child.x, 0) / children.length;
    place.y = place.isLeaf && place.node.parent !== null ? 1 : 0.86 * Math.sqrt(place.depth / deepest);
  }
  return places;
}

function leavesOf(place) {
  return place.children.length ? place.children.flatMap(leavesOf) : [place];
}

function isEmptied(node) {
  return Object.values(node.components).every((held) => !held);
}

function freshness(node) {
  return 1 / (1 + node.age / FADE);
}

function palette(element) {
  const style = getComputedStyle(element);
  const names = ["stem", "leaf", "bloom", "muted", "surface"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
}
