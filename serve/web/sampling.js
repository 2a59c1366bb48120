// The sampling controls. A control that nobody moved is not sent: then the model's defaults hold.

const panel = document.getElementById("sampling");
const toggle = document.getElementById("sampling-toggle");
const controls = [...panel.querySelectorAll("input, textarea")];
const initial = new Map(controls.map((control) => [control, control.type === "range" ? middle(control) : control.value]));

toggle.addEventListener("click", () => {
  panel.hidden = !panel.hidden;
  toggle.setAttribute("aria-expanded", String(!panel.hidden));
});
panel.addEventListener("input", ({ target }) => show(target, true));
document.getElementById("reset").addEventListener("click", reset);
reset();

/** The fields of the request, as the controls stand. */
export function sampling() {
  const set = controls.filter((control) => control.name !== "system" && isSet(control));
  return Object.fromEntries(set.map((control) => [control.name, control.type === "text" ? control.value : Number(control.value)]));
}

/** The system prompt; empty for none. */
export function systemPrompt() {
  return controls.find((control) => control.name === "system").value.trim();
}

function isSet(control) {
  return control.type === "range" ? !control.classList.contains("unset") : control.value !== "";
}

function reset() {
  for (const control of controls) {
    control.value = initial.get(control);
    show(control, false);
  }
}

function show(control, moved) {
  if (control.type !== "range") return;
  control.classList.toggle("unset", !moved);
  control.previousElementSibling.textContent = moved ? control.value : "default";
}

function middle({ min, max, name }) {
  return { top_p: max, min_p: min }[name] ?? (Number(min) + Number(max)) / 2;
}
