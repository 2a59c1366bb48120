// The conversation: sends it whole each time, streams the answer, and stops when asked to.

import { ask, events, reason } from "./api.js";
import { fill } from "./prose.js";
import { sampling, systemPrompt } from "./sampling.js";

const SUGGESTIONS = ["What is a corymb?", "Name three rivers.", "Write a haiku about spring.", "Explain a radix tree to a child."];
const NEAR_PX = 60; // so close to the end, the view follows the text

const list = document.getElementById("messages");
const prompt = document.getElementById("prompt");
const stop = document.getElementById("stop");
const send = document.getElementById("send");
let conversation = [];
let answering = null; // the AbortController of the answer under way

document.getElementById("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  say(prompt.value.trim());
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  say(prompt.value.trim());
});
stop.addEventListener("click", () => answering?.abort());
document.getElementById("clear").addEventListener("click", clear);
suggest();

async function say(text) {
  if (!text || answering) return;
  prompt.value = "";
  conversation.push({ role: "user", content: text });
  fill(entry("user").said, text);
  const said = conversation;
  const answer = new Answer(entry("assistant"));
  answering = new AbortController();
  showState();
  try {
    await stream(answer, answering.signal);
  } catch (error) {
    answer.fail(error.name === "AbortError" ? null : error.message);
  } finally {
    answering = null;
    showState();
  }
  said.push({ role: "assistant", content: answer.content });
  prompt.focus();
}

async function stream(answer, signal) {
  const system = systemPrompt();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...conversation];
  const body = { messages, ...sampling(), stream: true, stream_options: { include_usage: true } };
  const headers = { "content-type": "application/json" };
  const response = await ask("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw new Error(await reason(response));
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    answer.take(event);
  }
  answer.end();
}

function clear() {
  answering?.abort();
  conversation = [];
  list.replaceChildren();
  showState();
  prompt.focus();
}

function showState() {
  stop.hidden = answering === null;
  send.hidden = answering !== null;
  document.getElementById("welcome").hidden = conversation.length > 0;
}

function suggest() {
  const items = SUGGESTIONS.map((text) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => say(text));
    const item = document.createElement("li");
    item.append(button);
    return item;
  });
  document.getElementById("suggestions").append(...items);
}

function entry(role) {
  const element = document.createElement("li");
  element.className = role;
  const said = element.appendChild(document.createElement("div"));
  said.className = "said";
  list.append(element);
  element.scrollIntoView({ block: "end" });
  return { element, said };
}

/** One answer as it comes: drawn at most once a frame. */
class Answer {
  content = "";
  #reasoning = "";
  #begun = performance.now();
  #first = null;
  #finish = null;
  #usage = null;
  #drawing = 0;
  #entry;
  #thought = null;

  constructor(made) {
    this.#entry = made;
    made.element.classList.add("writing");
  }

  take({ choices, usage }) {
    this.#usage = usage ?? this.#usage;
    for (const { delta, finish_reason: finish } of choices) {
      this.content += delta.content ?? "";
      this.#reasoning += delta.reasoning_content ?? "";
      if (this.content || this.#reasoning) this.#first ??= performance.now();
      this.#finish = finish ?? this.#finish;
    }
    this.#drawing ||= requestAnimationFrame(() => this.#draw());
  }

  end() {
    this.#close(this.#figures());
  }

  /** `message` null: the person stopped it. */
  fail(message) {
    this.#close(message === null ? "stopped" : "");
    if (message) this.#entry.element.append(note("failed", message));
  }

  #close(costs) {
    cancelAnimationFrame(this.#drawing);
    this.#draw();
    this.#entry.element.classList.remove("writing");
    if (costs) this.#entry.element.append(note("costs", costs));
  }

  #draw() {
    this.#drawing = 0;
    const follows = list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_PX;
    if (this.#reasoning) this.#think();
    fill(this.#entry.said, this.content);
    if (follows) list.scrollTop = list.scrollHeight;
  }

  #think() {
    if (!this.#thought) {
      const box = document.createElement("details");
      box.className = "thought";
      box.open = true;
      const summary = box.appendChild(document.createElement("summary"));
      summary.textContent = "Reasoning";
      this.#thought = box.appendChild(document.createElement("p"));
      this.#entry.element.prepend(box);
    }
    this.#thought.textContent = this.#reasoning;
  }

  #figures() {
    const ended = performance.now();
    const tokens = this.#usage?.completion_tokens ?? 0;
    const cached = this.#usage?.prompt_tokens_details?.cached_tokens ?? 0;
    const seconds = (ended - (this.#first ?? ended)) / 1000;
    const parts = [`${tokens} tokens`];
    if (this.#first) parts.push(`first after ${Math.round(this.#first - this.#begun)} ms`);
    if (seconds > 0.05 && tokens > 1) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
    parts.push(`${cached} of ${this.#usage?.prompt_tokens ?? 0} prompt tokens cached`, this.#finish ?? "no end");
    return parts.join(" · ");
  }
}

function note(className, text) {
  const made = document.createElement("div");
  made.className = className;
  made.textContent = text;
  return made;
}
