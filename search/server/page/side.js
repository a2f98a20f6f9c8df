// Where filters and options stand: beside the hits and above them where there is room, else in a drawer.

import { button, byId, cross, element } from "./dom.js";

const WIDE = matchMedia("(min-width: 60rem)"); // as in style.css
const ROOMY = matchMedia("(min-width: 40rem)");

/** Puts the panel of filters and the options in their places. */
export class Side {
  constructor(panel, toggles) {
    this.panel = panel.root;
    this.toggles = toggles;
    this.used = false;
    const drawer = byId("drawer");
    byId("open-filters").addEventListener("click", () => this.#open(drawer));
    drawer.addEventListener("close", () => this.place(this.used));
    for (const media of [WIDE, ROOMY]) media.addEventListener("change", () => (drawer.close(), this.place(this.used)));
  }

  /** With nothing to choose from (not `used`) the panel is one small line among the options. */
  place(used) {
    const beside = used && WIDE.matches;
    const inDrawer = used && !ROOMY.matches;
    this.used = used;
    byId("side").hidden = !beside;
    document.body.classList.toggle("with-side", beside);
    byId("open-filters").hidden = !used || beside;
    if (byId("drawer").open) {
      byId("drawer").querySelector(".sheet-body").append(...(inDrawer ? [this.toggles] : []), this.panel);
      return;
    }
    if (inDrawer) this.toggles.remove();
    else if (this.toggles.parentElement !== byId("options")) byId("options").append(this.toggles);
    const home = byId(used ? "side" : "options");
    if (this.panel.parentElement !== home) home.append(this.panel);
  }

  #open(drawer) {
    const close = () => drawer.close();
    const cornered = element("button", { type: "button", class: "tool", "aria-label": "Close", on: { click: close } }, cross());
    const head = element("header", {}, element("h2", { id: "drawer-title" }, "Filters"), cornered);
    const done = element("footer", {}, button("Show results", close, { class: "main" }));
    drawer.replaceChildren(head, element("div", { class: "sheet-body" }), done);
    drawer.showModal();
    this.place(this.used);
  }
}
