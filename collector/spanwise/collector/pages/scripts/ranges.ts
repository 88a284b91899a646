// Dragging over a chart above a list selects the time of the buckets below the pointer.

export function dragRanges(): void {
  for (const note of document.querySelectorAll<HTMLElement>("[data-drag]")) note.hidden = false;
  document.addEventListener("pointerdown", (event) => {
    const chart = event.target instanceof Element ? event.target.closest<SVGElement>(".overview .spark") : null;
    const window = chart?.closest<HTMLElement>("[data-since]")?.dataset;
    if (!chart || !window || event.button !== 0) return;
    event.preventDefault();
    drag(chart.getBoundingClientRect(), event, (left, right) => {
      const since = BigInt(window.since!), width = BigInt(window.width!);
      const count = Number((BigInt(window.until!) - since) / width);
      const address = new URL(location.href);
      for (const name of ["range", "cursor", "panel"]) address.searchParams.delete(name);
      address.searchParams.set("since", String(since + BigInt(Math.floor(left * count)) * width));
      address.searchParams.set("until", String(since + BigInt(Math.ceil(right * count)) * width));
      location.assign(address);
    });
  });
}

/** Marks what a pointer selects in a frame, and reports it as two shares of the frame's width. */
function drag(frame: DOMRect, start: PointerEvent, done: (left: number, right: number) => void): void {
  const mark = Object.assign(document.createElement("div"), { className: "drag" });
  document.body.append(mark);
  const stop = new AbortController(), share = (event: PointerEvent) => Math.min(1, Math.max(0, (event.clientX - frame.left) / frame.width));
  const ends = (event: PointerEvent) => [share(start), share(event)].sort((a, b) => a - b) as [number, number];
  stop.signal.addEventListener("abort", () => mark.remove());
  addEventListener("pointercancel", () => stop.abort(), { signal: stop.signal });
  addEventListener("pointermove", (event) => {
    const [left, right] = ends(event);
    const [x, y] = [scrollX + frame.left + left * frame.width, scrollY + frame.top];
    Object.assign(mark.style, { left: `${x}px`, top: `${y}px`, width: `${(right - left) * frame.width}px`, height: `${frame.height}px` });
  }, { signal: stop.signal });
  addEventListener("pointerup", (event) => {
    stop.abort();
    const [left, right] = ends(event);
    if ((right - left) * frame.width >= 3) done(left, right); // less is a click
  }, { signal: stop.signal });
}
