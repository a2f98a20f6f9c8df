// Elements from plain values. Text is always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `given` are attributes, without false and null; `on` are listeners. Children: nodes or text. */
export function element(name, given = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** A button. */
export function button(text, click, given = {}) {
  return element("button", { type: "button", on: { click }, ...given }, text);
}

/** A listener for plain clicks on a link, not those that open a tab or a window. */
export function plainly(act) {
  return (event) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    act();
  };
}

/** A cross icon. */
export function cross() {
  const icon = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  for (const [key, value] of Object.entries({ class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true" })) icon.setAttribute(key, value);
  path.setAttribute("d", "M5.5 5.5l9 9m0-9l-9 9");
  icon.append(path);
  return icon;
}

/** The element with this id. */
export function byId(id) {
  return document.getElementById(id);
}

const NUMBERS = new Intl.NumberFormat("en");

/** "1,234" */
export function number(value) {
  return NUMBERS.format(value);
}

/** "1 document", "2,000 documents" */
export function counted(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}
