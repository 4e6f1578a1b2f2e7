// Links of a component that stay in this session. Each press carries the time: of two that cross, the later one counts,
// and one that comes back with an old page's state is known as old (pages/ui/links.py).

const isPlain = (event) => !(event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);

const pressed = (to) => ({ to, at: performance.timeOrigin + performance.now() });
