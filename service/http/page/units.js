// Numbers as people read them.

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const RATE_UNITS = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];

function scaled(value, step, units) {
  let index = 0;
  while (Math.abs(value) >= step && index + 1 < units.length) {
    value /= step;
    index += 1;
  }
  const digits = index === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${units[index]}`;
}

export const bytes = (value) => scaled(value, 1024, BYTE_UNITS);
export const rate = (value) => scaled(value, 1000, RATE_UNITS);
export const percent = (share) => `${(100 * share).toFixed(0)} %`;
export const count = (value) => value.toLocaleString("en");

/** Seconds: "1.2 ms", "3.4 s", "2 h 5 min". */
export function duration(seconds) {
  if (seconds < 0) return "0 s";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
