// Building the page. Everything that the service says is set as text, never as markup.

/** A new element with attributes and children; strings become text. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same in an SVG picture. */
export function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

/** Puts `children` in place of what is in the element with that id. */
export function show(id, ...children) {
  document.getElementById(id).replaceChildren(...children);
}

/**
 * A table. `columns` are {title, cell, kind}: `cell` makes text or an element of a row, `kind` is a
 * class of its cells. The first column names the row. What `note` says of a row, if anything, stands
 * below it over the whole width.
 */
export function table(caption, columns, rows, note = () => "") {
  const head = columns.map((column) =>
    element("th", { scope: "col", class: column.kind ?? null }, column.title));
  const body = rows.flatMap((row) => {
    const cells = columns.map((column, index) => {
      const attributes = { class: column.kind ?? null };
      const shown = column.cell(row);
      if (index === 0) attributes.scope = "row";
      // What is too long for its column can be read in full.
      if (typeof shown === "string" && shown.length > 24) attributes.title = shown;
      return element(index === 0 ? "th" : "td", attributes, shown);
    });
    const says = note(row);
    const more = element("tr", { class: "note" }, element("td", { colspan: columns.length }, says));
    return says === "" ? [element("tr", {}, ...cells)] : [element("tr", {}, ...cells), more];
  });
  return element("table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body));
}

/** A sentence in place of a table without rows. */
export function nothing(text) {
  return element("p", { class: "nothing" }, text);
}

/** A word with a colour of its own; the word alone says it too. */
export function badge(word, kind) {
  return element("span", { class: `badge ${kind}` }, word);
}
