// The edge of a column's head can be dragged to set its width; a double click resets it. The menu View has the same as fields.

const LEAST_TEXT = 130; // pixels that the columns of text keep
const getColumn = (name: string) => document.querySelector<HTMLTableColElement>(`.traces col[data-column="${name}"]`);

export function resizeColumns(form: HTMLFormElement): void {
  for (const field of form.querySelectorAll<HTMLInputElement>("[name^=width_]")) {
    const name = field.name.slice(6), head = document.querySelector<HTMLElement>(`.traces th.c-${name}`);
    if (!head || !getColumn(name)) continue;
    const edge = Object.assign(document.createElement("span"), { className: "resize", title: "Drag to set the width" });
    edge.addEventListener("pointerdown", (event) => drag(event, edge, head, (width) => void save(form, field, width)));
    edge.addEventListener("dblclick", () => void save(form, field, ""));
    head.append(edge);
  }
}

function drag(start: PointerEvent, edge: HTMLElement, head: HTMLElement, done: (width: string) => void): void {
  start.preventDefault();
  const first = head.offsetWidth;
  // what the other columns of text can give
  const texts = [...document.querySelectorAll<HTMLElement>(".traces th:is(.c-input, .c-output)")].filter((other) => other !== head);
  const most = Math.min(800, first + texts.reduce((sum, other) => sum + Math.max(0, other.offsetWidth - LEAST_TEXT), 0));
  const widthAt = (event: PointerEvent) => Math.round(Math.max(60, Math.min(most, first + event.clientX - start.clientX)));
  const stop = new AbortController(), { signal } = stop;
  edge.setPointerCapture(start.pointerId);
  edge.addEventListener("pointermove", (event) => setWidth(head, String(widthAt(event))), { signal });
  edge.addEventListener("pointercancel", () => stop.abort(), { signal });
  edge.addEventListener("pointerup", (event) => {
    stop.abort();
    if (Math.abs(event.clientX - start.clientX) > 2) done(String(widthAt(event)));
  }, { signal });
}

function setWidth(head: HTMLElement, width: string): void {
  const name = [...head.classList].find((each) => each.startsWith("c-"))!.slice(2);
  const column = getColumn(name)!;
  width ? column.setAttribute("width", width) : column.removeAttribute("width");
}

async function save(form: HTMLFormElement, field: HTMLInputElement, width: string): Promise<void> {
  field.value = width;
  setWidth(document.querySelector<HTMLElement>(`.traces th.c-${field.name.slice(6)}`)!, width);
  const token = form.querySelector<HTMLInputElement>("[name=token]")!.value;
  await fetch(form.action, { method: "POST", body: new URLSearchParams({ token, [field.name]: width }), redirect: "manual" });
}

/** Moves columns within the menu, so that it stays open; its form sends them in their order. */
export function moveColumns(form: HTMLFormElement): void {
  form.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLButtonElement>("[name=move]");
    if (!button) return;
    event.preventDefault();
    const item = button.closest("li")!, isUp = button.value.endsWith(".up");
    const other = isUp ? item.previousElementSibling : item.nextElementSibling;
    if (!other?.querySelector("[name=move]")) return;
    isUp ? other.before(item) : other.after(item);
    button.focus();
  });
}
