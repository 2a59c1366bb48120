// One small line chart: the last two minutes, a value now, and the values under the pointer.

const SPAN_MS = 120_000;
const WIDTH = 240;
const HEIGHT = 58;
const SVG = "http://www.w3.org/2000/svg";

/**
 * `spec`: title, unit, series of {name, colour}, `format` of a number, and `max` where the scale does not follow values.
 * The first series is the one that is shown large.
 */
export class Chart {
  #points = []; // {at, values}: one value a series, null where there is none
  #pointer = null; // 0 to 1 across the plot
  #parts;

  constructor(spec) {
    this.spec = spec;
    this.element = this.#build();
  }

  push(at, values) {
    this.#points.push({ at, values });
    while (this.#points[0].at < at - SPAN_MS) this.#points.shift();
    this.#draw();
  }

  #build() {
    const parts = (this.#parts = {
      value: node("span"),
      top: node("span", "top"),
      cursor: shape("line", "cursor", { y1: 0, y2: HEIGHT, visibility: "hidden" }),
      lines: this.spec.series.map(({ colour }) => shape("path", `line stroke-${colour}`)),
      areas: this.spec.series.map(({ colour }) => shape("path", `area fill-${colour}`)),
      legend: this.spec.series.map(() => node("span")),
    });
    const svg = shape("svg", "", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": true });
    const base = shape("line", "base", { x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT });
    svg.append(base, ...parts.areas, ...parts.lines, parts.cursor);
    const plot = node("div", "plot", svg, parts.top);
    plot.addEventListener("pointermove", (event) => this.#point(event.offsetX / plot.clientWidth));
    plot.addEventListener("pointerleave", () => this.#point(null));
    const legend = this.spec.series.map(({ colour }, i) => node("span", "", node("i", `fill-${colour}`), parts.legend[i]));
    const figure = node(
      "figure",
      "card chart",
      node("figcaption", "", this.spec.title),
      node("div", "value", parts.value, node("small", "", this.spec.unit)),
      plot,
      node("div", "series", ...legend),
    );
    figure.dataset.chart = this.spec.id;
    return figure;
  }

  #point(share) {
    this.#pointer = share;
    if (this.#points.length) this.#draw();
  }

  #draw() {
    const { format, series } = this.spec;
    const last = this.#points.at(-1);
    const shown = this.#underPointer() ?? last;
    const highest = this.spec.max ?? ceiling(Math.max(...this.#points.flatMap(({ values }) => values), 0));
    const x = (at) => WIDTH * (1 - (last.at - at) / SPAN_MS);
    const y = (value) => HEIGHT - 1 - ((HEIGHT - 4) * Math.min(value, highest)) / (highest || 1);
    series.forEach(({ name }, i) => {
      const runs = this.#runs(i).map((run) => run.map(({ at, value }) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`));
      this.#parts.lines[i].setAttribute("d", runs.map((run) => `M${run.join("L")}`).join(""));
      this.#parts.areas[i].setAttribute("d", runs.map(closed).join(""));
      this.#parts.legend[i].textContent = `${name} ${text(shown.values[i], format)}`;
    });
    this.#parts.value.textContent = text(shown.values[0], format);
    this.#parts.top.textContent = highest ? format(highest) : "";
    this.#parts.cursor.setAttribute("visibility", shown === last ? "hidden" : "visible");
    this.#parts.cursor.setAttribute("x1", x(shown.at));
    this.#parts.cursor.setAttribute("x2", x(shown.at));
    this.element.dataset.value = shown.values[0] ?? "";
  }

  #underPointer() {
    if (this.#pointer === null) return null;
    const at = this.#points.at(-1).at - SPAN_MS * (1 - this.#pointer);
    const distance = (point) => Math.abs(point.at - at);
    return this.#points.reduce((best, point) => (distance(point) < distance(best) ? point : best));
  }

  /** The stretches of a series without gaps. */
  #runs(i) {
    const runs = [[]];
    for (const { at, values } of this.#points) {
      if (values[i] === null) runs.push([]);
      else runs.at(-1).push({ at, value: values[i] });
    }
    return runs.filter((run) => run.length);
  }
}

/** The next of 1, 2 and 5 times a power of ten. */
function ceiling(value) {
  if (value <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}

function closed(run) {
  const x = (point) => point.split(" ")[0];
  return `M${x(run[0])} ${HEIGHT}L${run.join("L")}L${x(run.at(-1))} ${HEIGHT}Z`;
}

function text(value, format) {
  return value === null ? "–" : format(value);
}

function node(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function shape(name, className, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  if (className) made.setAttribute("class", className);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
