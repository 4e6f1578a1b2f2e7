// The drawing of pages/figures/arrows.py: its button plays the turn from position 0, and a plane tells its numbers.

const PLAYED = 1600; // ms

const wrapped = (a) => ((((a + Math.PI) % (2 * Math.PI)) + 2 * Math.PI) % (2 * Math.PI)) - Math.PI;

// As `degrees` and `wedge` in Python: what is played ends as what was drawn.
function degrees(radians) {
  const found = (wrapped(radians) * 180) / Math.PI;
  if (Math.abs(found) > 0 && Math.abs(found) < 0.1) return "< 0.1°";
  return `${found.toFixed(Math.abs(found) >= 9.95 ? 0 : 1)}°`.replace("-0°", "0°").replace("0.0°", "0°");
}

function wedge(start, angle, radius) {
  const turn = wrapped(angle);
  const at = (a) => `${(radius * Math.cos(a)).toFixed(1)} ${(-radius * Math.sin(a)).toFixed(1)}`;
  return `M0 0L${at(start)}A${radius} ${radius} 0 0 ${turn < 0 ? 1 : 0} ${at(start + turn)}Z`;
}

class Arrows {
  constructor(box) {
    this.box = box;
    this.shown = "";
    this.planes = [];
    box.addEventListener("click", (event) => event.target.closest(".gl-play") && this.play());
    box.addEventListener("pointerover", (event) => this.tell(event.target.closest(".gl-plane")));
    // A finger leaves when it is lifted: what it told stays until it taps elsewhere.
    box.addEventListener("pointerleave", (event) => event.pointerType === "touch" || this.tell(null));
    this.elsewhere = (event) => event.composedPath().includes(box) || this.tell(null);
    document.addEventListener("pointerdown", this.elsewhere);
  }

  update({ html }) {
    if (html === this.shown) return;
    cancelAnimationFrame(this.frame);
    this.shown = html;
    this.box.innerHTML = html; // pages/figures escapes every text in it
    this.tip = this.box.appendChild(document.createElement("div"));
    this.tip.className = "gl-tip";
    this.tip.hidden = true;
    this.planes = [...this.box.querySelectorAll(".gl-plane[data-start]")].map((plane) => {
      const [start, angle, radius] = ["start", "angle", "radius"].map((name) => Number(plane.dataset[name]));
      const [strong, slice, label] = [".gl-strong", ".gl-wedge", "text"].map((name) => plane.querySelector(name));
      return { start, angle, radius, pair: plane.dataset.pair, strong, slice, label };
    });
  }

  stop() {
    cancelAnimationFrame(this.frame);
    document.removeEventListener("pointerdown", this.elsewhere);
  }

  play() {
    cancelAnimationFrame(this.frame);
    const began = performance.now();
    const go = (now) => {
      const share = Math.min(1, Math.max(0, (now - began) / PLAYED));
      this.turn(share);
      if (share < 1) this.frame = requestAnimationFrame(go);
    };
    this.frame = requestAnimationFrame(go);
  }

  // All arrows, after this share of their turn.
  turn(share) {
    for (const { start, angle, radius, pair, strong, slice, label } of this.planes) {
      const turned = share * angle;
      strong.setAttribute("transform", `rotate(${((-180 / Math.PI) * wrapped(start + turned)).toFixed(2)})`);
      slice.setAttribute("d", wedge(start, turned, radius));
      label.textContent = `${pair} · ${degrees(turned)}`;
    }
  }

  // The numbers of a plane beside it, inside the drawing.
  tell(plane) {
    if (!this.tip) return;
    this.tip.hidden = !plane;
    if (!plane) return;
    this.tip.textContent = plane.dataset.hover;
    const box = this.box.getBoundingClientRect();
    const here = plane.querySelector("circle").getBoundingClientRect();
    const left = here.left - box.left + here.width / 2 - this.tip.offsetWidth / 2;
    this.tip.style.left = `${Math.max(0, Math.min(left, box.width - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${here.bottom - box.top + 4}px`;
  }
}

export default mounting(Arrows, ".gl-turn");
