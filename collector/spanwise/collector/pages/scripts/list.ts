// The script of the list of traces, which works without it. It adds a panel beside the rows, suggestions,
// ranges by dragging, and live rows.

import { moveColumns, resizeColumns } from "./columns";
import { followChanges } from "./live";
import { announce, parse } from "./page";
import { keepPanel, openPanels } from "./panel";
import { dragRanges } from "./ranges";
import { suggestTerms } from "./suggestions";

const list = () => document.getElementById("list")!;
const listRows = (root: ParentNode) => [...root.querySelectorAll<HTMLAnchorElement>("a.row-link")];
const listIds = (root: ParentNode) => listRows(root).map((link) => link.dataset.trace!);

// Live: the list is fetched when traces have changed. New rows are counted, and shown on request, so that nothing moves while it
// is read. Without new rows the list is brought up to date, unless something in it is open or focused.
function followList(button: HTMLElement, notice: HTMLElement): void {
  let stop = () => {}, latest: Document | null = null;

  function replace(page: Document): void {
    keepPanel(() => {
      for (const id of ["list", "times"]) {
        const part = page.getElementById(id);
        if (part) document.getElementById(id)?.replaceWith(document.adoptNode(part));
      }
    });
    latest = null;
    notice.hidden = true;
    window.htmx.process(list());
    if (view) resizeColumns(view);
  }

  async function refresh(): Promise<void> {
    if (document.hidden) return;
    const address = new URL(location.href);
    address.searchParams.delete("panel");
    const answer = await fetch(address);
    if (answer.status === 401) return location.reload(); // signed out: the page says where to sign in
    if (!answer.ok) return;
    const page = await parse(answer), ids = listIds(page), known = listIds(list());
    const count = ids.filter((id) => !known.includes(id)).length;
    if (!count) {
      if (!latest && ids.join() === known.join() && !isInUse()) replace(page);
      return;
    }
    const text = `${count}${count === ids.length && known.length ? " or more" : ""} new`;
    if (notice.textContent !== text || notice.hidden) announce(text);
    Object.assign(notice, { textContent: text, hidden: false });
    latest = page;
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    const isOn = button.ariaPressed !== "true";
    button.ariaPressed = String(isOn);
    stop();
    stop = isOn ? followChanges(refresh) : () => {};
  });
  notice.addEventListener("click", () => {
    if (latest) replace(latest);
    scrollTo({ top: 0 });
    listRows(list())[0]?.focus({ preventScroll: true });
  });
}

function isInUse(): boolean {
  const focused = document.activeElement;
  return !!document.querySelector(":popover-open, .pick :checked") || (list().contains(focused) && !["list", "rows"].includes(focused!.id));
}

const live = document.getElementById("live"), fresh = document.getElementById("fresh");
if (live && fresh) followList(live, fresh);
for (const field of document.querySelectorAll<HTMLInputElement>("[data-suggest]")) suggestTerms(field);
dragRanges();
openPanels();
const view = document.querySelector<HTMLFormElement>("form.view-form");
if (view) {
  moveColumns(view);
  resizeColumns(view);
}
