// Looks at the server once a second and draws what it sees; the chat runs by itself.

import { ask } from "./api.js";
import "./chat.js";
import { Chart } from "./chart.js";
import { Figures } from "./figures.js";
import { TreePicture } from "./tree.js";

const INTERVAL_MS = 1000;
const LATELY_S = 15; // percentiles and shares are of the last so many seconds
const TREE_NODES = 400;

const count = (value) => (value >= 10_000 ? `${(value / 1000).toFixed(0)}k` : value.toFixed(value < 10 && value % 1 ? 1 : 0));
const seconds = (value) => (value < 1 ? `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(value < 10 ? 2 : 0)} s`);
const share = (value) => `${(value * 100).toFixed(value && value < 0.1 ? 1 : 0)} %`;
const fullest = (figures, name) => {
  const capacity = figures.by("corymb_pool_capacity_tokens", "pool");
  const shares = [...figures.by(name, "pool")].map(([pool, tokens]) => tokens / (capacity.get(pool) || 1));
  return shares.length ? Math.max(...shares) : null;
};

const CHARTS = [
  {
    id: "throughput",
    title: "Throughput",
    unit: "output tokens/s",
    format: count,
    series: [
      { name: "output", colour: "stem", of: (f) => f.rate("corymb_generation_tokens_total", 3) },
      { name: "prompt", colour: "amber", of: (f) => f.rate("corymb_prompt_tokens_total", 3) },
    ],
  },
  latency("ttft", "Time to first token", "corymb_time_to_first_token_seconds", "sky"),
  latency("itl", "Between tokens", "corymb_inter_token_latency_seconds", "bloom"),
  {
    id: "requests",
    title: "Requests",
    unit: "running",
    format: count,
    series: [
      { name: "running", colour: "bloom", of: (f) => f.now("corymb_running_requests") },
      { name: "queued", colour: "amber", of: (f) => f.now("corymb_queued_requests") },
    ],
  },
  {
    id: "pool",
    title: "Fullest pool",
    unit: "in use",
    format: share,
    max: 1,
    series: [
      { name: "in use", colour: "bloom", of: (f) => fullest(f, "corymb_pool_used_tokens") },
      { name: "cached", colour: "leaf", of: (f) => fullest(f, "corymb_pool_evictable_tokens") },
    ],
  },
  {
    id: "hits",
    title: "Prompt tokens from the cache",
    unit: "lately",
    format: share,
    max: 1,
    series: [
      { name: "lately", colour: "stem", of: (f) => f.share("corymb_cached_tokens_total", "corymb_prompt_tokens_total", LATELY_S) },
      { name: "since the start", colour: "leaf", of: (f) => f.now("corymb_cache_hit_rate") },
    ],
  },
  {
    id: "acceptance",
    title: "Tokens a verified window",
    unit: "accepted",
    format: (value) => value.toFixed(2),
    needs: "corymb_accept_length", // only there when the server speculates
    series: [{ name: "accept length", colour: "sky", of: (f) => f.now("corymb_accept_length") }],
  },
];

function latency(id, title, name, colour) {
  const quantile = (q) => (f) => f.quantile(name, q, LATELY_S);
  const series = [
    { name: "p50", colour, of: quantile(0.5) },
    { name: "p95", colour: "amber", of: quantile(0.95) },
  ];
  return { id, title, unit: "median", format: seconds, series };
}

const figures = new Figures();
const charts = new Map();
const picture = new TreePicture(document.getElementById("tree"));

async function look() {
  if (document.hidden) return;
  const response = await ask("metrics");
  if (!response.ok) throw new Error(`/metrics answered ${response.status}`);
  const at = Date.now();
  figures.add(at, await response.text());
  for (const spec of CHARTS) drawChart(spec, at);
  await Promise.all([showState(), showTree()]);
}

function drawChart(spec, at) {
  if (spec.needs && !figures.has(spec.needs)) return;
  if (!charts.has(spec.id)) {
    charts.set(spec.id, new Chart(spec));
    document.getElementById("charts").append(charts.get(spec.id).element);
  }
  charts.get(spec.id).push(at, spec.series.map(({ of }) => of(figures)));
}

async function showState() {
  const response = await fetch("health");
  setState(response.ok ? "ready" : "down", response.ok ? "ready" : (await response.json()).error.code.replaceAll("_", " "));
}

async function showTree() {
  const response = await ask(`debug/tree?max_nodes=${TREE_NODES}`);
  document.getElementById("tree-card").hidden = !response.ok;
  if (!response.ok) return;
  const tree = await response.json();
  picture.show(tree.nodes);
  const held = tree.nodes.reduce((total, node) => total + node.length, 0);
  const shown = tree.truncated ? `${tree.nodes.length} of ${tree.num_nodes} nodes` : `${tree.num_nodes} nodes`;
  document.getElementById("tree-figures").textContent = `${shown}, ${held.toLocaleString("en")} tokens`;
}

function setState(state, text) {
  const pill = document.getElementById("state");
  if (pill.dataset.state === state && pill.textContent === text) return;
  pill.dataset.state = state;
  pill.textContent = text;
}

async function showModel() {
  const response = await ask("v1/models");
  document.getElementById("model").textContent = response.ok ? (await response.json()).data[0].id : "";
}

async function watch() {
  for (;;) {
    try {
      await look();
    } catch {
      setState("down", "not answering"); // gone, or starting again: its counters would start again too
      figures.clear();
    }
    await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
  }
}

await showModel().catch(() => {});
await watch();
