// Each lane as a row of figures with bars: how busy it is, how fast, and who has it.

import { element, nothing, shape, show } from "./dom.js";
import { bytes, count, duration, percent, rate } from "./units.js";

const KINDS = 6; // of colours for jobs, in style.css

/** A bar of parts {share, kind, title}; what they come to is said in words beside it. */
function bar(label, parts) {
  const picture = shape("svg", {
    class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img",
    "aria-label": label,
  }, shape("rect", { class: "ground", width: 100, height: 10 }));
  let x = 0;
  for (const part of parts) {
    const width = Math.min(100 - x, 100 * part.share);
    picture.append(shape("rect", { class: part.kind, x: x.toFixed(2), width: width.toFixed(2), height: 10 },
      shape("title", {}, part.title)));
    x += width;
  }
  return picture;
}

function line(name, picture, words) {
  return element("div", { class: "measure" },
    element("span", { class: "label" }, name), picture, element("span", { class: "words" }, words));
}

/** What each job moved over the lane since the last look, as shares of all of it. */
function sharesOf(lane, before) {
  const old = new Map((before?.jobs ?? []).map((entry) => [entry.job, entry.bytes]));
  const moved = lane.jobs.map((entry) => ({
    job: entry.job,
    bytes: Math.max(0, entry.bytes - (old.get(entry.job) ?? 0)),
  }));
  const all = moved.reduce((sum, entry) => sum + entry.bytes, 0);
  return moved.map((entry) => ({ ...entry, share: all > 0 ? entry.bytes / all : 0 }));
}

function cost(lane) {
  if (!(lane.bandwidth_bytes_per_s > 0)) return "cost not measured yet";
  return `a stage costs ${duration(lane.startup_s)} and goes at ${rate(lane.bandwidth_bytes_per_s)}`;
}

/** The share of time in which it was busy; null where the lane cannot tell moving from waiting. */
function busyShare(lane, before, elapsed_s) {
  if (lane.busy_s === null) return null;
  if (!before || !(elapsed_s > 0)) return 0;
  return Math.min(1, Math.max(0, (lane.busy_s - before.busy_s) / elapsed_s));
}

function laneCard(lane, before, elapsed_s, kindOf) {
  const busy = busyShare(lane, before, elapsed_s);
  const busyWords = busy === null ? "unknown: NCCL does not say when bytes move" : percent(busy);
  const top = Math.max(lane.bandwidth_bytes_per_s, lane.rate_bytes_per_s, 1);
  const taken = lane.credit_bytes > 0 ? Math.min(1, lane.in_flight_bytes / lane.credit_bytes) : 0;
  const shares = sharesOf(lane, before).filter((entry) => entry.share > 0);
  const jobs = shares.map((entry) => `${entry.job} ${percent(entry.share)}`).join(", ");
  const dropped = lane.messages_dropped > 0 ? ` · ${count(lane.messages_dropped)} messages dropped` : "";
  return element("article", { class: "lane" },
    element("h3", {}, lane.name, element("span", { class: "quiet" }, ` ${lane.transport}`)),
    line("busy", bar("share of time", [{ share: busy ?? 0, kind: "busy", title: busyWords }]), busyWords),
    line("rate", bar("rate of its bandwidth",
      [{ share: lane.rate_bytes_per_s / top, kind: "rate", title: rate(lane.rate_bytes_per_s) }]),
    rate(lane.rate_bytes_per_s)),
    line("credit", bar("bytes in flight of the credit of a job",
      [{ share: taken, kind: "taken", title: bytes(lane.in_flight_bytes) }]),
    `${bytes(lane.in_flight_bytes)} in flight`),
    line("jobs", bar("share of the bytes by job", shares.map((entry) => ({
      share: entry.share, kind: kindOf(entry.job), title: `${entry.job} ${percent(entry.share)}`,
    }))), jobs || "none moves"),
    element("p", { class: "quiet" },
      `${count(lane.queued_stages)} stages wait · ${count(lane.stages_ended)} ended, `
      + `${bytes(lane.bytes)} · ${cost(lane)}${dropped}`));
}

export function showLanes(status, before, elapsed_s) {
  if (status.lanes.length === 0) {
    show("lanes", nothing("No lane is open."));
    return;
  }
  const names = status.jobs.map((job) => job.label);
  const kindOf = (job) => `job${Math.max(0, names.indexOf(job)) % KINDS}`;
  const old = new Map((before?.lanes ?? []).map((lane) => [lane.name, lane]));
  show("lanes", ...status.lanes.map((lane) => laneCard(lane, old.get(lane.name), elapsed_s, kindOf)));
}
