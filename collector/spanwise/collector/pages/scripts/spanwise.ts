// The script of every page. Everything works without it. It spares reloads, keeps addresses short, and shows times in
// the reader's zone.

import htmx from "htmx.org";

import { announce, convertTimes, every, parse } from "./page";

convertTimes(document);
htmx.onLoad(convertTimes); // of what htmx swaps in

type Field = HTMLInputElement | HTMLSelectElement;

// Empty fields of a filter form stay out of the address, and a changed choice applies at once.
for (const form of document.querySelectorAll<HTMLFormElement>("form[data-tidy]")) {
  const named = (name: string) => [...form.querySelectorAll<Field>(`[name=${name}]`)];
  form.addEventListener("submit", () => {
    for (const field of form.elements as Iterable<Field>) if (field.name && !field.value) field.disabled = true;
    const [key] = named("feedback_key");
    if (key && !key.value) for (const field of [...named("feedback_op"), ...named("feedback_value")]) field.disabled = true;
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

// Shift+J and Shift+K lead to the next and the previous trace of the list.
addEventListener("keydown", ({ key, target, ctrlKey, metaKey, altKey }) => {
  const rel = { J: "next", K: "prev" }[key];
  if (!rel || ctrlKey || metaKey || altKey || (target as Element).closest("input, select, textarea")) return;
  document.querySelector<HTMLAnchorElement>(`.neighbours a[rel=${rel}]`)?.click();
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
