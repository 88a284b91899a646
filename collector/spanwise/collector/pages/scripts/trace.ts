// The script of the trace page, which works without it. It spares reloads, follows a running trace, and adds copying,
// keys, and search in JSON.

import { announce, every, parse } from "./page";

const part = (page: Document, id: string) => document.adoptNode(page.getElementById(id)!);
const tree = () => document.querySelector<HTMLElement>("section.tree");
const runLinks = () => [...document.querySelectorAll<HTMLAnchorElement>(".tree a[data-run]")];

async function fetchPage(address: string, headers: HeadersInit = {}): Promise<Document | null> {
  const answer = await fetch(address, { headers });
  return answer.ok ? parse(answer) : null;
}

function findRow(address: string): HTMLAnchorElement | undefined {
  const wanted = new URL(address, location.href).searchParams.get("run");
  return runLinks().find((link) => new URL(link.href).searchParams.get("run") === wanted);
}

// Another run is fetched and put in place. A row that is not in the tree, or another filter, loads the page.
async function show(address: string, push: boolean): Promise<void> {
  const row = findRow(address);
  const page = row && (await fetchPage(address, { "Spanwise-Part": "run" }));
  if (!row || !page?.getElementById("detail")) return location.assign(address);
  for (const id of ["detail", "feedback"]) document.getElementById(id)?.replaceWith(part(page, id));
  for (const link of runLinks()) {
    link.parentElement?.classList.toggle("current", link === row);
    link === row ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
  }
  if (push) history.pushState({}, "", address);
  reveal();
  prepare(document);
  if (push && matchMedia("(max-width: 900px)").matches) document.getElementById("detail")?.scrollIntoView();
}

// A fold or a filter changes the tree alone, and keeps the selected run.
async function changeTree(link: HTMLAnchorElement): Promise<void> {
  const address = new URL(link.href), run = new URL(location.href).searchParams.get("run");
  run ? address.searchParams.set("run", run) : address.searchParams.delete("run");
  const page = await fetchPage(address.href), box = tree(), changed = page?.querySelector<HTMLElement>("section.tree");
  if (!box || !changed) return location.assign(address);
  const scroll = box.scrollTop, label = link.getAttribute("aria-label")?.split(" below ")[1], text = link.textContent;
  box.replaceWith(document.adoptNode(changed));
  changed.scrollTop = scroll;
  history.replaceState({}, "", address);
  const links = [...changed.querySelectorAll<HTMLAnchorElement>("a:not([data-run])")];
  const again = links.find((other) => label ? other.getAttribute("aria-label")?.endsWith(` below ${label}`) : other.textContent === text);
  again?.focus({ preventScroll: true });
}

// The next or previous failed run, in the order of the tree.
function stepError(step: number): void {
  const rows = runLinks(), at = rows.findIndex((row) => row.matches("[aria-current]"));
  const others = step > 0 ? rows.slice(at + 1) : rows.slice(0, Math.max(at, 0)).reverse();
  const name = step > 0 ? "next" : "previous";
  (others.find((row) => "failed" in row.dataset) ?? document.querySelector<HTMLElement>(`.tree [data-error=${name}]`))?.click();
}

// The chosen run, which may be far down in a long tree, is in sight.
function reveal(): void {
  const box = tree(), row = box?.querySelector(".current");
  if (!box || !row) return;
  const place = row.getBoundingClientRect(), frame = box.getBoundingClientRect();
  if (place.bottom > frame.bottom) box.scrollTop += place.bottom - frame.bottom + box.clientHeight / 2;
  if (place.top < frame.top) box.scrollTop -= frame.top - place.top + box.clientHeight / 2;
}

// The next spans of a long trace come below those that are there.
async function more(link: HTMLAnchorElement): Promise<void> {
  const page = await fetchPage(link.href);
  if (!page) return location.assign(link.href);
  const rows = [...page.querySelectorAll(".tree li")].map((row) => document.adoptNode(row));
  for (const row of rows) {
    row.classList.remove("current");
    row.querySelector("[aria-current]")?.removeAttribute("aria-current");
  }
  document.querySelector(".tree ol")?.append(...rows);
  const next = page.querySelector("[data-more]")?.parentElement;
  next ? link.parentElement?.replaceWith(document.adoptNode(next)) : link.parentElement?.remove();
  rows[0]?.querySelector<HTMLElement>("[data-run]")?.focus();
}

// Copying: a text of the page, or a value that is fetched first.
async function copy(button: HTMLElement): Promise<void> {
  const { copy: text = "", copyFrom: from } = button.dataset;
  const whole = from ? await (await fetch(from)).text() : text.startsWith("/") ? location.origin + text : text;
  await navigator.clipboard.writeText(whole);
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}

// A JSON value with many fields gets a search, which opens the levels that contain a match.
function addSearch(box: HTMLElement): void {
  const rows = box.querySelectorAll<HTMLElement>(box.matches("dl") ? ":scope > div, dl.tree > div" : "dl.tree > div");
  if (rows.length < 15 || box.previousElementSibling?.matches(".tree-search") || box.parentElement?.closest("[data-searched]")) return;
  box.dataset.searched = "";
  const field = document.createElement("input");
  field.type = "search";
  field.className = "tree-search";
  field.placeholder = "Search fields and values";
  field.setAttribute("aria-label", "Search fields and values");
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    for (const row of rows) {
      const hit = !wanted || (row.textContent ?? "").toLowerCase().includes(wanted);
      row.hidden = !hit;
      if (wanted && hit) for (const fold of row.querySelectorAll<HTMLDetailsElement>(":scope > dd details")) fold.open = true;
    }
  });
  box.before(field);
}

function prepare(root: ParentNode): void {
  for (const button of root.querySelectorAll<HTMLElement>(".copy[hidden]")) button.hidden = false;
  for (const box of root.querySelectorAll<HTMLElement>(".content > dl.fields, [data-tree]")) addSearch(box);
}

// A running trace notices its next spans.
if (document.querySelector("[data-running]")) {
  const timer = every(2000, async () => {
    if (document.hidden || document.querySelector(":popover-open, details.add[open]")) return;
    const page = await fetchPage(location.href);
    if (!page) return;
    const running = page.querySelector("[data-running]"), rows = page.querySelector("section.tree");
    const focused = document.activeElement?.getAttribute("href");
    if (tree() && rows && (running || location.search)) {
      // what is being read stays: only the title, the facts and the tree change
      for (const name of [".title", ".facts"]) document.querySelector(name)?.replaceWith(document.adoptNode(page.querySelector(name)!));
      tree()?.replaceChildren(...document.adoptNode(rows).childNodes);
    } else {
      document.getElementById("main")?.replaceWith(part(page, "main"));
      reveal();
    }
    prepare(document);
    if (focused) document.querySelector<HTMLElement>(`main a[href="${CSS.escape(focused)}"]`)?.focus();
    if (running) return;
    clearInterval(timer);
    announce("All runs have ended");
  });
}

if (document.querySelector("#detail, [data-running]")) {
  prepare(document);
  reveal();
  document.addEventListener("click", (event) => {
    const target = event.target as Element;
    const button = target.closest<HTMLElement>(".copy");
    if (button) return void copy(button).catch(() => { button.textContent = "Not copied"; });
    const link = target.closest<HTMLAnchorElement>(".tree a, .detail a[href^='?run='], .overview-top a[href^='?run=']");
    if (!link || link.closest(".content") && !link.closest(".call-head") || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    if (link.getAttribute("href")?.includes("view=")) return;
    event.preventDefault();
    const isTool = "fold" in link.dataset || link.closest(".tree-tools") && !("error" in link.dataset);
    const work = "more" in link.dataset ? more(link) : isTool ? changeTree(link) : show(link.href, true);
    work.catch(() => location.assign(link.href));
  });
  document.addEventListener("keydown", (event) => {
    if ((event.target as Element).closest?.("input, select, textarea") || event.metaKey || event.ctrlKey || event.altKey) return;
    const error = { n: 1, p: -1 }[event.key];
    if (error) return stepError(error);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], focused = document.activeElement;
    if (!step || !tree()?.contains(focused)) return;
    const links = [...tree()!.querySelectorAll<HTMLElement>("a[data-run], a[data-more]")];
    const next = links[links.indexOf(focused as HTMLElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  addEventListener("popstate", () => location.reload());
}
