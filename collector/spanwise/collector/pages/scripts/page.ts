// Helpers that the scripts of all pages share.

import type { Htmx } from "htmx.org";

declare global {
  interface Window { htmx: Htmx } // `spanwise.ts` contains it, which every page loads first
}

export const announce = (text: string): void => {
  const status = document.getElementById("announcement");
  if (status) status.textContent = text;
};

/** Calls `work` at intervals; a failure of one call does not end the series. */
export const every = (milliseconds: number, work: () => Promise<void>): number =>
  setInterval(() => void work().catch(() => {}), milliseconds);

export async function parse(answer: Response): Promise<Document> {
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  convertTimes(page);
  return page;
}

// The server prints times in the zone that this cookie names, in UTC without it. The first page is converted here.
// The cookie also tells that scripts run, so it is set for readers of UTC, too.
const ownZone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC", isLocal = document.documentElement.dataset.zone === "local";
const named = document.cookie.split("; ").find((pair) => pair.startsWith("spanwise-zone="))?.slice(14);
const isNew = decodeURIComponent(named ?? "") !== ownZone, zone = isLocal ? ownZone : "UTC", isForeign = isLocal && isNew;
if (isNew) document.cookie = `spanwise-zone=${encodeURIComponent(ownZone)}; path=/; max-age=31622400; samesite=lax`;

const format = (moment: Date, options: Intl.DateTimeFormatOptions): string =>
  new Intl.DateTimeFormat("en-GB", { timeZone: zone, ...options }).format(moment);

/** Shows the times of a page, or of a part of it, in the reader's zone. */
export function convertTimes(root: ParentNode): void {
  if (!isForeign) return;
  const day = (moment: Date) => format(moment, { dateStyle: "short" });
  const year = (moment: Date) => format(moment, { year: "numeric" });
  const now = new Date();
  for (const time of root.querySelectorAll<HTMLTimeElement>("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const clock = format(moment, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
    const date = format(moment, { day: "numeric", month: "short" });
    const past = year(moment) === year(now) ? `${date} ${clock.slice(0, 5)}` : `${date} ${year(moment)}`;
    time.textContent = day(moment) === day(now) ? clock : past;
    time.title = format(moment, { dateStyle: "medium", timeStyle: "long" });
  }
  const place = document.getElementById("zone");
  if (place) place.textContent = `Times in ${zone}`;
}
