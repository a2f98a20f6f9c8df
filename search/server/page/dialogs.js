// The two small dialogs: keyboard shortcuts, and the key for the server.

import { isKey } from "./api.js";
import { button, byId, cross, element } from "./dom.js";

const KEYS = [
  [["/"], "to the search box"],
  [["↓", "↑"], "from hit to hit; also j and k"],
  [["Enter"], "open the document"],
  [["m"], "more like the hit"],
  [["Esc"], "close, return to the search box, clear it"],
  [["?"], "this list"],
];

function closeButton(dialog) {
  return element("button", { type: "button", class: "tool", "aria-label": "Close", on: { click: () => dialog.close() } }, cross());
}

/** Show the keyboard shortcuts. */
export function showHelp() {
  const dialog = byId("help");
  const rows = KEYS.map(([keys, what]) => element("div", {}, element("dt", {}, ...keys.map((key) => element("kbd", {}, key))), element("dd", {}, what)));
  const head = element("header", {}, element("h2", { id: "help-title" }, "Keys"), closeButton(dialog));
  dialog.replaceChildren(head, element("dl", { class: "keys" }, ...rows));
  if (!dialog.open) dialog.showModal();
}

/** Ask for a key. `rejected`: the server refused the last one. `give(key, onDevice)` gets the key. */
export function askKey(rejected, give) {
  const dialog = byId("key");
  const input = element("input", { type: "password", name: "key", autocomplete: "off", spellcheck: "false", "aria-label": "Key", "aria-describedby": "key-said", required: true, autofocus: true });
  const lasting = element("input", { type: "checkbox", name: "lasting" });
  const said = element("p", { id: "key-said" });
  const say = (text, isBad) => {
    said.textContent = text;
    said.classList.toggle("bad", isBad);
    if (isBad) said.setAttribute("role", "alert");
  };
  const form = element(
    "form",
    { method: "dialog" },
    element("h2", { id: "key-title" }, "This index requires a key"),
    said,
    input,
    element("label", { class: "lasting" }, lasting, "Remember the key on this device"),
    element("p", { class: "remark" }, "Links then open without asking for the key. Otherwise the key is kept until you close this tab."),
    element("div", { class: "ways" }, element("button", { type: "submit", class: "main" }, "Continue"), button("Cancel", () => dialog.close(), { class: "action" })),
  );
  say(rejected ? "This key was rejected. Check it, or ask the server's administrator." : "Ask the server's administrator for a key.", rejected);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const key = input.value.trim();
    if (!key) return;
    if (!isKey(key)) {
      say(`${strange(key)}, which keys cannot contain. Paste only the key, without quotation marks.`, true);
      input.select();
      return;
    }
    dialog.close();
    give(key, lasting.checked);
  });
  dialog.replaceChildren(form);
  if (!dialog.open) dialog.showModal();
  input.focus();
}

/** The first invalid character of a key, and its place. */
function strange(key) {
  const all = [...key];
  const place = all.findIndex((character) => !isKey(character));
  const code = `U+${all[place].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  return `Character ${place + 1} is ${/[\p{Z}\p{C}]/u.test(all[place]) ? `invisible (${code})` : all[place]}`;
}
