// The filter line suggests conditions, keys and values for the term at the cursor.

import { announce } from "./page";

type Suggestion = { text: string; hint: string };
type Term = { text: string; start: number; end: number };

export function suggestTerms(field: HTMLInputElement): void {
  const list = document.createElement("ul");
  Object.assign(list, { id: "suggestions", className: "suggestions", hidden: true, role: "listbox", ariaLabel: "Suggestions" });
  field.after(list);
  Object.assign(field, { role: "combobox", ariaAutoComplete: "list", ariaExpanded: "false" });
  field.setAttribute("aria-controls", list.id);
  let selected = -1, timer = 0, request = new AbortController();

  function show(found: Suggestion[]): void {
    list.replaceChildren(...found.map(makeOption));
    selected = -1;
    list.hidden = !found.length;
    field.ariaExpanded = String(!list.hidden);
    field.removeAttribute("aria-activedescendant");
    if (found.length) announce(`${found.length} suggestion${found.length === 1 ? "" : "s"}`);
  }

  function close(): void {
    clearTimeout(timer);
    request.abort();
    list.hidden = true;
    field.ariaExpanded = "false";
    field.removeAttribute("aria-activedescendant");
  }

  function makeOption({ text, hint }: Suggestion, at: number): HTMLLIElement {
    const option = Object.assign(document.createElement("li"), { id: `suggestion-${at}`, role: "option" });
    option.append(Object.assign(document.createElement("span"), { textContent: text, dir: "auto" }));
    option.append(Object.assign(document.createElement("span"), { textContent: hint, className: "muted small" }));
    option.addEventListener("mousedown", (event) => {
      event.preventDefault();
      choose(text);
    });
    return option;
  }

  function select(place: number): void {
    const options = [...list.children] as HTMLElement[];
    selected = (place + options.length) % options.length;
    options.forEach((option, at) => (option.ariaSelected = String(at === selected)));
    options[selected]?.scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", options[selected]?.id ?? "");
  }

  function choose(text: string): void {
    const term = findTerm(field), isComplete = !/[.<>=!]$/.test(text);
    field.setRangeText(isComplete ? `${text} ` : text, term.start, term.end, "end");
    field.focus();
    close();
    if (!isComplete) void load();
  }

  async function load(): Promise<void> {
    request.abort();
    request = new AbortController();
    const address = new URL(field.dataset.suggest!, location.href);
    address.searchParams.set("term", findTerm(field).text);
    try {
      const answer = await fetch(address, { signal: request.signal });
      if (answer.ok) show(await answer.json());
    } catch {
      // a later request has replaced this one
    }
  }

  document.addEventListener("keydown", (event) => {
    const isTyping = (event.target as Element).closest("input, select, textarea");
    if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    field.select();
  });
  field.addEventListener("input", () => {
    clearTimeout(timer);
    if (findTerm(field).text) timer = setTimeout(load, 100);
    else close();
  });
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && list.hidden) void load();
    else if (list.hidden) return;
    else if (event.key === "ArrowDown") select(selected + 1);
    else if (event.key === "ArrowUp") select(selected < 0 ? -1 : selected - 1);
    else if (event.key === "Escape") close();
    else if ((event.key === "Enter" || event.key === "Tab") && selected >= 0) choose(list.children[selected]!.firstChild!.textContent!);
    else return;
    event.preventDefault();
  });
}

/** The term at the cursor: text without spaces outside of quotes. */
function findTerm(field: HTMLInputElement): Term {
  const cursor = field.selectionStart ?? 0;
  for (const match of field.value.matchAll(/(?:"[^"]*"?|[^\s"])+/g)) {
    const end = match.index + match[0].length;
    if (match.index < cursor && cursor <= end) return { text: match[0].slice(0, cursor - match.index), start: match.index, end };
  }
  return { text: "", start: cursor, end: cursor };
}
