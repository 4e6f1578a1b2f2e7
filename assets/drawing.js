// A drawing that Python made, with links of its own. It is made anew only when it is another one. A plain click on a
// link stays in this session; any other (a new tab, a new window) follows the link's address, which carries the choices.

class Drawing {
  constructor(root) {
    this.box = root.querySelector(".gl-drawing");
    this.shown = "";
    this.links = [];
    this.box.addEventListener("click", (event) => this.click(event));
  }

  update({ html, query }) {
    if (html !== this.shown) {
      this.box.innerHTML = html; // pages/figures escapes every text in it
      this.links = [...this.box.querySelectorAll("a[href]")].map((link) => [link, link.getAttribute("href")]);
    }
    this.shown = html;
    for (const [link, address] of this.links) link.setAttribute("href", `${address}&${query}`);
  }

  click(event) {
    const node = event.target.closest("a")?.querySelector("[data-step]");
    if (!node || !isPlain(event)) return;
    event.preventDefault();
    this.go(node.dataset.step);
  }
}

const mounted = new WeakMap();

export default function ({ data, parentElement, setStateValue }) {
  let drawing = mounted.get(parentElement);
  if (!drawing) mounted.set(parentElement, (drawing = new Drawing(parentElement)));
  drawing.go = (step) => setStateValue("go", pressed(step));
  if (data) drawing.update(data);
  return () => mounted.delete(parentElement);
}
