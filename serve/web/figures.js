// Figures out of successive scrapes of /metrics.

const KEPT_MS = 60_000;
const SAMPLE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Prometheus' text format as a map from name to samples. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const sample = SAMPLE.exec(line);
    if (sample === null) continue;
    const labels = Object.fromEntries([...(sample[2] ?? "").matchAll(LABEL)].map((label) => [label[1], label[2]]));
    if (!found.has(sample[1])) found.set(sample[1], []);
    found.get(sample[1]).push({ labels, value: Number(sample[3]) });
  }
  return found;
}

/** The latest scrapes, and what changed between them. Everything that is not known is null. */
export class Figures {
  #scrapes = [];

  add(at, text) {
    this.#scrapes.push({ at, samples: parse(text) });
    while (this.#scrapes[0].at < at - KEPT_MS) this.#scrapes.shift();
  }

  /** Forgets everything: counters start again when a server does. */
  clear() {
    this.#scrapes = [];
  }

  has(name) {
    return this.#scrapes.at(-1)?.samples.has(name) ?? false;
  }

  /** A gauge now. */
  now(name) {
    return this.#scrapes.length ? sum(this.#scrapes.at(-1), name) : null;
  }

  /** A gauge now, by the values of one of its labels. */
  by(name, label) {
    const samples = this.#scrapes.at(-1)?.samples.get(name) ?? [];
    return new Map(samples.map((sample) => [sample.labels[label], sample.value]));
  }

  /** How much a counter grew over the last `seconds`, and over how many it really was. */
  growth(name, seconds) {
    const [before, after] = this.#span(seconds);
    if (!after) return null;
    return { by: sum(after, name) - sum(before, name), seconds: (after.at - before.at) / 1000 };
  }

  /** A counter's growth a second. */
  rate(name, seconds) {
    const growth = this.growth(name, seconds);
    return growth && growth.by / growth.seconds;
  }

  /** A counter's growth as a share of another's; null where the other did not grow. */
  share(name, ofName, seconds) {
    const part = this.growth(name, seconds);
    const whole = this.growth(ofName, seconds);
    return whole?.by ? part.by / whole.by : null;
  }

  /** The q-quantile of what a histogram took in over the last `seconds`, linear within its buckets. */
  quantile(name, q, seconds) {
    const [before, after] = this.#span(seconds);
    if (!after) return null;
    const earlier = buckets(before, name);
    const counts = buckets(after, name).map(([bound, count], i) => [bound, count - (earlier[i]?.[1] ?? 0)]);
    const wanted = q * (counts.at(-1)?.[1] ?? 0);
    if (wanted === 0) return null;
    const at = counts.findIndex(([, count]) => count >= wanted);
    const [low, below] = at ? counts[at - 1] : [0, 0];
    const [high, within] = counts[at];
    return Number.isFinite(high) ? low + ((high - low) * (wanted - below)) / (within - below) : low;
  }

  #span(seconds) {
    const after = this.#scrapes.at(-1);
    const before = this.#scrapes.find((scrape) => scrape.at >= after.at - seconds * 1000 - 100);
    return before === after ? [] : [before, after];
  }
}

function sum(scrape, name) {
  return (scrape.samples.get(name) ?? []).reduce((total, sample) => total + sample.value, 0);
}

function buckets(scrape, name) {
  const samples = scrape.samples.get(`${name}_bucket`) ?? [];
  return samples.map(({ labels, value }) => [labels.le === "+Inf" ? Infinity : Number(labels.le), value]);
}
