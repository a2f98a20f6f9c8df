// The two small dialogs: which keys do what, and the key that the server asks for.

import { isKey } from "./api.js";
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

/** Ask for a key; `rejected`: the server refused the one that was sent. `give(key, onDevice)` gets another. */
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
    element("h2", { id: "key-title" }, "This index needs a key"),
    said,
    input,
    element("label", { class: "lasting" }, lasting, "Remember the key on this device"),
    element("p", { class: "remark" }, "Links then open without asking again. Otherwise the key lasts until you close this tab."),
    element("div", { class: "ways" }, element("button", { type: "submit", class: "main" }, "Continue"), button("Cancel", () => dialog.close(), { class: "action" })),
  );
  say(rejected ? "That key is not accepted. Check it, or ask whoever runs this server." : "Whoever runs this server can give you one.", rejected);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const key = input.value.trim();
    if (!key) return;
    if (!isKey(key)) {
      say(`${strange(key)}, which no key contains. Paste the key alone, without quotation marks.`, true);
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

/** The first character of a key that cannot be sent, and its place. */
function strange(key) {
  const all = [...key];
  const place = all.findIndex((one) => !isKey(one));
  const code = `U+${all[place].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  return `Character ${place + 1} is ${/[\p{Z}\p{C}]/u.test(all[place]) ? `invisible (${code})` : all[place]}`;
}
