// Changes of the list that is shown, as the server reports them.

/** Calls `onChange` after each change, while the page is looked at. Returns a function that ends this. */
export function followChanges(onChange: () => Promise<void>): () => void {
  let source: EventSource | null = null, later = 0;
  const update = () => {
    onChange().catch(() => {});
    clearTimeout(later); // rules score a trace some seconds after it has arrived, which is not reported
    later = setTimeout(() => void onChange().catch(() => {}), 10_000);
  };
  const connect = () => {
    source?.close();
    if (document.hidden) return; // a browser has few connections for all of its tabs
    update();
    source = new EventSource(`/live${location.search}`);
    source.onmessage = update;
    source.onerror = () => source?.readyState === EventSource.CLOSED && update(); // such as signed out: the answer says so
  };
  connect();
  document.addEventListener("visibilitychange", connect);
  return () => {
    document.removeEventListener("visibilitychange", connect);
    clearTimeout(later);
    source?.close();
  };
}
