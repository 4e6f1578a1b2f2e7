// A drawing that Python made, with links of its own. It is made anew only when it is another one.

class Drawing extends Linked {
  update({ html, query }) {
    if (html !== this.shown) {
      this.box.innerHTML = html; // pages/figures escapes every text in it
      this.links = [...this.box.querySelectorAll("a[href]")].map((link) => [link, link.getAttribute("href")]);
    }
    this.shown = html;
    for (const [link, address] of this.links) link.setAttribute("href", `${address}&${query}`);
  }

  target(link) {
    return link.querySelector("[data-step]")?.dataset.step;
  }
}

export default mounting(Drawing, ".gl-drawing");
