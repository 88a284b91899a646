// Numbers as the server formats them (spanwise/collector/formatting.py).

export function duration(ns: number): string {
  if (ns > 0 && ns < 1e5) return `${(ns / 1e3).toFixed(0)} µs`;
  if (ns < 1e7) return `${(ns / 1e6).toFixed(1)} ms`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(0)} ms`;
  if (ns < 60e9) return `${(ns / 1e9).toFixed(2)} s`;
  const minutes = Math.floor(ns / 60e9), hours = Math.floor(minutes / 60);
  const two = (value: number) => String(value).padStart(2, "0");
  return hours ? `${hours} h ${two(minutes % 60)} m` : `${minutes} m ${two(Math.floor(ns / 1e9) % 60)} s`;
}

export function count(value: number): string {
  if (value < 10_000) return value.toLocaleString("en");
  return value < 1e6 ? `${(value / 1e3).toFixed(1)}k` : `${(value / 1e6).toFixed(2)}M`;
}

export function cost(usd: number): string {
  if (usd >= 0.1 || usd === 0) return `$${usd.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  if (usd < 0) return `$${usd}`;
  return `$${usd.toLocaleString("en", { maximumSignificantDigits: 2, maximumFractionDigits: 12, useGrouping: false })}`;
}
