// Figures as people read them. Pure: node's tests read this file as the browser does.

const NONE = "–";
const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** Seconds in the unit that shows them best, as [figure, unit]. */
export function durationParts(seconds) {
  if (!isKnown(seconds)) return [NONE, ""];
  if (seconds === 0) return ["0", "s"];
  if (seconds < 0.9995) return [short(seconds * 1e3), "ms"];
  if (seconds < 90) return [short(seconds), "s"];
  return [short(seconds / 60), "min"];
}

export const duration = (seconds) => joined(durationParts(seconds));

/** How long something has lasted: 3 d 4 h, 2 h 5 min, 40 s. */
export function age(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** A count: exact below ten thousand, then 12.3k, 4.56M. */
export function count(value) {
  if (!isKnown(value)) return NONE;
  if (Math.abs(value) < 10_000) return grouped.format(value);
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size * 0.9995) return `${short(value / size)}${letter}`;
  }
  return grouped.format(value);
}

/** Something a second. */
export function rate(value) {
  if (!isKnown(value)) return NONE;
  return value >= 10_000 ? count(value) : short(value);
}

export function percentParts(share) {
  if (!isKnown(share)) return [NONE, ""];
  const percent = share * 100;
  if (percent > 0 && percent < 1) return ["<1", "%"];
  if (percent > 99 && percent < 100) return [">99", "%"];
  return [String(Math.round(percent)), "%"];
}

export const percent = (share) => joined(percentParts(share));

/** The time of day, hours and minutes; seconds where they are wanted. */
export function clock(unixSeconds, withSeconds = false) {
  const date = new Date(unixSeconds * 1000);
  const parts = [date.getHours(), date.getMinutes(), ...(withSeconds ? [date.getSeconds()] : [])];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

/** A figure without idle digits: 40.0 ms, 40 ms. */
export const trimmed = (figure) => figure.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

/** A code of ours in words: queue_full, queue full. */
export const spelt = (code) => String(code).replaceAll("_", " ");

export const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

function short(value) {
  const size = Math.abs(value);
  if (size >= 99.95 || value === 0) return grouped.format(value);
  return size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

const joined = ([figure, unit]) => (unit ? `${figure}\u00a0${unit}` : figure);
