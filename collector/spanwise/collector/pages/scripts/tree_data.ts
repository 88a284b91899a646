// The runs of a trace, as `encode_tree` of the server sends them, and which of them a filter shows.

const ERROR = 2, CANCELLED = 3; // numbers of `status`
export const MAX_FOLDS = 50; // folds that an address has room for, as on the server

/** One list per field, with an item per run in depth-first order. Times are nanoseconds from the start of the trace. */
interface EncodedTree {
  ids: string[];
  names: string[];
  kinds: string[];
  name: number[];
  kind: number[];
  depth: number[];
  start: number[];
  took: number[];
  status: number[];
  tokens: number[];
  cost: (number | null)[];
  below: number[];
  open: number[];
  orphans: number[];
  feedback: [number, number, number][];
  origins: Record<string, string>;
  total: number;
  length: number;
}

/** What the reader has selected. It is in the address of the page, so that a link shows the same. */
export interface TreeFilter {
  find: string;
  errors: boolean;
  kinds: ReadonlySet<string>;
  folds: ReadonlySet<string>;
}

/** A shown run: its place among all, and whether it is shown only because a run below it passes the filter. */
export interface Row {
  place: number;
  folded: boolean;
  context: boolean;
  position: number; // among the shown runs with the same parent, from 1
  siblings: number; // number of these
}

export class TreeData {
  readonly size: number;
  readonly maxDepth: number;
  readonly errors: readonly number[];
  readonly kindCounts: readonly [string, number][];
  private readonly parents: Int32Array;
  private readonly places: ReadonlyMap<string, number>;
  private readonly open: ReadonlySet<number>;
  private readonly orphans: ReadonlySet<number>;
  private readonly feedback: ReadonlyMap<number, [number, number]>;

  constructor(private readonly tree: EncodedTree) {
    this.size = tree.ids.length;
    this.places = new Map(tree.ids.map((id, place) => [id, place]));
    this.open = new Set(tree.open);
    this.orphans = new Set(tree.orphans);
    this.feedback = new Map(tree.feedback.map(([place, ...counts]) => [place, counts]));
    this.errors = [...tree.status.keys()].filter((place) => tree.status[place] === ERROR);
    const counts = new Map<string, number>();
    for (const kind of tree.kind) counts.set(tree.kinds[kind]!, (counts.get(tree.kinds[kind]!) ?? 0) + 1);
    this.kindCounts = [...counts].sort((a, b) => b[1] - a[1]);
    this.maxDepth = tree.depth.reduce((deepest, depth) => Math.max(deepest, depth), 0);
    this.parents = new Int32Array(this.size);
    const above: number[] = []; // the last run of each depth
    for (let place = 0; place < this.size; place++) {
      const depth = tree.depth[place]!;
      this.parents[place] = depth ? (above[depth - 1] ?? -1) : -1;
      above[depth] = place;
    }
  }

  get total() { return this.tree.total; }
  get length() { return Math.max(1, this.tree.length); }
  id(place: number) { return this.tree.ids[place]!; }
  name(place: number) { return this.tree.names[this.tree.name[place]!]!; }
  kind(place: number) { return this.tree.kinds[this.tree.kind[place]!]!; }
  depth(place: number) { return this.tree.depth[place]!; }
  start(place: number) { return this.tree.start[place]!; }
  took(place: number) { return this.tree.took[place]!; }
  tokens(place: number) { return this.tree.tokens[place]!; }
  cost(place: number) { return this.tree.cost[place] ?? null; }
  below(place: number) { return this.tree.below[place]!; }
  parent(place: number) { return this.parents[place]!; }
  place(id: string | null) { return id === null ? -1 : (this.places.get(id) ?? -1); }
  isOpen(place: number) { return this.open.has(place); }
  isOrphan(place: number) { return this.orphans.has(place); }
  isFailed(place: number) { return this.tree.status[place] === ERROR; }
  isCancelled(place: number) { return this.tree.status[place] === CANCELLED; }
  feedbackOn(place: number) { return this.feedback.get(place) ?? null; }

  /** The id of the run where the error of a failed run began; "" if it is that run. */
  originOf(id: string) { return this.tree.origins[id] ?? ""; }

  /** The runs above a run, from its parent to its root. */
  ancestors(place: number): number[] {
    const above: number[] = [];
    for (let at = this.parent(place); at >= 0; at = this.parent(at)) above.push(at);
    return above;
  }

  /** The rows that a filter shows. A search looks into folded runs, too. */
  select(filter: TreeFilter): Row[] {
    const find = filter.find.trim().toLowerCase();
    const wanted = this.tree.names.map((name) => name.toLowerCase().includes(find));
    const kinds = this.tree.kinds.map((kind) => !filter.kinds.size || filter.kinds.has(kind));
    const passes = (place: number) =>
      (!filter.errors || this.isFailed(place)) && kinds[this.tree.kind[place]!]! && (!find || wanted[this.tree.name[place]!]!);
    const state = new Uint8Array(this.size); // 1: a run below passes, 2: the run passes
    for (let place = this.size - 1; place >= 0; place--) {
      if (passes(place)) state[place] = 2;
      const parent = this.parents[place]!;
      if (state[place] && parent >= 0 && !state[parent]) state[parent] = 1;
    }
    const rows: Row[] = [], siblings = new Map<number, Row[]>();
    for (let place = 0; place < this.size; ) {
      if (!state[place]) {
        place += 1;
        continue;
      }
      const folded = !find && this.below(place) > 0 && filter.folds.has(this.id(place));
      const row = { place, folded, context: state[place] === 1, position: 1, siblings: 1 };
      const parent = this.parents[place]!, others = siblings.get(parent);
      if (others) row.position = others.push(row);
      else siblings.set(parent, [row]);
      rows.push(row);
      place += folded ? this.below(place) + 1 : 1;
    }
    for (const group of siblings.values()) for (const row of group) row.siblings = group.length;
    return rows;
  }
}
