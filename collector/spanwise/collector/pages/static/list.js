// The list of traces works without this file. It adds suggestions and ranges by dragging. It comes after spanwise.js, and
// uses `parse`, `convertTimes`, `announce`, `charts` and `every` of it.
"use strict";

// The filter line suggests conditions, keys and values for the term at the cursor.
function suggestTerms(field) {
  const list = document.createElement("ul");
  list.id = "suggestions";
  list.className = "suggestions";
  list.hidden = true;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Suggestions");
  field.after(list);
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-controls": list.id, "aria-expanded": "false" })) field.setAttribute(name, value);
  let selected = -1, timer, request;

  const close = () => {
    clearTimeout(timer);
    request?.abort();
    list.hidden = true;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  };
  const select = (place) => {
    const options = [...list.children];
    selected = options.length ? (place + options.length) % options.length : -1;
    options.forEach((option, at) => option.setAttribute("aria-selected", String(at === selected)));
    options[selected]?.scrollIntoView({ block: "nearest" });
    if (options[selected]) field.setAttribute("aria-activedescendant", options[selected].id);
  };
  const choose = (option) => {
    const term = findTerm(field), text = option.dataset.text;
    const isComplete = !/[.<>=!]$/.test(text);
    field.setRangeText(isComplete ? `${text} ` : text, term.start, term.end, "end");
    field.focus();
    close();
    if (!isComplete) load();
  };
  const show = (found) => {
    list.replaceChildren(...found.map(({ text, hint }, at) => {
      const option = document.createElement("li");
      option.id = `suggestion-${at}`;
      option.dataset.text = text;
      option.setAttribute("role", "option");
      option.append(...[text, hint].map((part) => Object.assign(document.createElement("span"), { textContent: part, className: part === hint ? "muted small" : "", dir: "auto" })));
      option.addEventListener("mousedown", (event) => { event.preventDefault(); choose(option); });
      return option;
    }));
    selected = -1;
    field.removeAttribute("aria-activedescendant");
    list.hidden = !found.length;
    field.setAttribute("aria-expanded", String(Boolean(found.length)));
    if (found.length) announce(`${found.length} suggestion${found.length === 1 ? "" : "s"}`);
  };
  const load = async () => {
    request?.abort();
    request = new AbortController();
    const address = new URL(field.dataset.suggest, location);
    address.searchParams.set("term", findTerm(field).text);
    try {
      const answer = await fetch(address, { signal: request.signal });
      if (answer.ok) show(await answer.json());
    } catch { /* a later request has replaced this one */ }
  };

  field.addEventListener("input", () => {
    clearTimeout(timer);
    if (!findTerm(field).text) return close();
    timer = setTimeout(load, 100);
  });
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && list.hidden) load();
    else if (list.hidden) return;
    else if (event.key === "ArrowDown") select(selected + 1);
    else if (event.key === "ArrowUp") select(selected < 0 ? -1 : selected - 1);
    else if (event.key === "Escape") close();
    else if ((event.key === "Enter" || event.key === "Tab") && selected >= 0) choose(list.children[selected]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

// The term at the cursor: text without spaces outside of quotes.
function findTerm(field) {
  const cursor = field.selectionStart;
  for (const match of field.value.matchAll(/(?:"[^"]*"?|[^\s"])+/g)) {
    const end = match.index + match[0].length;
    if (match.index < cursor && cursor <= end) return { text: match[0].slice(0, cursor - match.index), start: match.index, end };
  }
  return { text: "", start: cursor, end: cursor };
}

// Dragging over a chart selects its buckets.
function dragRanges() {
  document.addEventListener("pointerdown", (event) => {
    const chart = event.target.closest?.(".overview .spark");
    const data = chart?.closest("[data-since]")?.dataset;
    if (!data || event.button !== 0) return;
    event.preventDefault();
    const frame = chart.getBoundingClientRect(), mark = document.createElement("div");
    mark.className = "drag";
    document.body.append(mark);
    const share = (moved) => Math.min(1, Math.max(0, (moved.clientX - frame.left) / frame.width));
    const begin = share(event);
    const move = (moved) => {
      const [left, right] = [begin, share(moved)].sort((a, b) => a - b);
      Object.assign(mark.style, { left: `${scrollX + frame.left + left * frame.width}px`, width: `${(right - left) * frame.width}px`, top: `${scrollY + frame.top}px`, height: `${frame.height}px` });
    };
    const leave = () => {
      mark.remove();
      for (const [name, listener] of [["pointermove", move], ["pointerup", end], ["pointercancel", leave]]) removeEventListener(name, listener);
    };
    const end = (moved) => {
      leave();
      const [left, right] = [begin, share(moved)].sort((a, b) => a - b);
      if ((right - left) * frame.width < 3) return; // a click
      const since = BigInt(data.since), width = BigInt(data.width), length = Number((BigInt(data.until) - since) / width);
      const address = new URL(location);
      for (const name of ["range", "cursor", "panel"]) address.searchParams.delete(name);
      address.searchParams.set("since", since + BigInt(Math.floor(left * length)) * width);
      address.searchParams.set("until", since + BigInt(Math.ceil(right * length)) * width);
      location.assign(address);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", leave);
  });
  for (const note of document.querySelectorAll("[data-drag]")) note.hidden = false;
}

// Live: the list is fetched every few seconds. New rows are counted, and shown on request, so that nothing moves while it
// is read. Without new rows the list is brought up to date, unless something in it is open or focused.
function followList(button, notice) {
  const list = () => document.getElementById("list");
  const rowsOf = (root) => [...root.querySelectorAll("a.row-link")].map((link) => link.dataset.trace);
  let timer, latest;

  const replace = (page) => {
    for (const id of ["list", "times"]) {
      const part = page.getElementById(id);
      if (part) document.getElementById(id)?.replaceWith(document.adoptNode(part));
    }
    latest = null;
    notice.hidden = true;
    charts();
    document.dispatchEvent(new Event("rows"));
  };
  const refresh = async () => {
    if (document.hidden) return;
    const address = new URL(location);
    address.searchParams.delete("panel");
    const answer = await fetch(address);
    if (answer.status === 401) return location.reload(); // signed out: the page says where to sign in
    if (!answer.ok) return;
    const page = await parse(answer);
    convertTimes(page);
    const known = new Set(rowsOf(list())), rows = rowsOf(page);
    const count = rows.filter((id) => !known.has(id)).length;
    if (count) {
      const text = `${count === rows.length && known.size ? `${count} or more` : count} new`;
      if (notice.hidden || notice.textContent !== text) announce(text);
      [notice.textContent, notice.hidden, latest] = [text, false, page];
    } else if (!latest && rows.join() === [...known].join() && !isInUse()) replace(page);
  };
  const isInUse = () => document.querySelector(":popover-open") || (list().contains(document.activeElement) && !["list", "rows"].includes(document.activeElement.id));

  button.hidden = false;
  button.addEventListener("click", () => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isOn));
    clearInterval(timer);
    if (isOn) timer = every(3000, refresh);
    if (isOn) refresh().catch(() => {});
  });
  notice.addEventListener("click", () => {
    if (latest) replace(latest);
    scrollTo({ top: 0 });
    document.querySelector("a.row-link")?.focus({ preventScroll: true });
  });
}

const live = document.getElementById("live");
if (live) followList(live, document.getElementById("fresh"));
for (const field of document.querySelectorAll("[data-suggest]")) suggestTerms(field);
dragRanges();
