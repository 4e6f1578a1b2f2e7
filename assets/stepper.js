// The stepper: controls, layer rail and drawing share one cursor, an index into the walk.
// The page's text and numbers come in `data`; the drawing is SVG that Python drew and escaped.

const ICONS = {
  first: "M6 5v14M19 5l-9 7 9 7z",
  layer_back: "M12 5l-9 7 9 7zM21 5l-9 7 9 7z",
  back: "M16 5l-9 7 9 7z",
  forward: "M8 5l9 7-9 7z",
  layer_forward: "M12 5l9 7-9 7zM3 5l9 7-9 7z",
  last: "M18 5v14M5 5l9 7-9 7z",
  play: "M7 4l13 8-13 8z",
  pause: "M8 5v14M16 5v14",
};
const TICK = 1000; // ms a step at speed 1
const TYPING =
  "input,textarea,select,[contenteditable=''],[contenteditable=true],[role=slider],[role=spinbutton],[role=textbox]," +
  "[role=combobox],[role=listbox],[role=option],[role=menu],[role=dialog],[role=tab],[role=radio],[role=radiogroup]," +
  "[role=grid],[role=tree],video,audio,canvas";

const make = (tag, className, parent) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  parent?.appendChild(element);
  return element;
};

class Stepper {
  constructor(root) {
    this.root = root;
    this.echo = new Echo();
    this.cursor = 0;
    this.speed = 1;
    this.playing = 0;
    this.data = null;
    this.box = root.querySelector(".gl-stepper");
    this.build();
  }

  // --- the walk: indexes and addresses ---

  get total() {
    const { head, body, tail, layers } = this.data.walk;
    return head.length + body.length * layers + tail.length;
  }

  layerOf(index) {
    const { head, body, layers } = this.data.walk;
    const layer = Math.floor((index - head.length) / body.length);
    return layer < 0 ? null : layer >= layers ? null : layer;
  }

  // The layer that the drawing shows: the first one at the embedding, the last one at the end.
  shown(index = this.cursor) {
    const { head, layers } = this.data.walk;
    return index < head.length ? 0 : (this.layerOf(index) ?? layers - 1);
  }

  indexOf(layer, key) {
    const { head, body, tail, layers } = this.data.walk;
    if (head.includes(key)) return head.indexOf(key);
    if (tail.includes(key)) return head.length + body.length * layers + tail.indexOf(key);
    return head.length + body.length * layer + body.indexOf(key);
  }

  stepOf(index) {
    const { head, body, tail, layers } = this.data.walk;
    if (index < head.length) return head[index];
    const rest = index - head.length - body.length * layers;
    return rest >= 0 ? tail[rest] : body[(index - head.length) % body.length];
  }

  address(index) {
    const layer = this.layerOf(index);
    return layer === null ? this.stepOf(index) : `${layer}.${this.stepOf(index)}`;
  }

  parse(at) {
    const dot = at.indexOf(".");
    return dot < 0 ? this.indexOf(0, at) : this.indexOf(Number(at.slice(0, dot)), at.slice(dot + 1));
  }

  // --- moving ---

  moveTo(index, { play = false } = {}) {
    if (!play) this.pause();
    index = Math.max(0, Math.min(this.total - 1, index));
    if (index === this.cursor) return;
    const focus = this.root.activeElement;
    this.cursor = index;
    this.paint();
    this.follow(focus);
    this.echo.say(this.address(index));
  }

  step(by) {
    this.moveTo(this.cursor + by);
  }

  layer(by) {
    const { head, body, layers } = this.data.walk;
    const layer = this.layerOf(this.cursor);
    if (layer !== null) {
      const next = layer + by;
      if (next < 0) this.moveTo(0);
      else if (next >= layers) this.moveTo(this.total - 1);
      else this.moveTo(this.cursor + by * body.length);
    } else if (this.cursor < head.length) this.moveTo(by > 0 ? head.length : 0);
    else this.moveTo(by > 0 ? this.total - 1 : head.length + body.length * layers - 1);
  }

  toLayer(layer) {
    const here = this.layerOf(this.cursor) === null ? this.data.walk.body[0] : this.stepOf(this.cursor);
    this.moveTo(this.indexOf(Math.max(0, Math.min(this.data.walk.layers - 1, layer)), here));
  }

  // Focus stays in the rail or the drawing when the cursor leaves the place that had it.
  follow(focus) {
    if (focus?.closest?.(".gl-rail")) this.cells[this.shown()]?.focus({ preventScroll: true });
    else if (focus?.closest?.(".gl-map")) this.nodes.get(this.stepOf(this.cursor))?.focus({ preventScroll: true });
  }

  // --- playing ---

  play() {
    if (this.cursor >= this.end()) return;
    this.playing = performance.now();
    this.paintPlay();
    this.tick();
  }

  pause() {
    if (!this.playing) return;
    this.playing = 0;
    clearTimeout(this.ticker);
    this.paintPlay();
  }

  end() {
    const computed = this.data.computed;
    return computed === null ? this.total - 1 : Math.max(0, Math.min(this.total, computed) - 1);
  }

  // The next step waits for its time, for Python's answer to the last one, and for the page to be drawn.
  tick() {
    if (!this.playing) return;
    const due = this.playing + TICK / this.speed;
    const busy = !this.echo.idle || document.querySelector('[data-test-script-state="running"]');
    if (performance.now() >= due && !busy) {
      this.playing = performance.now();
      this.moveTo(this.cursor + 1, { play: true });
      if (this.cursor >= this.end()) return this.pause();
    }
    this.ticker = setTimeout(() => this.tick(), Math.max(25, Math.min(100, due - performance.now())));
  }

  // --- building: once, and again only for another walk or other words ---

  build() {
    const pick = (name) => this.box.querySelector(name);
    this.buttons = {};
    for (const button of this.box.querySelectorAll("[data-do]")) {
      const name = button.dataset.do;
      this.buttons[name] = button;
      button.innerHTML = `<svg viewBox="0 0 24 24" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
      button.addEventListener("click", () => this.press(name));
    }
    this.speeds = [...this.box.querySelectorAll("[data-speed]")];
    for (const button of this.speeds)
      button.addEventListener("click", () => {
        this.speed = Number(button.dataset.speed);
        this.paintPlay();
      });
    [this.position, this.state, this.rail, this.number, this.choice, this.fold, this.map, this.summary, this.hint] = [
      ".gl-n", ".gl-state", ".gl-rail", ".gl-number", ".gl-choice", "details", ".gl-drawing", "summary", ".gl-hint",
    ].map(pick);
    this.number.addEventListener("change", () => {
      if (this.number.value !== "") this.toLayer(Math.round(this.number.valueAsNumber));
      this.number.value = this.shown();
    });
    this.choice.addEventListener("change", () => this.moveTo(this.indexOf(this.shown(), this.choice.value)));
    this.rail.addEventListener("click", (event) => {
      const cell = event.target.closest("[data-layer]");
      if (cell) this.toLayer(Number(cell.dataset.layer));
    });
    const jump = (event) => {
      const node = event.target.closest?.("[data-step]");
      if (node) this.moveTo(this.indexOf(this.shown(), node.dataset.step));
      return node;
    };
    this.map.addEventListener("click", jump);
    this.map.addEventListener("keydown", (event) => {
      if ((event.key === "Enter" || event.key === " ") && jump(event)) event.preventDefault();
    });
    this.narrow = matchMedia("(max-width: 640px)");
    this.refold = () => (this.fold.open = !this.narrow.matches);
    this.narrow.addEventListener("change", this.refold);
    this.refold();
  }

  press(name) {
    const { step, layer } = { back: { step: -1 }, forward: { step: 1 }, layer_back: { layer: -1 }, layer_forward: { layer: 1 } }[name] ?? {};
    if (step) this.step(step);
    else if (layer) this.layer(layer);
    else if (name === "first") this.moveTo(0);
    else if (name === "last") this.moveTo(this.total - 1);
    else if (this.playing) this.pause();
    else this.play();
  }

  words() {
    const { texts } = this.data;
    const label = (element, text) => {
      element.setAttribute("aria-label", text);
      element.title = text;
    };
    for (const [name, button] of Object.entries(this.buttons)) label(button, texts[`stepper.${name}`]);
    for (const button of this.speeds) label(button, fill(texts["stepper.speed"], { speed: button.dataset.speed }));
    this.box.setAttribute("aria-label", texts["stepper.controls"]);
    this.rail.setAttribute("aria-label", texts["stepper.rail"]);
    this.number.setAttribute("aria-label", texts["stepper.jump_layer"]);
    this.choice.setAttribute("aria-label", texts["stepper.jump_step"]);
    this.summary.textContent = texts["stepper.fold"];
    this.hint.textContent = texts["stepper.keys"];
    this.box.querySelector(".gl-layer-word").textContent = texts["stepper.layer"];
  }

  rebuildWalk() {
    const { head, body, tail, layers } = this.data.walk;
    this.cells = [];
    this.rail.replaceChildren();
    for (let layer = 0; layer < layers; layer++) {
      const cell = make("button", "", this.rail);
      cell.type = "button";
      cell.dataset.layer = layer;
      cell.textContent = layer;
      cell.setAttribute("aria-label", fill(this.data.texts["stepper.rail.layer"], { layer }));
      this.cells.push(cell);
    }
    this.number.max = layers - 1;
    this.choice.replaceChildren();
    for (const keys of [head, body, tail]) {
      for (const key of keys) {
        const option = make("option", "", this.choice);
        option.value = key;
        option.textContent = key in this.data.titles ? `${key}: ${this.data.titles[key]}` : key;
      }
      if (keys !== tail) make("hr", "", this.choice);
    }
  }

  redraw() {
    this.map.innerHTML = this.data.svg; // drawn from the registry; every text in it is escaped
    this.svg = this.map.querySelector("svg");
    this.nodes = new Map([...this.map.querySelectorAll("[data-step]")].map((node) => [node.dataset.step, node]));
    this.ways = [...this.map.querySelectorAll("[data-to]")];
    this.layerText = this.map.querySelector(".gl-layer");
    this.tab = this.map.querySelector(".gl-tab");
    this.before = this.map.querySelector(".gl-before");
    this.after = this.map.querySelector(".gl-after");
  }

  // --- data from Python ---

  update(data) {
    const old = this.data;
    this.data = data;
    if (!data) return;
    const changed = (name) => !old || JSON.stringify(old[name]) !== JSON.stringify(data[name]);
    const walk = changed("walk");
    if (changed("texts")) this.words();
    if (walk || changed("titles") || changed("texts")) this.rebuildWalk();
    if (!old || old.svg !== data.svg) this.redraw();
    this.box.classList.toggle("gl-dark", isDark(this.box));
    const mayTake = this.echo.hear(data.ack);
    if (mayTake || walk) {
      const index = Math.max(0, Math.min(this.total - 1, this.parse(data.at)));
      if (index !== this.cursor) {
        if (old) this.pause(); // the page moved it, not the player
        this.cursor = index;
      }
    }
    if (this.playing && this.cursor >= this.end()) this.pause();
    this.paint();
  }

  // --- painting: classes and texts only ---

  paint() {
    const { computed, marks, texts } = this.data;
    const limit = computed ?? this.total;
    const here = this.shown();
    const key = this.stepOf(this.cursor);
    for (const [name, node] of this.nodes) {
      const index = this.indexOf(here, name);
      const mark = marks[this.address(index)] ?? "";
      const lit = index === this.cursor;
      node.classList.toggle("gl-here", lit);
      node.classList.toggle("gl-ahead", index > this.cursor && index < limit);
      node.classList.toggle("gl-hollow", index >= limit);
      node.classList.toggle("gl-has-edit", mark.includes("edited"));
      node.classList.toggle("gl-has-stop", mark.includes("breakpoint"));
      node.setAttribute("tabindex", lit ? 0 : -1);
      if (lit) node.setAttribute("aria-current", "step");
      else node.removeAttribute("aria-current");
    }
    for (const way of this.ways) {
      const index = this.indexOf(here, way.dataset.to);
      way.classList.toggle("gl-into", way.dataset.to === key);
      way.classList.toggle("gl-ahead", index > this.cursor);
    }
    this.paintAround(here, limit);
    this.position.textContent = fill(texts["stepper.position"], { n: this.cursor + 1, total: this.total });
    this.state.textContent = this.cursor >= limit ? texts["stepper.not_computed"] : "";
    const typing = this.root.activeElement;
    if (typing !== this.number) this.number.value = this.layerOf(this.cursor) ?? "";
    this.choice.value = key;
    this.paintRail(limit);
    // A disabled button would drop the focus in the middle of a run of presses.
    const off = (name, yes) => this.buttons[name].setAttribute("aria-disabled", yes);
    for (const name of ["first", "layer_back", "back"]) off(name, this.cursor === 0);
    for (const name of ["last", "layer_forward", "forward"]) off(name, this.cursor === this.total - 1);
    this.box.dataset.at = this.address(this.cursor);
    this.paintPlay();
  }

  paintAround(here, limit) {
    const { texts, walk } = this.data;
    const last = walk.layers - 1;
    const label = fill(texts["map.layer"], { layer: here });
    if (this.layerText && this.layerText.textContent !== label) {
      this.layerText.textContent = label;
      const width = 6.3 * label.length + 16;
      const middle = Number(this.layerText.getAttribute("x"));
      this.tab.setAttribute("width", width);
      this.tab.setAttribute("x", middle - width / 2);
    }
    if (this.before) {
      this.before.textContent =
        here === 0 ? "" : fill(texts[here === 1 ? "map.before.one" : "map.before"], { last: here - 1 });
      this.after.textContent =
        here === last ? "" : fill(texts[here === last - 1 ? "map.after.one" : "map.after"], { first: here + 1, last });
    }
    this.svg.classList.toggle("gl-not-first", here > 0);
    this.svg.classList.toggle("gl-not-last", here < last);
  }

  paintRail(limit) {
    const { body, head } = this.data.walk;
    const marked = (name) =>
      new Set(Object.keys(this.data.marks).filter((at) => this.data.marks[at].includes(name)).map((at) => Number.parseInt(at)));
    const [edited, stops] = [marked("edited"), marked("breakpoint")];
    const here = this.layerOf(this.cursor);
    const tab = this.shown();
    this.cells.forEach((cell, layer) => {
      const first = head.length + layer * body.length;
      cell.classList.toggle("gl-here", layer === here);
      cell.classList.toggle("gl-done", first + body.length <= this.cursor);
      cell.classList.toggle("gl-hollow", first >= limit);
      cell.classList.toggle("gl-has-edit", edited.has(layer));
      cell.classList.toggle("gl-has-stop", stops.has(layer));
      cell.tabIndex = layer === tab ? 0 : -1;
      if (layer === here) cell.setAttribute("aria-current", "true");
      else cell.removeAttribute("aria-current");
    });
    const cell = this.cells[tab];
    if (!cell || this.railAt === tab) return;
    const [left, right] = [cell.offsetLeft, cell.offsetLeft + cell.offsetWidth];
    const [from, view, edge] = [this.rail.scrollLeft, this.rail.clientWidth, 1.5 * cell.offsetWidth];
    if (left - edge < from || right + edge > from + view) this.rail.scrollLeft = (left + right - view) / 2;
    this.railAt = tab;
  }

  paintPlay() {
    const button = this.buttons.play;
    const name = this.playing ? "pause" : "play";
    if (button.dataset.shows !== name) {
      button.dataset.shows = name;
      button.querySelector("path").setAttribute("d", ICONS[name]);
      const text = this.data.texts[`stepper.${name}`];
      button.setAttribute("aria-label", text);
      button.title = text;
    }
    this.box.classList.toggle("gl-playing", Boolean(this.playing));
    for (const speed of this.speeds) speed.setAttribute("aria-pressed", Number(speed.dataset.speed) === this.speed);
  }

  key(event) {
    const moves = {
      ArrowLeft: () => (event.shiftKey ? this.layer(-1) : this.step(-1)),
      ArrowRight: () => (event.shiftKey ? this.layer(1) : this.step(1)),
      Home: () => this.moveTo(0),
      End: () => this.moveTo(this.total - 1),
    };
    if (event.key === "Escape") this.pause();
    if (!(event.key in moves) || !this.data) return;
    event.preventDefault();
    moves[event.key]();
  }

  destroy() {
    this.playing = 0;
    clearTimeout(this.ticker);
    this.echo.stop();
    this.narrow.removeEventListener("change", this.refold);
    mounted.delete(this.root);
    if (mounted.size === 0) document.removeEventListener("keydown", onKey);
  }
}

// One listener for the page; the stepper that was mounted last has the keys.
const mounted = new Map();

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
  const inside = event.composedPath();
  if (inside.some((element) => element.matches?.(TYPING) || element.isContentEditable)) return;
  [...mounted.values()].at(-1)?.key(event);
}

export default function ({ data, parentElement, setStateValue }) {
  let stepper = mounted.get(parentElement);
  if (!stepper) {
    if (mounted.size === 0) document.addEventListener("keydown", onKey);
    stepper = new Stepper(parentElement);
    mounted.set(parentElement, stepper);
  }
  stepper.echo.send = (value) => setStateValue("at", value);
  stepper.update(data);
  return () => stepper.destroy();
}
