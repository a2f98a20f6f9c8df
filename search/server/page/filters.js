// The panel of filters, built from the facets of columns, and the chips of active filters.

import { choiceOf, groupable } from "./conditions.js";
import { button, cross, element, number } from "./dom.js";
import { choicesOf, covers, isTree } from "./folders.js";
import { isFiltered, unfiltered, withPick, withoutPick } from "./question.js";

const FIRST = 6; // values shown before the rest is unfolded
const INPUTS = { numbers: "number", dates: "date", "dates with a time of day": "date", "times of day": "time" };

/** The panel. `change(question, typing)` is called for every choice. */
export class FilterPanel {
  constructor(change) {
    this.root = element("div", { class: "panel" });
    this.change = change;
    this.unfolded = new Set(); // columns that show all values
    this.counted = null; // facets under the filters, by name; null: of all documents
  }

  /** Build the filters of these columns for a query. */
  show(question, columns) {
    this.question = question;
    this.figures = []; // nodes that change with the filters: [node, column, its value or null for a range]
    const useful = columns.filter((column) => choiceOf(column));
    if (!useful.length) {
      const open = Boolean(question.where || this.root.querySelector("details")?.open);
      this.root.replaceChildren(element("details", { class: "by-sql", open }, element("summary", {}, "Filter by SQL"), this.#written(columns)));
      return;
    }
    const title = element("div", { class: "panel-head" }, element("h2", {}, "Filters"), this.#clear());
    this.root.replaceChildren(title, ...useful.map((column) => this.#column(column)), this.#written(columns));
    this.count(this.counted);
  }

  /** Show facets under the filters, by name; null for those of all documents. */
  count(counted) {
    this.counted = counted;
    for (const [node, column, value] of this.figures) {
      const facet = counted ? counted.get(column.name) : column;
      node.textContent = value === null ? spread(facet) : countOf(facet, value);
    }
  }

  /** Follow a query from elsewhere without rebuilding the panel. */
  follow(question) {
    this.question = question;
    const clear = this.root.querySelector(".clear");
    if (clear) clear.hidden = !isFiltered(question);
  }

  /** Show the fault of the written condition; "" for none. */
  complain(message) {
    const place = this.root.querySelector(".sql-error");
    if (!place) return false;
    place.textContent = message;
    place.hidden = !message;
    this.root.querySelector(".sql").setAttribute("aria-invalid", String(Boolean(message)));
    return true;
  }

  #clear() {
    const clear = button("Remove all", () => this.change(unfiltered(this.question), false, true), { class: "clear" });
    clear.hidden = !isFiltered(this.question);
    return clear;
  }

  #pick(name) {
    return this.question.picks[name] ?? { values: [], least: "", most: "" };
  }

  #choose(name, pick, typing = false) {
    this.change(withPick(this.question, name, pick), typing);
  }

  #column(column) {
    const content = choiceOf(column) === "values" ? this.#values(column) : this.#range(column);
    return element("fieldset", { "data-column": column.name }, element("legend", {}, column.name), ...content);
  }

  #values(column) {
    const chosen = this.#pick(column.name).values;
    const listed = choicesOf(column);
    const all = [...chosen.filter((value) => !listed.includes(value)), ...listed];
    const few = all.length <= FIRST + 2 || this.unfolded.has(column.name);
    const rows = all.map((value, place) => {
      const row = this.#value(column, value, chosen.includes(value));
      row.hidden = !few && place >= FIRST && !chosen.includes(value);
      return row;
    });
    const nodes = [element("ul", {}, ...rows)];
    if (!few && rows.some((row) => row.hidden)) nodes.push(this.#unfold(column, rows));
    return nodes;
  }

  #value(column, value, checked) {
    const box = element("input", { type: "checkbox", checked });
    box.addEventListener("change", () => {
      const pick = this.#pick(column.name);
      const values = box.checked ? [...pick.values, value] : pick.values.filter((other) => other !== value);
      this.#choose(column.name, { ...pick, values });
    });
    const label = value === "" ? element("i", {}, "empty") : element("bdi", {}, value);
    const total = element("span", { class: "count", title: "Documents that have this value and meet the other filters" });
    this.figures.push([total, column, value]);
    return element("li", {}, element("label", { class: "value", title: value }, box, element("span", { class: "text" }, label), total));
  }

  #unfold(column, rows) {
    const hidden = rows.filter((row) => row.hidden);
    const beyond = column.distinct === null || column.distinct > column.values.length;
    const more = button(beyond ? `Show the ${column.values.length} most frequent` : `Show ${hidden.length} more`, () => {
      this.unfolded.add(column.name);
      for (const row of hidden) row.hidden = false;
      hidden[0].querySelector("input").focus();
      more.remove();
    }, { class: "unfold" });
    return more;
  }

  #range(column) {
    const pick = this.#pick(column.name);
    const wrong = element("p", { class: "range-error", role: "alert" });
    const inputs = {};
    const check = () => {
      const [least, most] = [inputs.least.value, inputs.most.value];
      const above = least !== "" && most !== "" && (column.kind === "numbers" ? Number(least) > Number(most) : least > most);
      wrong.hidden = !above;
      wrong.textContent = above ? "from is above to" : "";
    };
    const input = (end, word) => {
      const given = { type: INPUTS[column.kind], step: column.kind === "numbers" ? "any" : null, value: pick[end], "aria-label": `${column.name}, ${word}` };
      const box = (inputs[end] = element("input", given));
      box.addEventListener("input", () => (check(), this.#choose(column.name, { ...this.#pick(column.name), [end]: box.value }, true)));
      return element("label", {}, element("span", {}, word), box);
    };
    const ends = element("div", { class: column.kind === "numbers" ? "range" : "range times" }, input("least", "from"), input("most", "to"));
    check();
    const hint = element("p", { class: "remark" });
    this.figures.push([hint, column, null]);
    return [ends, wrong, hint];
  }

  #written(columns) {
    const box = element("textarea", { class: "sql", rows: 2, spellcheck: "false", autocapitalize: "none", "aria-describedby": "sql-error sql-remark", placeholder: example(columns) });
    box.value = this.question.where;
    box.addEventListener("input", () => this.change({ ...this.question, where: box.value }, true));
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.change({ ...this.question, where: box.value }, false);
    });
    const names = columns.map((column) => column.sql);
    return element(
      "fieldset",
      { class: "written" },
      element("legend", {}, element("label", { for: "sql" }, "Condition in SQL")),
      Object.assign(box, { id: "sql" }),
      element("p", { class: "sql-error", id: "sql-error", hidden: true }),
      element("p", { class: "remark", id: "sql-remark" }, `Columns: ${[...names, "id", "title", "text"].join(", ")}`),
    );
  }
}

/** The count of a value; "" if unknown, because only the most frequent values are listed. "+": a folder may hold more. */
function countOf(facet, value) {
  const counts = (facet?.values ?? []).filter((entry) => covers(facet, value, String(entry.value))).map(({ count }) => count);
  const total = number(counts.reduce((sum, count) => sum + count, 0));
  if (facet && facet.distinct === facet.values.length) return total;
  return counts.length ? `${total}${isTree(facet) ? "+" : ""}` : "";
}

/** The range of a column. */
function spread(facet) {
  if (!facet || facet.least === null) return "";
  return `${shownEnd(facet.least)} to ${shownEnd(facet.most)}${facet.kind === "dates with a time of day" ? ", UTC" : ""}`;
}

function shownEnd(value) {
  return typeof value === "number" ? String(value) : String(value ?? "").replace("T", " ").slice(0, 16);
}

/** An example of a condition, on the first column with values. */
function example(columns) {
  const ranged = columns.find((column) => column.kind === "numbers" && column.least !== null);
  if (ranged) return `${ranged.sql} > ${ranged.least}`;
  const listed = columns.find((column) => column.kind === "text" && column.values?.length);
  return listed ? `${listed.sql} = '${String(listed.values[0].value).replaceAll("'", "''").slice(0, 30)}'` : "title LIKE '%word%'";
}

/** Active filters: [label, the query without it]. */
function chipsOf(question) {
  const chips = [];
  for (const [name, pick] of Object.entries(question.picks)) {
    for (const value of pick.values) chips.push([`${name}: ${value}`, withoutPick(question, name, value)]);
    if (pick.least || pick.most) chips.push([`${name}: ${rangeText(pick)}`, withoutPick(question, name, null)]);
  }
  if (question.where.trim()) chips.push([question.where.trim(), { ...question, where: "" }]);
  return chips;
}

function rangeText({ least, most }) {
  if (!least) return `up to ${most}`;
  return most ? `${least} to ${most}` : `from ${least}`;
}

/** A chip for each active filter, which removes it. */
export function activeChips(question, change) {
  return chipsOf(question).map(([text, without]) => {
    const given = { type: "button", class: "chip", "aria-label": `Remove the filter ${text}`, on: { click: () => change(without) } };
    return element("li", {}, element("button", given, element("bdi", {}, text.length > 60 ? `${text.slice(0, 60)}…` : text), cross()));
  });
}

/** A switch; `change` gets its state. */
export function toggle(text, title, checked, change, disabled = false) {
  const box = element("input", { type: "checkbox", role: "switch", checked, disabled, on: { change: () => change(box.checked) } });
  return element("label", { class: "switch", title }, box, text);
}

/** The choice of a column to group by; null if no column is suitable. */
export function groupChoice(question, columns, change) {
  const names = groupable(columns).map((column) => column.name);
  if (question.group && !names.includes(question.group)) names.push(question.group);
  if (!names.length) return null;
  const options = [["", "none"], ...names.map((name) => [name, name])].map(([value, text]) => element("option", { value, selected: value === question.group }, text));
  const choice = element("select", { on: { change: (event) => change(event.target.value) } }, ...options);
  return element("label", { class: "group", title: "At most one hit for each value of a column" }, "Group by", choice);
}
