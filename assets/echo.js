// The browser's end of pages/ui/echo.py: move first, tell afterwards, and never be pulled back.
//
// `n` counts the person's choices. Each message carries the newest; quick choices share one message,
// and the last always leaves. Data from Python carry the (by, n) it had heard when it ran: they may
// set the value only when that is our newest, or when nothing was ever chosen here.

const SPACING = 100; // ms between two messages
const PATIENCE = 350; // ms to wait for Python's answer to the last one before sending over it

class Echo {
  constructor() {
    this.by = Math.random().toString(36).slice(2, 10);
    this.n = 0; // choices made
    this.sent = 0; // the newest that left
    this.heard = 0; // the newest that Python answered
    this.at = 0; // when the last message left
    this.timer = 0;
    this.send = () => {};
  }

  say(value) {
    this.n += 1;
    this.value = value;
    this.plan();
  }

  plan() {
    clearTimeout(this.timer);
    if (this.sent === this.n) return;
    const wait = this.at + (this.heard >= this.sent ? SPACING : PATIENCE) - performance.now();
    if (wait > 0) this.timer = setTimeout(() => this.flush(), wait);
    else this.flush();
  }

  flush() {
    this.sent = this.n;
    this.at = performance.now();
    this.send({ value: this.value, n: this.n, by: this.by });
  }

  // Python's answer; true when its value may be taken.
  hear(ack) {
    const ours = ack && ack.by === this.by;
    if (ours && ack.n > this.heard) {
      this.heard = ack.n;
      this.plan();
    }
    return this.n === 0 || (ours && ack.n === this.n);
  }

  get idle() {
    return this.heard >= this.n;
  }

  stop() {
    clearTimeout(this.timer);
  }
}

const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole));

// Streamlit hands components its colours, not the name of its theme.
const isDark = (element) => {
  const colour = getComputedStyle(element).getPropertyValue("--st-background-color").trim();
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = "#fff";
  probe.fillStyle = colour;
  const hex = /^#(..)(..)(..)/.exec(probe.fillStyle);
  if (!hex) return false;
  const [r, g, b] = hex.slice(1).map((part) => parseInt(part, 16));
  return 0.299 * r + 0.587 * g + 0.114 * b < 128;
};
