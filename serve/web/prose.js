// A model's text as elements: fenced code, code spans and bold. Text only ever becomes text nodes, never markup.

const FENCE = /^```[^\n`]*\n?/m;
const SPAN = /(`[^`\n]+`|\*\*[^*\n]+\*\*)/;

/** Fills `element` with `text`. */
export function fill(element, text) {
  element.replaceChildren(...blocks(text));
}

function blocks(text) {
  const parts = [];
  // Every second piece between fences is code; the last one may still be open.
  text.split(FENCE).forEach((piece, i) => {
    if (i % 2 === 1) parts.push(wrapped("pre", wrapped("code", piece.replace(/\n$/, ""))));
    else parts.push(...spans(i ? piece.replace(/^\n/, "") : piece));
  });
  return parts;
}

function spans(text) {
  return text.split(SPAN).map((piece, i) => {
    if (i % 2 === 0) return piece;
    return piece.startsWith("`") ? wrapped("code", piece.slice(1, -1)) : wrapped("strong", piece.slice(2, -2));
  });
}

function wrapped(name, child) {
  const made = document.createElement(name);
  made.append(child);
  return made;
}
