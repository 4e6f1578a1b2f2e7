// The terms that add up to one cell, as a table with bars. A number that is a cell itself leads to its step.

const add = (parent, tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
};

// data: heads (one a factor, "" where each row names its own), rows of {label, factors, value, share, exact}
function draw(box, { heads, rows, rest, total, colours, texts }, go) {
  box.style.setProperty("--low", colours[0]);
  box.style.setProperty("--high", colours[1]);
  const table = document.createElement("table");
  table.classList.toggle("gl-alone", rows.length === 1 && !rest); // one bar alone compares nothing
  table.classList.toggle("gl-many", heads.length > 2);
  const head = add(add(table, "thead"), "tr");
  add(head, "th", "", texts["terms.term"]);
  heads.forEach((text, i) => breakable(add(head, "th", i && text ? "gl-times" : ""), text));
  add(head, "th", "gl-bars", "");
  add(head, "th", "gl-number", texts["terms.value"]);
  const body = add(table, "tbody");
  for (const { label, factors, value, share, exact } of rows) {
    const row = add(body, "tr");
    add(row, "td", "gl-label", label);
    heads.forEach((_, i) => factorCell(add(row, "td", i && factors[i] ? "gl-times" : ""), factors[i], texts, go));
    bar(add(row, "td", "gl-bars"), share);
    add(row, "td", "gl-number", value).title = exact;
  }
  if (rest) lastRow(body, "gl-rest", rest, heads.length);
  if (total) lastRow(body, "gl-total", total, heads.length);
  box.replaceChildren(table);
}

// A long name may break after its dots and underscores.
function breakable(cell, name) {
  for (const part of name.split(/(?<=[._])/)) {
    cell.append(part);
    add(cell, "wbr");
  }
}

function factorCell(cell, factor, texts, go) {
  if (!factor) return;
  if (factor.name) add(cell, "span", "gl-name", factor.name);
  if (factor.to) {
    const link = add(cell, "button", "gl-go", factor.value);
    link.type = "button";
    link.title = factor.exact;
    link.setAttribute("aria-label", fill(texts["terms.go"], { cell: factor.where, value: factor.value }));
    link.addEventListener("click", () => go(factor.to));
  } else add(cell, "span", "", factor.value).title = factor.exact;
  if (factor.index) add(cell, "span", "gl-index", factor.index);
}

function lastRow(body, className, { label, value, share, exact }, columns) {
  const row = add(body, "tr", className);
  add(row, "td", "gl-label", label).colSpan = columns + 1;
  bar(add(row, "td", "gl-bars"), share);
  add(row, "td", "gl-number", value).title = exact;
}

// share: -1 to 1 of the widest bar; null where a term is not finite
function bar(cell, share) {
  const track = add(cell, "div", "gl-track");
  if (share === null) return;
  const fill = add(track, "div", share < 0 ? "gl-fill gl-low" : "gl-fill");
  fill.style.width = `${Math.abs(share) * 50}%`;
}

export default function ({ data, parentElement, setTriggerValue }) {
  const box = parentElement.querySelector(".gl-terms");
  if (data) draw(box, data, (to) => setTriggerValue("go", to));
}
