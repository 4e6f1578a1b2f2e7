// The links to all pages.

let page; // the one whose menu was drawn last
let pressed = false; // by a key: the next page's menu, which is another element, takes the focus that is lost

class Menu extends Linked {
  constructor(box) {
    super(box);
    // Streamlit changes its own colours with the theme, and does not ask the script for new pictures.
    box.addEventListener("transitionrun", (event) => event.target === box && this.say("theme", performance.now()));
  }

  update({ label, pages, here, query, heard }) {
    const shown = JSON.stringify([label, pages]);
    if (shown !== this.shown) this.build(label, pages);
    this.shown = shown;
    for (const [i, [name, address]] of pages.entries()) {
      this.links[i].href = `./${address}?${query}`;
      if (name === here) this.links[i].setAttribute("aria-current", "page");
      else this.links[i].removeAttribute("aria-current");
    }
    if (page !== here) {
      document.querySelector('[data-testid="stMain"]')?.scrollTo(0, 0);
      if (pressed) this.box.querySelector("[aria-current]")?.focus();
      pressed = false;
    }
    page = here;
    this.tellAgain(heard);
  }

  build(label, pages) {
    this.box.setAttribute("aria-label", label);
    this.links = pages.map(([name, , icon, title, question]) => {
      const link = document.createElement("a");
      link.dataset.go = name;
      link.title = question;
      const sign = document.createElement("span");
      sign.className = "gl-icon";
      sign.setAttribute("aria-hidden", "true");
      sign.textContent = icon;
      link.append(sign, title);
      return link;
    });
    this.box.replaceChildren(...this.links);
  }

  target(link) {
    return link.dataset.go;
  }

  click(event) {
    super.click(event);
    pressed = event.defaultPrevented && event.detail === 0;
    // On a telephone the sidebar covers the page that was asked for.
    if (event.defaultPrevented && window.matchMedia("(max-width: 768px)").matches) {
      document.querySelector('[data-testid="stSidebarCollapseButton"] button')?.click();
    }
  }
}

export default mounting(Menu, ".gl-menu");
