// The tables of the page: figures on top, queue, jobs, ranks, events.

import { badge, element, nothing, show, table } from "./dom.js";
import { bytes, count, duration, percent, rate } from "./units.js";

const ROWS_MAX = 60;

/** Rows that fit, and a sentence about the others. */
function limited(caption, columns, rows, note) {
  const shown = table(caption, columns, rows.slice(0, ROWS_MAX), note);
  if (rows.length <= ROWS_MAX) return [shown];
  return [shown, nothing(`and ${count(rows.length - ROWS_MAX)} more`)];
}

function figure(name, value, alarming) {
  return element("div", { class: alarming ? "alarm" : null },
    element("dt", {}, name), element("dd", {}, value));
}

export function showFigures(status) {
  const { totals, jobs, queue } = status;
  const waiting = queue.filter((stage) => stage.state !== "moving");
  const oldest = waiting.reduce((most, stage) => Math.max(most, stage.age_s), 0);
  const ranks = jobs.reduce((sum, job) => sum + job.ranks_attached, 0);
  const failed = jobs.filter((job) => job.state === "failed").length;
  show("figures",
    figure("jobs", failed ? `${jobs.length} (${failed} failed)` : count(jobs.length), failed > 0),
    figure("ranks here", count(ranks)),
    figure("block stages waiting", count(waiting.length)),
    figure("oldest wait", waiting.length ? duration(oldest) : "none", oldest > 5),
    figure("operations ended", count(totals.operations_ended)),
    figure("with an error", count(totals.operations_failed), totals.operations_failed > 0),
    figure("late reports", count(totals.late_reports), totals.late_reports > 0),
    figure("moved", bytes(totals.bytes_moved)));
}

const STAGE_KINDS = { gathering: "warn", waiting: "plain", moving: "good" };

function what(stage) {
  const more = stage.tensors > 1 ? ` +${stage.tensors - 1}` : "";
  return stage.tensor === "" ? stage.kind : `${stage.tensor}${more}`;
}

export function showQueue(status) {
  const rows = [...status.queue].sort((left, right) => right.age_s - left.age_s);
  if (rows.length === 0) {
    show("queue", nothing("Nothing: no operation is open."));
    return;
  }
  show("queue", ...limited("Block stages, oldest first", [
    { title: "Job", cell: (row) => row.job },
    { title: "Block", kind: "number",
      cell: (row) => (row.iteration ? `${row.iteration}/${row.block}` : String(row.block)) },
    { title: "State", cell: (row) => badge(row.state, STAGE_KINDS[row.state] ?? "plain") },
    { title: "Age", kind: "number", cell: (row) => duration(row.age_s) },
    { title: "Why it waits", cell: (row) => row.why, kind: "why" },
    { title: "Lane", cell: (row) => row.lane ?? "" },
    { title: "Bytes", kind: "number", cell: (row) => bytes(row.bytes) },
    { title: "Of", cell: what, kind: "name" },
  ], rows));
}

function share(job) {
  const limit = job.limit_bytes_per_s ? `, at most ${rate(job.limit_bytes_per_s)}` : "";
  return `weight ${job.weight}, priority ${job.priority}${limit}`;
}

function stateOf(job) {
  if (job.state === "failed") return badge("failed", "bad");
  if (job.paused) return badge("paused", "warn");
  if (job.draining) return badge("draining", "warn");
  return badge(job.state, job.state === "running" ? "good" : "warn");
}

function iteration(job) {
  if (!job.plan) return "";
  if (!(job.plan.measured_s > 0)) return "none measured yet";
  const predicted = job.plan.predicted_s > 0 ? `, predicted ${duration(job.plan.predicted_s)}` : "";
  return `${duration(job.plan.measured_s)}${predicted}`;
}

/** "2, last 4 -> 3 ranks in 0.8 s": how often the job went on after a loss. */
function recovered(job) {
  if (!(job.recoveries > 0)) return "";
  const ranks = job.world_before === job.world_size ? "" : `${job.world_before} -> ${job.world_size} ranks `;
  return `${count(job.recoveries)}, last ${ranks}in ${duration(job.recovery_s)}`;
}

/** "1 to join, 2 spare": who waits to be a rank of the job. */
function applicants(job) {
  return [[job.joiners_waiting, "to join"], [job.spares_waiting, "spare"]]
    .filter(([number]) => number > 0).map(([number, name]) => `${count(number)} ${name}`).join(", ");
}

/** The share of an iteration's communication that its forward pass did not stand still for. */
function hidden(job) {
  if (!job.plan || !(job.plan.moving_s > 0)) return "";
  return percent(Math.min(1, Math.max(0, 1 - job.plan.waited_s / job.plan.moving_s)));
}

/** What gradients' messages to other nodes take of what they would, and what encodings leave out. */
function encoded(job) {
  if (!(job.encoded_bytes > 0)) return judged(job);
  const share = percent(job.encoded_sent_bytes / job.encoded_bytes);
  const by = job.encoded_gpu_bytes > 0 ? `, ${percent(job.encoded_gpu_bytes / job.encoded_bytes)} by GPUs` : "";
  const residual = `residual ${percent(job.residual_millionths / 1e6)}`;
  return [`${share} of ${bytes(job.encoded_bytes)}${by}, ${residual}`, judged(job)].filter(Boolean).join("; ");
}

/** "int8 does not pay here: 90 ms with it, 80 ms without": as the plan predicts an iteration. */
function judged(job) {
  if (!job.plan?.judged_codec) return "";
  const pays = job.plan.codec_pays ? "pays" : job.plan.codec ? "does not pay here" : "would not pay";
  const times = `${duration(job.plan.coded_s)} with it, ${duration(job.plan.plain_s)} without`;
  return `${job.plan.judged_codec} ${pays}: ${times}`;
}

/** Jobs of other nodes that this service sums for, as a parameter server. */
function servedTable(served) {
  return limited("Jobs that this server sums for", [
    { title: "Job", cell: (row) => row.job },
    { title: "Led at", cell: (row) => row.leader },
    { title: "Ranks", kind: "number", cell: (row) => count(row.world_size) },
    { title: "Encoded", kind: "number", cell: (row) => bytes(row.encoded_bytes) },
    { title: "Kept", kind: "number", cell: (row) => bytes(row.kept_bytes) },
    { title: "Residual", kind: "number", cell: (row) => percent(row.residual_millionths / 1e6) },
  ], served);
}

export function showJobs(status, before, elapsed_s) {
  const served = status.served.length > 0 ? servedTable(status.served) : [];
  if (status.jobs.length === 0) {
    show("jobs", ...(served.length > 0 ? served : [nothing("No job is attached.")]));
    return;
  }
  const bytesBefore = new Map((before?.jobs ?? []).map((job) => [job.id, job.bytes]));
  const speed = (job) => {
    if (!bytesBefore.has(job.id) || elapsed_s <= 0) return "";
    return rate(Math.max(0, job.bytes - bytesBefore.get(job.id)) / elapsed_s);
  };
  show("jobs", ...limited("Jobs with ranks on this node", [
    { title: "Job", cell: (job) => job.label },
    { title: "State", cell: stateOf },
    { title: "Ranks", kind: "number", cell: (job) => `${job.ranks_attached} here of ${job.world_size}` },
    { title: "Recovered", cell: recovered },
    { title: "Waiting", cell: applicants },
    { title: "Evicted", kind: "number", cell: (job) => count(job.evictions) },
    { title: "Plan", cell: (job) => (job.plan ? `${job.plan.policy}, ${job.plan.blocks} blocks` : "") },
    { title: "Encoded", cell: encoded },
    { title: "Iteration", cell: iteration },
    { title: "Hidden", kind: "number", cell: hidden },
    { title: "Moves", kind: "number", cell: speed },
    { title: "Share", cell: share },
    { title: "Errors", kind: "number", cell: (job) => count(job.operations_failed) },
  ], status.jobs, (job) => job.says), ...served);
}

export function showRanks(status) {
  const ranks = status.jobs.flatMap((job) => job.ranks.map((rank) => ({ job: job.label, ...rank })));
  ranks.sort((left, right) => right.late_s - left.late_s);
  if (ranks.length === 0) {
    show("ranks", nothing("No rank is attached."));
    return;
  }
  show("ranks", ...limited("Ranks, by how long the node's others waited for them", [
    { title: "Rank", cell: (rank) => `${rank.job} ${rank.rank}` },
    { title: "Pid", kind: "number", cell: (rank) => String(rank.pid) },
    { title: "Others waited", kind: "number", cell: (rank) => duration(rank.late_s) },
    { title: "Came last", kind: "number", cell: (rank) => count(rank.last_posts) },
    { title: "Waited itself", kind: "number", cell: (rank) => duration(rank.waited_s) },
    { title: "Posted", kind: "number", cell: (rank) => count(rank.posted) },
    { title: "Ended", kind: "number", cell: (rank) => count(rank.ended) },
    { title: "Memory", kind: "number", cell: (rank) => bytes(rank.segment_bytes) },
  ], ranks.slice(0, 16)));
}

export function showEvents(status) {
  const rows = [...status.events].reverse();
  if (rows.length === 0) {
    show("events", nothing("None since the start."));
    return;
  }
  show("events", ...limited("Newest first", [
    { title: "Time", cell: (row) => new Date(row.at_unix_s * 1000).toLocaleTimeString() },
    { title: "", cell: (row) => badge(row.code, row.code === "ok" ? "good" : "bad") },
    { title: "Job", cell: (row) => row.job ?? "" },
    { title: "Event", cell: (row) => row.text, kind: "why" },
  ], rows.slice(0, 30)));
}
