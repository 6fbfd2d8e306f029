// Asks the service once a second and shows what it says; when it stops answering, says so and keeps
// the last picture.

import { badge, element, show } from "./dom.js";
import { showFigures, showEvents, showJobs, showQueue, showRanks } from "./tables.js";
import { showLanes } from "./lanes.js";
import { offerJobs, showTimeline } from "./timeline.js";
import { duration } from "./units.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 4000;

let last = null; // the last answer and when it came, for rates
let silentSince = null;
const choice = (name) => document.getElementById(`timeline-${name}`);

async function ask() {
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(), PATIENCE_MS);
  try {
    const answer = await fetch("/status.json", { signal: patience.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`it answers ${answer.status}`);
    return await answer.json();
  } finally {
    clearTimeout(timer);
  }
}

function showService(service) {
  const kinds = { running: "good", draining: "warn", starting: "warn", stopped: "bad" };
  show("service",
    badge(service.state, kinds[service.state] ?? "bad"),
    ` version ${service.version}, up ${duration(service.uptime_s)}, pid ${service.pid}`,
    service.reduce_target ? `, sums with ${service.reduce_target}` : "");
  document.title = `Headrace: ${service.state}`;
}

function drawTimeline() {
  if (last !== null) showTimeline(last.status, choice("job").value, Number(choice("count").value));
}

function showAll(status) {
  const now = performance.now();
  const before = last;
  last = { status, at: now };
  const elapsed_s = before ? (now - before.at) / 1000 : 0;
  showService(status.service);
  showFigures(status);
  showQueue(status);
  showJobs(status, before?.status, elapsed_s);
  showLanes(status, before?.status, elapsed_s);
  showRanks(status);
  showEvents(status);
  if (!choice("hold").checked) {
    offerJobs(status, choice("job"));
    drawTimeline();
  }
}

async function once() {
  try {
    const status = await ask();
    silentSince = null;
    document.body.classList.remove("stale");
    show("connection", element("span", { class: "quiet" }, "live, once a second"));
    showAll(status);
  } catch (error) {
    silentSince ??= new Date();
    document.body.classList.add("stale");
    show("connection", badge("no answer", "bad"),
      ` The service has not answered since ${silentSince.toLocaleTimeString()}; below is what it`
      + ` said last. (${error.message})`);
  }
  // After the answer, not beside it: a slow service is not asked twice at a time.
  setTimeout(once, EVERY_MS);
}

for (const name of ["job", "count"]) choice(name).addEventListener("change", drawTimeline);
choice("job").form.addEventListener("submit", (submission) => submission.preventDefault());
once();
