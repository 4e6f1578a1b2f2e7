// The tokens, each one a button: in a line that scrolls, or as flowing text. Token text is set as text, never as HTML.

const BLANKS = { " ": ["gl-space", " "], "\n": ["gl-mark", "↵"], "\r": ["gl-mark", "↵"], "\t": ["gl-mark", "⇥"] };

class TokenStrip {
  constructor(root) {
    this.root = root;
    this.echo = new Echo();
    this.chosen = -1;
    this.shown = "";
    this.cells = [];
    this.box = root.querySelector(".gl-strip");
    this.box.addEventListener("click", (event) => {
      const cell = event.target.closest("[data-i]");
      if (cell) this.choose(Number(cell.dataset.i));
    });
    this.box.addEventListener("keydown", (event) => this.key(event));
    let wide = 0;
    new ResizeObserver(() => {
      if (wide && wide !== this.box.clientWidth && this.chosen >= 0) this.reveal(this.cells[this.chosen], true);
      wide = this.box.clientWidth;
    }).observe(this.box);
  }

  update(data) {
    if (!data) return;
    const pieces = JSON.stringify([data.pieces, data.made, data.read, data.shades, data.hovers, data.texts]);
    const rebuilt = pieces !== this.shown;
    if (rebuilt) this.build(data);
    this.shown = pieces;
    const mayTake = this.echo.hear(data.ack);
    if (mayTake || rebuilt) this.light(data.chosen, rebuilt);
  }

  build({ pieces, made, read, shades, hovers, texts }) {
    const had = this.root.activeElement?.dataset.i !== undefined;
    this.box.setAttribute("aria-label", texts["strip.label"]);
    const all = document.createDocumentFragment();
    this.cells = pieces.map(([text, special], i) => {
      const cell = document.createElement("div");
      cell.className = special ? "gl-token gl-special" : "gl-token";
      cell.classList.toggle("gl-made", i >= made);
      if (i < read) cell.dataset.i = i;
      else cell.setAttribute("aria-disabled", "true");
      cell.tabIndex = -1;
      cell.setAttribute("role", "option");
      cell.setAttribute("aria-selected", "false");
      const name = text === "" ? texts["strip.empty"] : text;
      const label = fill(texts[special ? "strip.special" : "strip.token"], { position: i, text: name });
      const remark = i >= read ? texts["strip.unread"] : i >= made ? texts["strip.made"] : "";
      cell.setAttribute("aria-label", remark ? `${label}, ${remark}` : label);
      if (hovers?.[i] || remark) cell.title = hovers?.[i] || remark;
      if (shades) cell.style.setProperty("--shade", shades[i]);
      const piece = document.createElement("bdi");
      piece.className = "gl-piece";
      if (shades) flow(piece, text);
      else write(piece, text);
      const number = document.createElement("span");
      number.className = "gl-place";
      number.textContent = i;
      cell.append(piece, number);
      all.append(cell);
      return cell;
    });
    this.box.replaceChildren(all);
    this.cells.length = read;
    this.chosen = -1;
    this.hadFocus = had;
  }

  light(index, jump = false) {
    index = Math.max(0, Math.min(this.cells.length - 1, index));
    if (index === this.chosen || !this.cells.length) return;
    const old = this.cells[this.chosen];
    const cell = this.cells[index];
    const focus = this.hadFocus || (old && this.root.activeElement === old);
    this.hadFocus = false;
    if (old) {
      old.classList.remove("gl-here");
      old.tabIndex = -1;
      old.setAttribute("aria-selected", "false");
    }
    cell.classList.add("gl-here");
    cell.tabIndex = 0;
    cell.setAttribute("aria-selected", "true");
    this.chosen = index;
    if (focus) cell.focus({ preventScroll: true });
    this.reveal(cell, jump);
  }

  // Keep the chosen token and a little of its neighbours in view; the page itself never scrolls.
  reveal(cell, jump) {
    const { box } = this;
    box.scrollLeft = shift(cell.offsetLeft, cell.offsetWidth, box.scrollLeft, box.clientWidth, jump);
    box.scrollTop = shift(cell.offsetTop, cell.offsetHeight, box.scrollTop, box.clientHeight, jump);
  }

  choose(index) {
    index = Math.max(0, Math.min(this.cells.length - 1, index));
    if (index === this.chosen) return;
    this.light(index);
    this.echo.say(index);
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation(); // the stepper listens on the page
    this.choose(this.chosen + moves[event.key]);
  }
}

// Where a view of so much has to begin for what is at `start` to be in it, if it begins at `from` now.
function shift(start, size, from, view, jump) {
  const room = Math.min(48, view / 4);
  if (jump && (start < from || start + size > from + view)) return start - (view - size) / 2;
  if (start - room < from) return start - room;
  return Math.max(from, start + size + room - view);
}

// Blanks at an end, runs of them, and line breaks are made visible; the text itself stays letter for letter.
function write(element, text) {
  for (const part of text.split(/(^ +| +$| {2,}|[\n\r\t])/)) {
    if (part === "") continue;
    if (!(part[0] in BLANKS)) {
      element.append(part);
      continue;
    }
    for (const blank of part) {
      const [name, sign] = BLANKS[blank];
      const mark = document.createElement("span");
      mark.className = name;
      mark.dataset.sign = sign;
      mark.textContent = blank;
      element.append(mark);
    }
  }
}

// As it is read: the signs that stand for blanks are quiet, and a line that ends does end.
function flow(element, text) {
  for (const part of text.split(/([·⏎])/)) {
    if (part !== "·" && part !== "⏎") {
      element.append(part);
      continue;
    }
    const sign = document.createElement("i");
    sign.textContent = part;
    if (part === "·") element.append(document.createElement("wbr"), sign);
    else element.append(sign, document.createElement("br"));
  }
}

const mounted = new WeakMap();

export default function ({ data, parentElement, setStateValue }) {
  let strip = mounted.get(parentElement);
  if (!strip) mounted.set(parentElement, (strip = new TokenStrip(parentElement)));
  strip.echo.send = (value) => setStateValue("chosen", value);
  strip.update(data);
  return () => {
    strip.echo.stop();
    mounted.delete(parentElement);
  };
}
