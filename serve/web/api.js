// Calls to this server. Where it wants a key, the person at the page is asked once and every waiting call goes on with it.

const STORE = "corymb-key";
let asking = null;

/** Like `fetch`, with the key; asks for one as long as the server refuses what there is. */
export async function ask(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(STORE);
    const authorization = key === null ? {} : { authorization: `Bearer ${key}` };
    const response = await fetch(path, { ...options, headers: { ...options.headers, ...authorization } });
    if (response.status !== 401) return response;
    if (sessionStorage.getItem(STORE) !== key) continue; // someone typed one while this call was under way
    asking ??= askForKey({ wasWrong: key !== null }).finally(() => (asking = null));
    await asking;
  }
}

/** The sentence of an error answer. */
export async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

/** The objects of a stream of server-sent events, until [DONE]. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block === "data: [DONE]") return;
      if (block.startsWith("data: ")) yield JSON.parse(block.slice(6));
    }
  }
}

function askForKey({ wasWrong }) {
  const dialog = document.getElementById("key-dialog");
  const field = document.getElementById("key");
  document.getElementById("key-wrong").hidden = !wasWrong;
  field.value = "";
  dialog.oncancel = (event) => event.preventDefault(); // nothing works without the key
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => {
      sessionStorage.setItem(STORE, field.value);
      field.value = "";
      resolve();
    };
  });
}
