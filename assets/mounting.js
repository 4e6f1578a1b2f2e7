// A component that is one object of its kind for as long as it is mounted.
const mounting = (Kind, selector) => {
  const mounted = new WeakMap();
  return ({ data, parentElement, setStateValue }) => {
    let kept = mounted.get(parentElement);
    if (!kept) mounted.set(parentElement, (kept = new Kind(parentElement.querySelector(selector))));
    kept.say = setStateValue;
    if (data) kept.update(data);
    return () => {
      kept.stop?.();
      mounted.delete(parentElement);
    };
  };
};
