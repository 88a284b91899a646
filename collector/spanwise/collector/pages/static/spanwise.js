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
