// The document whose id is just what was typed: names are found by typing them, whatever they mean to the model.

import { findDocument } from "./api.js";
import { byId, element, plainly } from "./dom.js";
import { breakable } from "./text.js";

const LONGEST = 200; // characters of what may be an id
const LONGEST_TITLE = 200;

/** Asks for the document of each question, beside the search. `settled` is called when it is known whether there is one. */
export class Named {
  constructor(settled) {
    this.settled = settled;
    this.stop = new AbortController();
    this.id = null; // that was asked for last
    this.found = null; // the document that has it
  }

  /** Ask for the document with this id, unless that is known or asked already. What was asked before is given up. */
  async ask(id) {
    if (id === this.id) return;
    this.stop.abort();
    this.id = id;
    const mine = (this.stop = new AbortController());
    let found = null;
    try {
      if (id && id.length <= LONGEST) found = await findDocument(id, mine.signal);
    } catch (error) {
      if (mine === this.stop && error.status !== 404) this.id = null; // not known: asked with the next question
    }
    if (mine !== this.stop) return;
    this.found = found;
    this.settled();
  }

  /** Show it above the hits of an answer, unless it is the first of them or not what is asked now. */
  show(id, hits, view) {
    const there = this.found && this.found.id === id && hits[0]?.id !== id;
    byId("named").replaceChildren(...(there ? [line(this.found, view)] : []));
  }
}

function line(found, view) {
  const title = found.title && found.title !== found.id ? element("bdi", {}, ...breakable(found.title.slice(0, LONGEST_TITLE))) : null;
  const link = element("a", { href: view.link(found.id) }, element("bdi", { class: "id" }, ...breakable(found.id)), title && " ", title);
  link.addEventListener("click", plainly(() => view.open(found.id)));
  return element("p", {}, "Document ", link);
}
