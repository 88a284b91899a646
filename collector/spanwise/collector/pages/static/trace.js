// The trace page works without this file. It spares reloads, and adds copying, keys, and search in JSON.
"use strict";

const part = (page, id) => document.adoptNode(page.getElementById(id));
const tree = () => document.querySelector(".tree");

async function fetchPage(address) {
  const answer = await fetch(address);
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

// Another run is fetched and put in place. The tree keeps its scroll position; what was open stays open.
async function show(address, push) {
  const page = await fetchPage(address);
  if (!page) return location.assign(address);
  for (const id of ["detail", "feedback"]) document.getElementById(id).replaceWith(part(page, id));
  const old = tree(), scroll = old.scrollTop, focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const chosen = page.querySelector(".tree .current a[data-run]")?.getAttribute("href");
  const known = chosen && [...old.querySelectorAll("a[data-run]")].some((link) => link.getAttribute("href") === chosen);
  if (known && old.querySelector("[data-appended]")) {
    for (const link of old.querySelectorAll("a[data-run]")) { // rows that were added below stay
      const current = link.getAttribute("href") === chosen;
      link.parentElement.classList.toggle("current", current);
      current ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
    }
  } else {
    old.replaceWith(document.adoptNode(page.querySelector(".tree")));
    tree().scrollTop = scroll;
    const target = focused && [...tree().querySelectorAll("a")].find((link) => link.getAttribute("href") === focused);
    (target || (focused && tree().querySelector(".current a[data-run]")))?.focus({ preventScroll: true });
  }
  if (push) history.pushState({}, "", address);
  reveal();
  prepare(document);
  if (push && matchMedia("(max-width: 900px)").matches) document.getElementById("detail").scrollIntoView();
}

// The chosen run, which may be far down in a long tree, is in sight.
function reveal() {
  const box = tree(), row = box?.querySelector(".current");
  if (!row) return;
  const place = row.getBoundingClientRect(), frame = box.getBoundingClientRect();
  if (place.bottom > frame.bottom) box.scrollTop += place.bottom - frame.bottom + box.clientHeight / 2;
  if (place.top < frame.top) box.scrollTop -= frame.top - place.top + box.clientHeight / 2;
}

// The next spans of a long trace come below those that are there.
async function more(link) {
  const page = await fetchPage(link.href);
  if (!page) return location.assign(link.href);
  const rows = [...page.querySelectorAll(".tree li")].map((row) => document.adoptNode(row));
  for (const row of rows) {
    row.classList.remove("current");
    row.dataset.appended = "";
    row.querySelector("[aria-current]")?.removeAttribute("aria-current");
  }
  document.querySelector(".tree ol").append(...rows);
  const next = page.querySelector("[data-more]");
  if (next) link.parentElement.replaceWith(document.adoptNode(next.parentElement));
  else link.parentElement.remove();
  rows[0]?.querySelector("[data-run]").focus();
}

// Copying: a text of the page, or a value that is fetched first.
async function copy(button) {
  const { copy: text, copyFrom: from } = button.dataset;
  const whole = from ? await (await fetch(from)).text() : text.startsWith("/") ? location.origin + text : text;
  await navigator.clipboard.writeText(whole);
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}

// A JSON value with many fields gets a search, which opens the levels that contain a match.
function addSearch(box) {
  const rows = box.querySelectorAll("dl.tree > div");
  if (rows.length < 15 || box.previousElementSibling?.matches(".tree-search")) return;
  const field = document.createElement("input");
  field.type = "search";
  field.className = "tree-search";
  field.placeholder = "Search fields and values";
  field.setAttribute("aria-label", "Search fields and values");
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    for (const row of rows) {
      const hit = !wanted || row.textContent.toLowerCase().includes(wanted);
      row.hidden = !hit;
      if (wanted && hit) for (const fold of row.querySelectorAll(":scope > dd > details")) fold.open = true;
    }
  });
  box.before(field);
}

function prepare(root) {
  for (const button of root.querySelectorAll(".copy[hidden]")) button.hidden = false;
  for (const box of root.querySelectorAll("[data-tree]")) addSearch(box);
}

if (document.getElementById("detail")) {
  prepare(document);
  reveal();
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".copy");
    if (button) return void copy(button).catch(() => { button.textContent = "Not copied"; });
    const link = event.target.closest(".tree a, .detail a[href^='?run='], .overview-top a[href^='?run=']");
    if (!link || link.closest(".content") && !link.closest(".call-head") || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    const address = link.getAttribute("href").includes("view=") ? null : link.href;
    if (!address) return location.assign(link.href);
    ("more" in link.dataset ? more(link) : show(address, true)).catch(() => location.assign(address));
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest?.("input, select, textarea") || event.metaKey || event.ctrlKey || event.altKey) return;
    const error = { n: "next", p: "previous" }[event.key];
    if (error) return document.querySelector(`.tree [data-error=${error}]`)?.click();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !tree().contains(document.activeElement)) return;
    const links = [...tree().querySelectorAll("a[data-run], a[data-more]")];
    const next = links[links.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  addEventListener("popstate", () => location.reload());
}
