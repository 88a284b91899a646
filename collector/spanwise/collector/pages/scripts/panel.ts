// A row of the list opens a panel beside it; Enter opens the whole trace. The address has the panel, so that Back closes it.

import { announce, parse } from "./page";

const getPanel = () => document.getElementById("panel");
const getRows = () => [...document.querySelectorAll<HTMLAnchorElement>("#rows a.row-link")];
const getRow = (trace: string | null | undefined) => getRows().find((link) => link.dataset.trace === trace);
const covers = () => matchMedia("(max-width: 899px)").matches;
const getShown = () => new URL(location.href).searchParams.get("panel");
let request = new AbortController();

export function openPanels(): void {
  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const row = target?.closest<HTMLAnchorElement>("#rows a.row-link");
    const isPlain = event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);
    if (row && isPlain && event.detail > 0) { // 0: the key Enter, which opens the trace
      event.preventDefault();
      row.focus();
      void open(row);
    } else if (target?.closest("[data-close]")) {
      event.preventDefault();
      close();
    }
  });
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, textarea, :popover-open")) return;
    if (event.key === "Escape" && getPanel()) close();
    else if (event.key === "j" || (event.key === "ArrowDown" && isRow(target))) step(1);
    else if (event.key === "k" || (event.key === "ArrowUp" && isRow(target))) step(-1);
    else if (event.key === " " && isRow(target)) void open(target as HTMLAnchorElement);
    else return;
    event.preventDefault();
  });
  addEventListener("popstate", () => {
    const row = getRow(getShown());
    if (row) void show(row);
    else remove();
  });
  mark();
  // the way back from a trace leads to its row; the browser clears the focus while it loads an address with a "#"
  if (location.hash.startsWith("#t-")) addEventListener("pageshow", () => getRow(location.hash.slice(3))?.focus());
}

/** Puts the panel beside rows that have replaced others. */
export function keepPanel(replaceRows: () => void): void {
  const panel = getPanel();
  replaceRows();
  if (panel) document.getElementById("beside")?.append(panel);
  mark();
}

const isRow = (element: HTMLElement) => element.matches("#rows a.row-link");

async function open(row: HTMLAnchorElement): Promise<void> {
  const address = new URL(location.href);
  address.searchParams.set("panel", row.dataset.trace!);
  address.hash = "";
  if (getShown()) history.replaceState(history.state, "", address);
  else history.pushState({ panel: true }, "", address);
  await show(row);
}

async function show(row: HTMLAnchorElement): Promise<void> {
  mark();
  request.abort();
  request = new AbortController();
  const { signal } = request;
  try {
    const answer = await fetch(location.href, { headers: { "Spanwise-Part": "panel" }, signal });
    const panel = answer.ok ? (await parse(answer)).getElementById("panel") : null;
    if (signal.aborted) return;
    if (!panel) return location.assign(row.href);
    getPanel()?.remove();
    document.getElementById("beside")?.append(document.adoptNode(panel));
    mark();
    if (covers()) panel.focus();
    else announce(`Beside the list: ${panel.querySelector("h2")?.innerText ?? ""}`);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

// The panel was opened here: the address before it is the one without it.
function close(): void {
  const row = getRow(getShown());
  if (history.state?.panel) history.back();
  else {
    const address = new URL(location.href);
    address.searchParams.delete("panel");
    history.replaceState(history.state, "", address);
  }
  remove();
  row?.focus();
}

function remove(): void {
  request.abort();
  getPanel()?.remove();
  mark();
}

// The next or previous row gets the focus. If a panel is open, it shows that row.
function step(by: number): void {
  const rows = getRows(), focused = document.activeElement as HTMLAnchorElement;
  const at = Math.max(rows.indexOf(focused), rows.findIndex((row) => row.dataset.trace === getShown()));
  const row = rows[Math.min(rows.length - 1, Math.max(0, at + by))];
  row?.focus();
  row?.scrollIntoView({ block: "nearest" });
  if (row && getPanel()) void open(row);
}

// The row of the panel is marked. A panel that covers the page leaves nothing else to reach.
function mark(): void {
  const panel = getPanel(), shown = getShown();
  for (const row of getRows()) {
    const line = row.closest("tr")!;
    row.dataset.trace === shown ? line.setAttribute("aria-current", "true") : line.removeAttribute("aria-current");
  }
  const others = document.querySelectorAll<HTMLElement>(".top, .sidebar, .title, .filter, .marks, .overview, .running, #beside > .rows, .pager");
  for (const other of others) other.inert = !!panel && covers();
}
