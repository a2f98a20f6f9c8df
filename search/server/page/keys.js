// Keyboard shortcuts: to the search box, from hit to hit, and back.

import { showHelp } from "./dialogs.js";
import { byId } from "./dom.js";

function isEditable(target) {
  return target instanceof HTMLElement && target.closest("input:not([type=checkbox]), textarea, select") !== null;
}

function links() {
  return [...byId("hits").querySelectorAll("a.open")];
}

/** Focus the next or previous hit; the search box is before the first. False without hits. */
function step(by) {
  const all = links();
  const at = all.findIndex((link) => link.closest("article").contains(document.activeElement));
  const next = at < 0 ? inView(all) + Math.min(by, 0) : at + by;
  if (next < 0) byId("query").focus();
  else all[Math.min(next, all.length - 1)]?.focus();
  return next < 0 || all.length > 0;
}

/** The first link visible below the bar, to start from when no hit has the focus. */
function inView(all) {
  const bar = document.querySelector(".top").getBoundingClientRect().bottom;
  const at = all.findIndex((link) => link.getBoundingClientRect().top >= bar);
  return at < 0 ? all.length : at;
}

/** `act` has `like(id)`, `clear()` and `isEmpty()`. */
export function listenToKeys(act) {
  const box = byId("query");

  function inBox(event) {
    if (event.key === "ArrowDown") return step(1);
    if (event.key === "Escape" && !act.isEmpty()) act.clear();
    else if (event.key === "Escape") box.blur();
    else return false;
    return true;
  }

  function elsewhere(event) {
    const hit = document.activeElement?.closest?.("article.hit");
    if (event.key === "/") {
      box.focus();
      box.select();
    } else if (event.key === "?") showHelp();
    else if (event.key === "j" || event.key === "ArrowDown") return step(1);
    else if (event.key === "k" || event.key === "ArrowUp") return step(-1);
    else if (event.key === "m" && hit) act.like(hit.dataset.id);
    else if (event.key === "Escape") box.focus();
    else return false;
    return true;
  }

  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target !== box && isEditable(event.target)) return;
    if (event.target === box ? inBox(event) : elsewhere(event)) event.preventDefault();
  });
  byId("keys").addEventListener("click", showHelp);
}
