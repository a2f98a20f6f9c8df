// Counts of the values of a column among the documents that meet the other filters.

import { countValues } from "./api.js";
import { choiceOf, conditionOf } from "./conditions.js";
import { isFiltered, withPick } from "./question.js";

const NOTHING = { values: [], least: "", most: "" };

/** Requests the counts next to the filters. `show` gets facets by column name, or null for those of all documents. */
export class Counts {
  constructor(show) {
    this.show = show;
    this.stop = new AbortController();
    this.key = "[]"; // of the last requests
  }

  /** Request the counts under this query's filters, unless they are shown. Aborts earlier requests. */
  async ask(question, columns) {
    const bodies = isFiltered(question) ? requests(question, columns) : [];
    const key = JSON.stringify(bodies);
    if (key === this.key) return;
    this.key = key;
    this.stop.abort();
    const mine = (this.stop = new AbortController());
    let facets = null;
    try {
      if (bodies.length) facets = (await Promise.all(bodies.map((body) => countValues(body, mine.signal)))).flat();
    } catch {
      facets = []; // unknown counts are hidden
    }
    if (mine === this.stop) this.show(facets && new Map(facets.map((facet) => [facet.name, facet])));
  }

  /** Forget the last requests, because the columns have changed. */
  reset() {
    this.stop.abort();
    this.key = "[]";
  }
}

/** One request for all columns without a pick, and one per column with a pick, without that pick. */
function requests(question, columns) {
  const names = columns.filter((column) => choiceOf(column)).map((column) => column.name);
  const free = names.filter((name) => !question.picks[name]);
  const pairs = names.filter((name) => question.picks[name]).map((name) => [[name], withPick(question, name, NOTHING)]);
  if (free.length) pairs.unshift([free, question]);
  return pairs.map(([group, filtered]) => ({ columns: group, where: conditionOf(filtered, columns) || null }));
}
