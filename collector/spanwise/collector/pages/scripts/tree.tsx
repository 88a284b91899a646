// The tree of a trace's runs: search, filter, folds, time axis, keys. It shows as many rows as fit, of any number.

import { batch, computed, effect, signal } from "@preact/signals";
import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import { render } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";

import { announce } from "./page";
import { cost, count, duration } from "./format";
import { MAX_FOLDS, type Row, TreeData, type TreeFilter } from "./tree_data";

const ROW_HEIGHT = 36; // as in the style sheet
const KNOWN_KINDS = new Set(["chain", "llm", "retriever", "tool", "agent", "embedding", "reranker", "guardrail", "evaluator"]);
const SHOWN_KINDS = 12;

/** Part of the time of the trace that the bars show; both ends are between 0 and 1. */
interface Zoom { from: number; to: number }
const WHOLE: Zoom = { from: 0, to: 1 };

const data = signal<TreeData | null>(null);
const selected = signal(-1); // place of the run whose detail is shown
const active = signal(-1); // place of the row that the arrow keys move from
const zoom = signal<Zoom>(WHOLE);
const filter = signal<TreeFilter>({ find: "", errors: false, kinds: new Set(), folds: new Set() });
const rows = computed(() => data.value?.select(filter.value) ?? []);
const indexes = computed(() => new Map(rows.value.map((row, index) => [row.place, index]))); // place → index of its row
let openRun: (address: string) => void = () => {};

const change = (changes: Partial<TreeFilter>) => { filter.value = { ...filter.value, ...changes }; };

function toggled<T>(values: ReadonlySet<T>, value: T): Set<T> {
  const changed = new Set(values);
  if (!changed.delete(value)) changed.add(value);
  return changed;
}

/** Reads the filter and the folds from the address of the page. */
export function readAddress(): void {
  const query = new URL(location.href).searchParams;
  filter.value = {
    find: query.get("find") ?? "",
    errors: query.get("only") === "errors",
    kinds: new Set(query.getAll("kind")),
    folds: new Set(query.getAll("fold")),
  };
}

/** The address of a run, with the present filter and folds, and what else the address of the page has. */
function addressOf(place: number): string {
  const { find, errors, kinds, folds } = filter.value, query = new URLSearchParams(location.search);
  for (const name of ["run", "only", "kind", "fold", "find"]) query.delete(name);
  if (place >= 0) query.set("run", data.value!.id(place));
  if (errors) query.set("only", "errors");
  for (const kind of kinds) query.append("kind", kind);
  for (const fold of [...folds].slice(0, MAX_FOLDS)) query.append("fold", fold);
  if (find) query.set("find", find);
  return `?${query}`;
}

/** Opens what is above a run, and removes the filter if it hides the run. */
function uncover(place: number): void {
  const tree = data.value!, folds = new Set(filter.value.folds);
  for (const above of tree.ancestors(place)) folds.delete(tree.id(above));
  if (folds.size !== filter.value.folds.size) change({ folds });
  if (!indexes.value.has(place)) change({ find: "", errors: false, kinds: new Set() });
}

/** Whether the tree shows a run, and the run has ended. */
export const hasRun = (id: string): boolean => {
  const place = data.value?.place(id) ?? -1;
  return place >= 0 && !data.value!.isOpen(place);
};

/** Marks a run of the tree as the selected one. */
export function selectRun(id: string): void {
  const place = data.value!.place(id);
  batch(() => {
    uncover(place);
    selected.value = active.value = place;
  });
}

export const originOf = (id: string): string => data.value!.originOf(id);
export const nameOf = (id: string): string => data.value!.name(data.value!.place(id));

/** Selects the next or previous failed run, in the order of the tree. */
export function stepError(step: number): void {
  if (!data.value) return document.querySelector<HTMLElement>(`.tree [data-error=${step > 0 ? "next" : "previous"}]`)?.click();
  const { errors } = data.value, at = selected.value;
  const found = step > 0 ? errors.find((place) => place > at) : errors.findLast((place) => place < at);
  if (found === undefined) return announce(step > 0 ? "No further error" : "No earlier error");
  open(found);
}

function open(place: number): void {
  if (!data.value!.isOpen(place)) openRun(addressOf(place));
}

function setZoom(from: number, to: number): void {
  const width = Math.min(1, Math.max(1e-6, to - from)), start = Math.min(Math.max(0, from), 1 - width);
  zoom.value = width > 0.999 ? WHOLE : { from: start, to: start + width };
}

/** Shows a part of the time that is `factor` times as long, around the selected run. */
function scaleZoom(factor: number): void {
  const { from, to } = zoom.value, tree = data.value!;
  const center = selected.value < 0 ? (from + to) / 2 : (tree.start(selected.value) + tree.took(selected.value) / 2) / tree.length;
  const width = (to - from) * factor;
  setZoom(Math.min(Math.max(from, center - width / 2), Math.max(from, to - width)), Math.min(1, center + width / 2));
}

function zoomToRun(place: number): void {
  const tree = data.value!, start = tree.start(place) / tree.length, length = tree.took(place) / tree.length;
  setZoom(start - length * 0.05, start + length * 1.05);
}

function Toolbar() {
  const tree = data.value!, { find, errors, kinds, folds } = filter.value;
  const parents = rows.value.filter((row) => row.place && tree.below(row.place)).map((row) => tree.id(row.place));
  return (
    <div class="tree-tools">
      <input type="search" class="tree-find" aria-label="Search the names of runs" placeholder="Search runs" value={find}
        onInput={(event) => change({ find: event.currentTarget.value })} />
      {tree.errors.length > 0 && (
        <button type="button" class="bad" aria-pressed={errors} onClick={() => change({ errors: !errors })}>
          Errors only <span>{count(tree.errors.length)}</span>
        </button>
      )}
      {tree.kindCounts.length > 1 && tree.kindCounts.slice(0, SHOWN_KINDS).map(([kind, n]) => (
        <button key={kind} type="button" aria-pressed={kinds.has(kind)} onClick={() => change({ kinds: toggled(kinds, kind) })}>
          {kind.slice(0, 30)} <span>{count(n)}</span>
        </button>
      ))}
      <span class="steps">
        {tree.errors.length > 0 && (
          <>
            <button type="button" title="Key: p" aria-label="Previous error" onClick={() => stepError(-1)}>↑ Error</button>
            <button type="button" title="Key: n" aria-label="Next error" onClick={() => stepError(1)}>↓ Error</button>
          </>
        )}
        {folds.size > 0
          ? <button type="button" onClick={() => change({ folds: new Set() })}>Open all</button>
          : parents.length > 0 && <button type="button" onClick={() => change({ folds: new Set(parents) })}>Fold all</button>}
      </span>
    </div>
  );
}

/** All runs over the time of the trace. Dragging selects the part of the time that the bars below show. */
function Minimap() {
  const canvas = useRef<HTMLCanvasElement>(null), tree = data.value!, { from, to } = zoom.value;
  const [drag, setDrag] = useState<Zoom | null>(null);
  useEffect(() => {
    const draw = () => canvas.current && drawRuns(canvas.current, tree);
    const scheme = matchMedia("(prefers-color-scheme: dark)"), observer = new ResizeObserver(draw);
    observer.observe(canvas.current!);
    scheme.addEventListener("change", draw);
    return () => {
      observer.disconnect();
      scheme.removeEventListener("change", draw);
    };
  }, [tree]);
  const fraction = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  const finish = () => {
    if (drag && Math.abs(drag.to - drag.from) > 0.005) setZoom(Math.min(drag.from, drag.to), Math.max(drag.from, drag.to));
    setDrag(null);
  };
  const shown = drag ? { from: Math.min(drag.from, drag.to), to: Math.max(drag.from, drag.to) } : zoom.value;
  return (
    <div class="minimap">
      <div class="minimap-runs"
        onPointerDown={(event) => { event.currentTarget.setPointerCapture(event.pointerId); setDrag({ from: fraction(event), to: fraction(event) }); }}
        onPointerMove={(event) => drag && setDrag({ from: drag.from, to: fraction(event) })}
        onPointerUp={finish} onPointerCancel={() => setDrag(null)} onDblClick={() => setZoom(0, 1)}>
        <canvas ref={canvas} aria-hidden="true" />
        {(drag || zoom.value !== WHOLE) && <span class="minimap-part" style={{ left: `${shown.from * 100}%`, width: `${(shown.to - shown.from) * 100}%` }} />}
      </div>
      <p class="minimap-axis">
        <span>{duration(from * tree.length)}</span>
        <span class="minimap-tools">
          <button type="button" aria-label="Zoom in" title="Key: +" onClick={() => scaleZoom(0.5)}>+</button>
          <button type="button" aria-label="Zoom out" title="Key: −" disabled={zoom.value === WHOLE} onClick={() => scaleZoom(2)}>−</button>
          {zoom.value !== WHOLE && <button type="button" title="Key: 0" onClick={() => setZoom(0, 1)}>Whole time</button>}
        </span>
        <span>{duration(to * tree.length)}</span>
      </p>
    </div>
  );
}

function drawRuns(canvas: HTMLCanvasElement, tree: TreeData): void {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth * ratio, height = canvas.clientHeight * ratio;
  const context = canvas.getContext("2d");
  if (!context || !width) return;
  canvas.width = width;
  canvas.height = height;
  const style = getComputedStyle(canvas), deepest = tree.maxDepth + 1, line = Math.max(ratio, height / deepest);
  for (const failed of [false, true]) { // errors are drawn last, so that they stay in sight
    context.fillStyle = failed ? style.outlineColor : style.color;
    for (let place = 0; place < tree.size; place++) {
      if (tree.isFailed(place) !== failed) continue;
      const x = (tree.start(place) / tree.length) * width, y = (tree.depth(place) / deepest) * height;
      context.fillRect(x, y, Math.max(failed ? 2 * ratio : ratio, (tree.took(place) / tree.length) * width), Math.max(1, line - ratio));
    }
  }
}

function RunRow({ row, top }: { row: Row; top: number }) {
  const tree = data.value!, { place, folded } = row, below = tree.below(place), depth = Math.min(tree.depth(place), 16);
  const { from, to } = zoom.value, scale = 100 / (to - from), feedback = tree.feedbackOn(place);
  const left = (tree.start(place) / tree.length - from) * scale, right = left + (tree.took(place) / tree.length) * scale;
  const x = Math.min(Math.max(left, 0), 99.2), width = Math.max(0.8, Math.min(right, 100) - x);
  const tokens = tree.tokens(place), spent = tree.cost(place), kind = tree.kind(place);
  const kindClass = `kind-${KNOWN_KINDS.has(kind) ? kind : "other"}`, failed = tree.isFailed(place), isOpen = tree.isOpen(place);
  const isSelected = selected.value === place;
  const onClick = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    open(place);
  };
  const onFold = (event: MouseEvent) => {
    event.preventDefault();
    event.stopPropagation();
    active.value = place;
    change({ folds: toggled(filter.value.folds, tree.id(place)) });
  };
  return (
    <a class={`run-row${isSelected ? " current" : ""}${row.context ? " context" : ""}${isOpen ? " open-run" : ""}${active.value === place ? " active" : ""}`}
      id={`run-${place}`} role="treeitem" tabIndex={-1} href={isOpen ? undefined : addressOf(place)} data-run={tree.id(place)}
      aria-level={tree.depth(place) + 1} aria-posinset={row.position} aria-setsize={row.siblings}
      aria-expanded={below ? !folded : undefined} aria-selected={isSelected} style={{ transform: `translateY(${top}px)` }} onClick={onClick}>
      {below > 0 && <span class={`twist t${depth}`} aria-hidden="true" title={`${count(below)} below`} onClick={onFold}>{folded ? "▸" : "▾"}</span>}
      <span class={`what d${depth}`}>
        <span class={`kind ${kindClass}`}>{kind}</span>
        <span class="name" dir="auto">{tree.name(place)}</span>
        {isOpen && <span class="flag open">running</span>}
        {failed && <span class="flag bad">error</span>}
        {tree.isCancelled(place) && <span class="flag">cancelled</span>}
        {tree.isOrphan(place) && <span class="flag" title="Its parent span has not arrived">no parent</span>}
        {feedback && <span class={`flag${feedback[1] ? " bad" : ""}`} title={`${feedback[0]} feedback`}>●{feedback[0] > 1 && feedback[0]}</span>}
        {folded && <span class="flag">{count(below)} folded</span>}
      </span>
      <svg class={`bar ${kindClass}${failed ? " bad" : ""}`} viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
        {right >= 0 && left <= 100 && <rect x={x} y="1" width={width} height="8" />}
      </svg>
      <span class="took">
        {duration(tree.took(place))}
        {(tokens > 0 || spent !== null) && (
          <span class="spent" title={below ? "with the runs below it" : undefined}>
            {tokens > 0 && `${count(tokens)} tok`}{tokens > 0 && spent !== null && " · "}{spent !== null && cost(spent)}
          </span>
        )}
      </span>
    </a>
  );
}

/** The keys of a tree (WAI-ARIA Authoring Practices), and those of the time axis. Returns whether the key is one. */
function handleKey(key: string, pageRows: number): boolean {
  const tree = data.value!, shown = rows.value, at = indexes.value.get(active.value) ?? 0, row = shown[at];
  if (!row) return false;
  const move = (index: number) => { active.value = shown[Math.min(Math.max(0, index), shown.length - 1)]!.place; };
  const fold = () => change({ folds: toggled(filter.value.folds, tree.id(row.place)) });
  const isParent = tree.below(row.place) > 0, parent = tree.parent(row.place);
  const keys: Record<string, () => void> = {
    ArrowDown: () => move(at + 1),
    ArrowUp: () => move(at - 1),
    PageDown: () => move(at + pageRows),
    PageUp: () => move(at - pageRows),
    Home: () => move(0),
    End: () => move(shown.length - 1),
    ArrowRight: () => { if (row.folded) fold(); else if (isParent) move(at + 1); },
    ArrowLeft: () => { if (isParent && !row.folded) fold(); else if (parent >= 0) active.value = parent; },
    "*": () => change({ folds: new Set([...filter.value.folds].filter((id) => tree.parent(tree.place(id)) !== parent)) }),
    Enter: () => open(row.place),
    " ": () => open(row.place),
    "+": () => scaleZoom(0.5),
    "-": () => scaleZoom(2),
    "0": () => setZoom(0, 1),
    z: () => zoomToRun(row.place),
  };
  keys[key]?.();
  return key in keys;
}

function Rows() {
  const box = useRef<HTMLDivElement>(null), [, update] = useReducer((n: number) => n + 1, 0), shown = rows.value;
  const [virtualizer] = useState(() => new Virtualizer<HTMLDivElement, HTMLElement>({
    count: shown.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 10,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    onChange: () => update(0),
  }));
  virtualizer.setOptions({ ...virtualizer.options, count: shown.length });
  useLayoutEffect(() => virtualizer._didMount(), []);
  useLayoutEffect(() => virtualizer._willUpdate());
  const activeIndex = indexes.value.get(active.value) ?? -1;
  useLayoutEffect(() => {
    if (activeIndex >= 0) virtualizer.scrollToIndex(activeIndex, { align: "auto" });
  }, [activeIndex]);
  const items = virtualizer.getVirtualItems(), isActiveDrawn = items.some((item) => item.index === activeIndex);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    const pageRows = Math.max(1, Math.floor((box.current?.clientHeight ?? 0) / ROW_HEIGHT) - 1);
    if (handleKey(event.key, pageRows)) event.preventDefault();
  };
  if (!shown.length) return <p class="tree-nothing muted" role="status">No run passes the filter. <button type="button" class="plain-button" onClick={() => change({ find: "", errors: false, kinds: new Set() })}>Show all</button></p>;
  return (
    <div ref={box} class="tree-rows" role="tree" tabIndex={0} aria-label="Runs" aria-activedescendant={isActiveDrawn ? `run-${active.value}` : undefined}
      style={{ height: `${shown.length * ROW_HEIGHT}px` }} onKeyDown={onKeyDown}>
      <div class="tree-height" role="presentation" style={{ height: `${shown.length * ROW_HEIGHT}px` }}>
        {items.map((item) => {
          const row = shown[item.index];
          return row && <RunRow key={row.place} row={row} top={item.start} />;
        })}
      </div>
    </div>
  );
}

function Tree() {
  const tree = data.value;
  if (!tree) return null;
  return (
    <>
      <Toolbar />
      <Minimap />
      <Rows />
      {tree.size < tree.total && <p class="more muted">These are {tree.size.toLocaleString("en")} of {tree.total.toLocaleString("en")} runs.</p>}
    </>
  );
}

/** Fetches the runs, or fetches them anew. Returns whether they could be fetched. */
export async function loadTree(source: string, root: string, ticket = ""): Promise<boolean> {
  const query = new URLSearchParams({ ticket }), run = new URL(location.href).searchParams.get("run");
  if (run) query.set("run", run);
  const answer = await fetch(`${source}?${query}`);
  if (!answer.ok) return false;
  const at = data.value && active.value >= 0 ? data.value.id(active.value) : null, tree = new TreeData(await answer.json());
  batch(() => {
    data.value = tree;
    selected.value = tree.place(run ?? root);
    active.value = at ? tree.place(at) : selected.value;
  });
  return true;
}

/** Shows the tree in place of the rows that the server rendered. `follow` opens the run of an address. */
export async function mountTree(
  section: HTMLElement, source: string, ticket: string, root: () => string, follow: (address: string) => void,
): Promise<void> {
  openRun = follow;
  readAddress();
  if (!(await loadTree(source, root(), ticket))) return;
  if (selected.value >= 0) uncover(selected.value);
  section.replaceChildren();
  section.classList.add("tree-island");
  render(<Tree />, section);
  effect(() => { // the address follows the filter
    const run = new URL(location.href).searchParams.get("run"), address = addressOf(data.value?.place(run) ?? -1);
    if (address !== (location.search || "?")) history.replaceState(history.state, "", address + location.hash);
  });
}
