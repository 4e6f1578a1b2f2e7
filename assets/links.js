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
