// The document whose id is the query, so that typing an id finds its document.

import { findDocument } from "./api.js";
import { byId, element, plainly } from "./dom.js";
import { breakable } from "./text.js";

const LONGEST = 200; // characters of a possible id
const LONGEST_TITLE = 200;

/** Requests the document of each query, in parallel to the search. `settled` is called with each result. */
export class Named {
  constructor(settled) {
    this.settled = settled;
    this.stop = new AbortController();
    this.id = null; // the last requested id
    this.found = null; // its document
  }

  /** Request the document with this id, unless it is known or pending. Aborts an earlier request. */
  async ask(id) {
    if (id === this.id) return;
    this.stop.abort();
    this.id = id;
    const mine = (this.stop = new AbortController());
    let found = null;
    try {
      if (id && id.length <= LONGEST) found = await findDocument(id, mine.signal);
    } catch (error) {
      if (mine === this.stop && error.status !== 404) this.id = null; // unknown: the next query requests it again
    }
    if (mine !== this.stop) return;
    this.found = found;
    this.settled();
  }

  /** Show the document above the hits, unless it is the first hit or of an earlier query. */
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
