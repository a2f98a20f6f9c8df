// The place of the filters: next to the hits on wide screens, else in a drawer.

import { button, byId, cross, element } from "./dom.js";

const WIDE = matchMedia("(min-width: 60rem)"); // as in style.css

/** Puts the panel of filters in its place. */
export class Side {
  constructor(panel) {
    this.panel = panel.root;
    this.used = false;
    const drawer = byId("drawer");
    byId("open-filters").addEventListener("click", () => this.#open(drawer));
    drawer.addEventListener("close", () => this.place(this.used));
    WIDE.addEventListener("change", () => (drawer.close(), this.place(this.used)));
  }

  /** Place the panel. If not `used`, because no column has a control, it is a small line among the options. */
  place(used) {
    const isWide = used && WIDE.matches;
    this.used = used;
    byId("side").hidden = !isWide;
    document.body.classList.toggle("with-side", isWide);
    byId("open-filters").hidden = !used || isWide;
    const home = byId("drawer").open ? byId("drawer").querySelector(".sheet-body") : byId(used ? "side" : "options");
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
