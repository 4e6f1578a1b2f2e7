// Links of a component that stay in this session: a plain click tells Python where they lead (pages/ui/links.py), any
// other (a new tab, a new window) follows the link's own address. Each press carries the time: of two that cross, the
// later one counts, and one that comes back with an old page's state is known as old.

let last; // the newest press on a component of this kind

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
    this.tell({ to, at: performance.timeOrigin + performance.now() });
  }

  tell(press) {
    this.told = last = press;
    this.say("go", press);
  }

  // A press that this component told while the page was changing can be lost with the page: nobody asks for the state
  // of a component that is gone. The next page's component, another object, tells it once more. `heard` is the time of
  // the newest press that Python knows.
  tellAgain(heard) {
    if (last?.at <= heard) last = undefined;
    if (!last || this.told === last) return;
    if (performance.timeOrigin + performance.now() - last.at < 30_000) this.tell(last);
  }
}
