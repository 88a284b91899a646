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
for (const button of document.querySelectorAll(".command [data-copy]")) {
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

const every = (milliseconds, work) => setInterval(() => work().catch(() => {}), milliseconds);

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
