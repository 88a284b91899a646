// Everything works without this file. It spares reloads, keeps addresses short, and shows times in the reader's zone.
"use strict";

const page = document.documentElement.dataset;
const parse = async (answer) => new DOMParser().parseFromString(await answer.text(), "text/html");
const announce = (text) => { document.getElementById("announcement").textContent = text; };

// Times: the server prints them in the zone that this cookie names, UTC without it. The first page is converted here.
const zone = page.zone === "local" ? Intl.DateTimeFormat().resolvedOptions().timeZone : "UTC";
const named = document.cookie.split("; ").find((pair) => pair.startsWith("spanwise-zone="))?.slice(14);
const isForeign = page.zone === "local" && zone && decodeURIComponent(named ?? "") !== zone;
if (isForeign) document.cookie = `spanwise-zone=${encodeURIComponent(zone)}; path=/; max-age=31622400; samesite=lax`;
function convertTimes(root) {
  if (!isForeign) return;
  const parts = (moment, options) => new Intl.DateTimeFormat("en-GB", { timeZone: zone, ...options }).format(moment);
  const day = (moment) => parts(moment, { dateStyle: "short" });
  const now = new Date();
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const clock = parts(moment, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
    const date = parts(moment, { day: "numeric", month: "short" });
    const year = parts(moment, { year: "numeric" });
    const isThisYear = year === parts(now, { year: "numeric" });
    time.textContent = day(moment) === day(now) ? clock : isThisYear ? `${date} ${clock.slice(0, 5)}` : `${date} ${year}`;
    time.title = `${parts(moment, { dateStyle: "medium", timeStyle: "long" })}`;
  }
  const place = document.getElementById("zone");
  if (place) place.textContent = `Times in ${zone}`;
}
convertTimes(document);

// Empty fields of a filter form stay out of the address, and a changed choice applies at once.
for (const form of document.querySelectorAll("form[data-tidy]")) {
  form.addEventListener("submit", () => {
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
    const key = form.elements["feedback_key"];
    if (key && !key.value) for (const name of ["feedback_op", "feedback_value"]) form.elements[name].disabled = true;
    // the form has two fields for the beginning; the one that was typed counts
    const [range, from] = form.querySelectorAll("[name=since]");
    if (from?.value) range.disabled = true;
  });
  form.addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT" && !event.target.closest("[popover].card")) form.requestSubmit();
  });
}
// Coming back with the browser's button must not find the fields disabled. The row that was opened gets the focus.
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("form[data-tidy] :disabled")) field.disabled = false;
  const opened = history.state?.opened;
  const row = opened && [...document.querySelectorAll("a.row-link")].find((link) => link.getAttribute("href") === opened);
  if (row && document.activeElement === document.body) row.focus();
});
document.addEventListener("click", (event) => {
  const row = event.target.closest?.("a.row-link");
  if (row) history.replaceState({ ...history.state, opened: row.getAttribute("href") }, "");
});

// Commands can be copied.
for (const button of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
    announce("Copied");
  });
}

// Charts over a long time come when they are ready; the list does not wait for them.
function charts() {
  for (const place of document.querySelectorAll("[data-charts]")) {
    fetch(place.dataset.charts).then(async (answer) => {
      const page = await parse(answer);
      convertTimes(page);
      const why = answer.ok ? null : page.querySelector(".long-text"); // the page of an error, such as charts that take too long
      if (why) why.className = "muted";
      place.replaceWith(...(answer.ok ? page.body.childNodes : why ? [why] : []));
    }).catch(() => place.remove());
  }
}
charts();

// Live: the list is fetched anew every few seconds, while it is looked at and nothing in it is open or focused.
const live = document.getElementById("live");
const rowsOf = (root) => new Set([...root.querySelectorAll("a.row-link")].map((link) => link.getAttribute("href")));
async function refresh() {
  const list = document.getElementById("list");
  if (document.hidden || document.querySelector(":popover-open") || (list !== document.activeElement && list.contains(document.activeElement))) return;
  const answer = await fetch(location.href);
  if (answer.status === 401) return location.reload(); // signed out: the page says where to sign in
  if (!answer.ok) return;
  const page = await parse(answer);
  convertTimes(page);
  const known = rowsOf(list);
  const fresh = [...rowsOf(page)].filter((address) => !known.has(address)).length;
  for (const id of ["list", "times"]) {
    const there = page.getElementById(id);
    if (there) document.getElementById(id)?.replaceWith(document.adoptNode(there));
  }
  charts();
  if (fresh) announce(`${fresh} new`);
}
const every = (milliseconds, work) => setInterval(() => work().catch(() => {}), milliseconds);
if (live) {
  let timer;
  live.hidden = false;
  live.addEventListener("click", () => {
    const on = live.getAttribute("aria-pressed") !== "true";
    live.setAttribute("aria-pressed", String(on));
    clearInterval(timer);
    if (on) timer = every(3000, refresh);
    if (on) refresh().catch(() => {});
  });
}

// An empty page notices the first trace or session, and a running trace its next spans.
if (document.querySelector("[data-wait]")) {
  const timer = every(3000, async () => {
    const answer = await fetch(location.href);
    if (!answer.ok || (await parse(answer)).querySelector("[data-wait]")) return;
    clearInterval(timer);
    announce("The first one has arrived");
    location.reload();
  });
}
if (document.querySelector("[data-running]")) {
  const timer = every(2000, async () => {
    if (document.hidden || document.querySelector(":popover-open, details.add[open]")) return;
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const page = await parse(answer);
    convertTimes(page);
    const main = page.getElementById("main");
    const tree = page.querySelector(".tree");
    const focused = document.activeElement?.getAttribute("href");
    if (tree && document.querySelector(".tree")) {
      // what is being read stays: only the title, the facts and the tree change
      for (const part of [".title", ".facts"]) document.querySelector(part)?.replaceWith(document.adoptNode(page.querySelector(part)));
      document.querySelector(".tree").replaceChildren(...document.adoptNode(tree).childNodes);
    } else {
      document.getElementById("main").replaceWith(document.adoptNode(main));
      connectTree();
    }
    if (focused) document.querySelector(`main a[href="${CSS.escape(focused)}"]`)?.focus();
    if (document.querySelector("[data-running]")) return;
    clearInterval(timer);
    if (location.search || tree === null) announce("All runs have ended");
    else show(location.href, false).then(() => announce("All runs have ended")).catch(() => {});
  });
}

// In a trace, another span is fetched and put in place, so that the tree keeps its position.
async function show(address, push) {
  const answer = await fetch(address);
  if (!answer.ok) return location.assign(address);
  const page = await parse(answer);
  convertTimes(page);
  for (const id of ["detail", "feedback"]) document.getElementById(id).replaceWith(document.adoptNode(page.getElementById(id)));
  for (const link of document.querySelectorAll("a[data-run]")) {
    const current = link.href === new URL(address, location).href;
    link.parentElement.classList.toggle("current", current);
    current ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
  }
  if (push) history.pushState({}, "", address);
  if (push && matchMedia("(max-width: 900px)").matches) document.getElementById("detail").scrollIntoView();
}
// The next spans of a long trace come below those that are there.
async function more(link) {
  const answer = await fetch(link.href);
  if (!answer.ok) return location.assign(link.href);
  const page = await parse(answer);
  const rows = [...page.querySelectorAll(".tree li")].map((row) => document.adoptNode(row));
  for (const row of rows) {
    row.classList.remove("current");
    row.firstElementChild.removeAttribute("aria-current");
  }
  document.querySelector(".tree ol").append(...rows);
  const next = page.querySelector("[data-more]");
  if (next) link.parentElement.replaceWith(document.adoptNode(next.parentElement));
  else link.parentElement.remove();
  rows[0]?.firstElementChild.focus();
}
function connectTree() {
  const tree = document.querySelector(".tree");
  if (!tree) return;
  const chosen = tree.querySelector(".current"); // which may be far down in a long tree
  const below = chosen ? chosen.getBoundingClientRect().bottom - tree.getBoundingClientRect().bottom : 0;
  if (below > 0) tree.scrollTop += below + tree.clientHeight / 2;
  tree.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-run], a[data-more]");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    const shown = "more" in link.dataset ? more(link) : show(link.href, true);
    shown.catch(() => location.assign(link.href));
  });
  tree.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const links = [...tree.querySelectorAll("a")];
    const next = step && links[links.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}
if (document.getElementById("detail")) {
  connectTree();
  addEventListener("popstate", () => location.reload());
}
