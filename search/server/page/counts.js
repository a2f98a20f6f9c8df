// How many documents have each value of a column, among those that meet the other filters: what choosing it would leave.

import { countValues } from "./api.js";
import { choiceOf, conditionOf } from "./conditions.js";
import { isFiltered, withPick } from "./question.js";

const NOTHING = { values: [], least: "", most: "" };

/** Asks for the counts beside the filters. `show(facets)` gets those of the columns by name, null: those of all documents. */
export class Counts {
  constructor(show) {
    this.show = show;
    this.stop = new AbortController();
    this.key = "[]"; // of what was asked for last
  }

  /** Ask for the counts under this question's filters, unless they are shown. What was asked before is given up. */
  async ask(question, columns) {
    const asked = isFiltered(question) ? requests(question, columns) : [];
    const key = JSON.stringify(asked);
    if (key === this.key) return;
    this.key = key;
    this.stop.abort();
    const mine = (this.stop = new AbortController());
    let found = null;
    try {
      if (asked.length) found = (await Promise.all(asked.map((one) => countValues(one, mine.signal)))).flat();
    } catch {
      found = []; // counts that are not known are not shown
    }
    if (mine === this.stop) this.show(found && new Map(found.map((facet) => [facet.name, facet])));
  }

  /** The columns are others now: what was asked for is no longer known. */
  reset() {
    this.stop.abort();
    this.key = "[]";
  }
}

/** One request for all columns without a pick, and one for each with a pick, whose own does not count. */
function requests(question, columns) {
  const names = columns.filter((column) => choiceOf(column)).map((column) => column.name);
  const free = names.filter((name) => !question.picks[name]);
  const asked = names.filter((name) => question.picks[name]).map((name) => [[name], withPick(question, name, NOTHING)]);
  if (free.length) asked.unshift([free, question]);
  return asked.map(([some, of]) => ({ columns: some, where: conditionOf(of, columns) || null }));
}
