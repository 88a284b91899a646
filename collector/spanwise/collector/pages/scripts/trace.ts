// The script of the trace page, which works without it. It spares reloads, follows a running trace, and adds copying,
// keys, and search in JSON.

import { announce, every, parse } from "./page";
import { hasRun, loadTree, mountTree, nameOf, originOf, readAddress, selectRun, stepError } from "./tree";

const treeSection = document.querySelector<HTMLElement>(".split[data-tree-url] > section.tree");
const treeData = () => treeSection?.parentElement?.dataset ?? {};
const rootId = () => treeData().root ?? ""; // another run if the root has not ended yet
const runOf = (address: string) => new URL(address, location.href).searchParams.get("run") ?? rootId();
if (treeSection) void mountTree(treeSection, treeData().treeUrl!, treeData().ticket!, rootId, (address) => void show(address, true));
let shown = runOf(location.href); // run whose detail is on the page
let latest: Promise<Document | null> | null = null; // answer for the run that was selected last

async function fetchPage(address: string, options: RequestInit = {}): Promise<Document | null> {
  const answer = await fetch(address, options);
  return answer.ok ? parse(answer) : null;
}

// Another run is fetched and put in place. A run that is not in the tree loads the page.
async function show(address: string, push: boolean): Promise<void> {
  const run = runOf(address);
  if (!hasRun(run)) return location.assign(address);
  if (push) history.pushState({}, "", address);
  readAddress();
  selectRun(run);
  if (run === shown) return;
  shown = run;
  const headers = { "Spanwise-Part": "run", "Spanwise-Origin": originOf(run) };
  const request = (latest = fetchPage(address, { headers }).catch(() => null)), page = await request;
  if (request !== latest) return; // answers may come in another order than their requests
  const detail = page?.getElementById("detail");
  if (!detail) return location.assign(address);
  document.getElementById("detail")?.replaceWith(document.adoptNode(detail));
  prepare(document);
  aimFeedback(run);
  if (push && matchMedia("(max-width: 900px)").matches) document.getElementById("detail")?.scrollIntoView();
}

// The feedback form keeps what was typed, and offers the selected run as its target.
function aimFeedback(run: string): void {
  const form = document.querySelector<HTMLFormElement>("#feedback form");
  const field = form?.querySelector<HTMLInputElement>("[name=run]"), target = form?.querySelector<HTMLSelectElement>("[name=span]")?.options[1];
  if (!field || !target) return;
  field.value = run === rootId() ? "" : run;
  target.value = run;
  target.text = `span ${nameOf(run)}`;
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

// A running trace notices its next spans. What is being read stays: the page changes only where it differs.
if (document.querySelector("[data-running]")) {
  const timer = every(2000, async () => {
    if (document.hidden) return;
    const isChosen = new URL(location.href).searchParams.has("run");
    document.getElementById("detail")?.toggleAttribute("hx-morph-skip", isChosen); // a run that has ended changes no more
    await window.htmx.ajax("GET", location.href, { target: "#main", select: "#main", swap: "outerMorph" });
    if (!treeSection && document.querySelector("section.tree")) return location.reload();
    shown = runOf(location.href);
    if (treeSection) await loadTree(treeData().treeUrl!, rootId());
    prepare(document);
    if (document.querySelector("[data-running]")) return;
    clearInterval(timer);
    announce("All runs have ended");
  });
}

if (document.querySelector("#detail, [data-running]")) {
  prepare(document);
  document.addEventListener("click", (event) => {
    const target = event.target as Element;
    const button = target.closest<HTMLElement>(".copy");
    if (button) return void copy(button).catch(() => { button.textContent = "Not copied"; });
    const link = target.closest<HTMLAnchorElement>(".detail a[href^='?'], .overview-top a[href^='?'], .facts a[href^='?']");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button || link.href.includes("view=")) return;
    if (link.closest(".content") && !link.closest(".call-head")) return;
    event.preventDefault();
    void show(link.href, true);
  });
  document.addEventListener("keydown", (event) => {
    if ((event.target as Element).closest?.("input, select, textarea") || event.metaKey || event.ctrlKey || event.altKey) return;
    const step = { n: 1, p: -1 }[event.key];
    if (step) stepError(step);
  });
  addEventListener("popstate", () => void show(location.href, false));
  window.htmx.onLoad(() => prepare(document));
}
