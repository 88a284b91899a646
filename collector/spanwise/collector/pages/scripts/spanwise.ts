// The script of every page. Everything works without it. It spares reloads, keeps addresses short, and shows times in
// the reader's zone.

import { announce, convertTimes, every, parse } from "./page";

convertTimes(document);

type Field = HTMLInputElement | HTMLSelectElement;

// Empty fields of a filter form stay out of the address, and a changed choice applies at once.
for (const form of document.querySelectorAll<HTMLFormElement>("form[data-tidy]")) {
  const named = (name: string) => [...form.querySelectorAll<Field>(`[name=${name}]`)];
  form.addEventListener("submit", () => {
    for (const field of form.elements as Iterable<Field>) if (field.name && !field.value) field.disabled = true;
    const [key] = named("feedback_key");
    if (key && !key.value) for (const field of [...named("feedback_op"), ...named("feedback_value")]) field.disabled = true;
    // the form has two fields for the beginning; the one that was typed counts
    const [range, from] = named("since");
    if (range && from?.value) range.disabled = true;
  });
  form.addEventListener("change", ({ target }) => {
    if (target instanceof HTMLSelectElement && !target.closest("[popover].card")) form.requestSubmit();
  });
}

// Coming back with the browser's button must not find the fields disabled. The row that was opened gets the focus.
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll<Field>("form[data-tidy] :disabled")) field.disabled = false;
  const opened: unknown = history.state?.opened;
  const rows = [...document.querySelectorAll<HTMLAnchorElement>("a.row-link")];
  const row = rows.find((link) => opened && link.getAttribute("href") === opened);
  if (row && document.activeElement === document.body) row.focus();
});
document.addEventListener("click", ({ target }) => {
  const row = target instanceof Element && target.closest("a.row-link");
  if (row) history.replaceState({ ...history.state, opened: row.getAttribute("href") }, "");
});

// Commands can be copied.
for (const button of document.querySelectorAll<HTMLButtonElement>(".command [data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement?.querySelector("code")?.textContent ?? "");
    button.textContent = "Copied";
    announce("Copied");
  });
}

// Charts over a long time come when they are ready; the list does not wait for them.
function loadCharts(): void {
  for (const place of document.querySelectorAll<HTMLElement>("[data-charts]")) {
    void fetch(place.dataset.charts!).then(async (answer) => {
      const page = await parse(answer);
      const why = answer.ok ? null : page.querySelector(".long-text"); // the page of an error, such as charts that take too long
      if (why) why.className = "muted";
      place.replaceWith(...(answer.ok ? page.body.childNodes : why ? [why] : []));
    }).catch(() => place.remove());
  }
}
loadCharts();

// Live: the list is fetched anew every few seconds, while it is looked at and nothing in it is open or focused.
const rowsOf = (root: ParentNode) => new Set([...root.querySelectorAll("a.row-link")].map((link) => link.getAttribute("href")));
async function refresh(): Promise<void> {
  const list = document.getElementById("list"), focused = document.activeElement;
  const isUsed = list?.contains(focused) && !["list", "rows"].includes(focused?.id ?? "");
  if (!list || document.hidden || document.querySelector(":popover-open") || isUsed) return;
  const answer = await fetch(location.href);
  if (answer.status === 401) return location.reload(); // signed out: the page says where to sign in
  if (!answer.ok) return;
  const page = await parse(answer);
  const known = rowsOf(list);
  const fresh = [...rowsOf(page)].filter((address) => !known.has(address)).length;
  for (const id of ["list", "times"]) {
    const there = page.getElementById(id);
    if (there) document.getElementById(id)?.replaceWith(document.adoptNode(there));
  }
  loadCharts();
  if (fresh) announce(`${fresh} new`);
}
const live = document.getElementById("live");
if (live) {
  let timer = 0;
  live.hidden = false;
  live.addEventListener("click", () => {
    const on = live.getAttribute("aria-pressed") !== "true";
    live.setAttribute("aria-pressed", String(on));
    clearInterval(timer);
    if (!on) return;
    timer = every(3000, refresh);
    refresh().catch(() => {});
  });
}

// An empty page notices the first trace or session.
if (document.querySelector("[data-wait]")) {
  const timer = every(3000, async () => {
    const answer = await fetch(location.href);
    if (!answer.ok || (await parse(answer)).querySelector("[data-wait]")) return;
    clearInterval(timer);
    announce("The first one has arrived");
    location.reload();
  });
}
