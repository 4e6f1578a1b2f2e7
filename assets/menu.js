// The menu. A plain click stays in this session; any other (a new tab, a new window) follows the link's own address.

class Menu {
  constructor(root) {
    this.nav = root.querySelector(".gl-menu");
    this.shown = "";
    this.links = [];
    this.nav.addEventListener("click", (event) => this.click(event));
    this.nav.addEventListener("transitionrun", (event) => event.target === this.nav && this.repaint());
  }

  update({ label, pages, here, query }) {
    const shown = JSON.stringify([label, pages]);
    if (shown !== this.shown) this.build(label, pages);
    this.shown = shown;
    for (const [i, [name, address]] of pages.entries()) {
      this.links[i].href = `./${address}?${query}`;
      if (name === here) this.links[i].setAttribute("aria-current", "page");
      else this.links[i].removeAttribute("aria-current");
    }
  }

  build(label, pages) {
    this.nav.setAttribute("aria-label", label);
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
    this.nav.replaceChildren(...this.links);
  }

  click(event) {
    const link = event.target.closest("[data-go]");
    if (!link || !isPlain(event)) return;
    event.preventDefault();
    this.go(link.dataset.go);
    if (window.matchMedia("(max-width: 768px)").matches) this.fold();
  }

  // On a telephone the sidebar covers the page that was asked for.
  fold() {
    document.querySelector('[data-testid="stSidebarCollapseButton"] button')?.click();
  }
}

const mounted = new WeakMap();

export default function ({ data, parentElement, setStateValue }) {
  let menu = mounted.get(parentElement);
  if (!menu) mounted.set(parentElement, (menu = new Menu(parentElement)));
  menu.go = (name) => setStateValue("go", pressed(name));
  // Streamlit changes its own colours with the theme, and does not ask the script for new pictures.
  menu.repaint = () => setStateValue("theme", performance.now());
  if (data) menu.update(data);
  return () => mounted.delete(parentElement);
}
