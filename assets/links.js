// Links of a component that stay in this session: a plain click tells Python where they lead (pages/ui/links.py), any
// other (a new tab, a new window) follows the link's own address. Each press carries the time: of two that cross, the
// later one counts, and one that comes back with an old page's state is known as old.

class Linked {
  constructor(box) {
    this.box = box;
    this.shown = "";
    this.links = [];
    box.addEventListener("click", (event) => this.click(event));
  }

  click(event) {
    const link = event.target.closest("a");
    const to = link && this.target(link);
    if (!to || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    this.say("go", { to, at: performance.timeOrigin + performance.now() });
  }
}

// A component that is one such object for as long as it is mounted.
const mounting = (Kind, selector) => {
  const mounted = new WeakMap();
  return ({ data, parentElement, setStateValue }) => {
    let kept = mounted.get(parentElement);
    if (!kept) mounted.set(parentElement, (kept = new Kind(parentElement.querySelector(selector))));
    kept.say = setStateValue;
    if (data) kept.update(data);
    return () => mounted.delete(parentElement);
  };
};
