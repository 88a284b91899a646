// Everything works without this file. It spares reloads and keeps addresses short.
"use strict";

// Empty fields of a filter form stay out of the address, and a changed choice applies at once.
for (const form of document.querySelectorAll("form[data-tidy]")) {
  form.addEventListener("submit", () => {
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
    const key = form.elements["feedback_key"];
    if (key && !key.value) for (const name of ["feedback_op", "feedback_value"]) form.elements[name].disabled = true;
  });
  form.addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT" && event.target.name !== "feedback_op" && event.target.name !== "feedback_key") form.requestSubmit();
  });
}
// Coming back with the browser's button must not find the fields disabled.
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("form[data-tidy] :disabled")) field.disabled = false;
});

// Charts over a long time come when they are ready; the list does not wait for them.
function charts() {
  for (const place of document.querySelectorAll("[data-charts]")) {
    fetch(place.dataset.charts).then(async (answer) => {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const why = answer.ok ? null : page.querySelector(".long-text"); // the page of an error, such as charts that take too long
      if (why) why.className = "muted";
      place.replaceWith(...(answer.ok ? page.body.childNodes : why ? [why] : []));
    }).catch(() => place.remove());
  }
}
charts();

// Live: the list is fetched anew every few seconds, while it is looked at and nothing in it is open or focused.
const live = document.getElementById("live");
async function refresh() {
  const list = document.getElementById("list");
  if (document.hidden || list.querySelector(":popover-open") || list.contains(document.activeElement)) return;
  const answer = await fetch(location.href);
  if (answer.status === 401) return location.reload(); // signed out: the page says where to sign in
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const id of ["list", "times"]) document.getElementById(id).replaceWith(document.adoptNode(page.getElementById(id)));
  charts();
}
if (live) {
  let timer;
  live.hidden = false;
  live.addEventListener("click", () => {
    const on = live.getAttribute("aria-pressed") !== "true";
    live.setAttribute("aria-pressed", String(on));
    clearInterval(timer);
    if (on) timer = setInterval(() => refresh().catch(() => {}), 3000);
    if (on) refresh().catch(() => {});
  });
}

// In a trace, another span is fetched and put in place, so that the tree keeps its position.
const detail = document.getElementById("detail");
async function show(address, push) {
  const answer = await fetch(address);
  if (!answer.ok) return location.assign(address);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
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
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
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
if (detail) {
  const tree = document.querySelector(".tree");
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
  addEventListener("popstate", () => location.reload());
}
