// The two small dialogs: which keys do what, and the key that the server asks for.

import { button, byId, cross, element } from "./dom.js";

const KEYS = [
  [["/"], "to the search box"],
  [["↓", "↑"], "from hit to hit; also j and k"],
  [["Enter"], "open the document"],
  [["m"], "more like the hit"],
  [["Esc"], "close, go back to the box, clear it"],
  [["?"], "these keys"],
];

function closeButton(dialog) {
  return element("button", { type: "button", class: "tool", "aria-label": "Close", on: { click: () => dialog.close() } }, cross());
}

/** Show which keys do what. */
export function showHelp() {
  const dialog = byId("help");
  const rows = KEYS.map(([keys, what]) => element("div", {}, element("dt", {}, ...keys.map((key) => element("kbd", {}, key))), element("dd", {}, what)));
  const head = element("header", {}, element("h2", { id: "help-title" }, "Keys"), closeButton(dialog));
  dialog.replaceChildren(head, element("dl", { class: "keys" }, ...rows));
  if (!dialog.open) dialog.showModal();
}

/** Ask for a key; `rejected`: the one that was sent is not right. `give` is told it. */
export function askKey(rejected, give) {
  const dialog = byId("key");
  const input = element("input", { type: "password", name: "key", autocomplete: "off", "aria-label": "Key", "aria-describedby": "key-said", required: true, autofocus: true });
  const form = element(
    "form",
    { method: "dialog" },
    element("h2", { id: "key-title" }, "This index needs a key"),
    element("p", { id: "key-said", class: rejected ? "bad" : "", role: rejected ? "alert" : null }, rejected ? "That key is not accepted. Check it, or ask whoever runs this server." : "It is kept in this tab until you close it."),
    input,
    element("div", { class: "ways" }, element("button", { type: "submit", class: "main" }, "Continue"), button("Cancel", () => dialog.close(), { class: "action" })),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const key = input.value.trim();
    if (!key) return;
    dialog.close();
    give(key);
  });
  dialog.replaceChildren(form);
  if (!dialog.open) dialog.showModal();
  input.focus();
}
