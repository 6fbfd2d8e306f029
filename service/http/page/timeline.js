// The last iterations of one job as a picture: what each rank computed, and what each lane moved.

import { element, nothing, shape, show, table } from "./dom.js";
import { bytes, duration } from "./units.js";

const ROW = 22; // heights, in CSS pixels
const BAR = 14;
const LABEL = 84; // width of the rows' names
const WIDTH_MIN = 480;
const TRACKS_MAX = 4; // stages of one lane beside each other
const BLOCKS_WITHOUT_PLAN = 24;

/** Keeps the chosen job while it is there. */
export function offerJobs(status, select) {
  const jobs = status.timelines.filter((each) => each.blocks.length + each.passes.length > 0)
    .map((each) => each.job);
  if (jobs.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...jobs.map((job) => element("option", { value: job }, job)));
  if (jobs.includes(chosen)) select.value = chosen;
}

/** What lies in the last `count` iterations: of passes and blocks, and from when to when. */
function lastOf(timeline, count) {
  const numbers = timeline.passes.map((pass) => pass.iteration)
    .concat(timeline.blocks.filter((block) => block.iteration).map((block) => block.iteration));
  const from = Math.max(...numbers) - count + 1;
  const planned = numbers.length > 0;
  const blocks = planned
    ? timeline.blocks.filter((block) => block.iteration >= from)
    : timeline.blocks.slice(-BLOCKS_WITHOUT_PLAN);
  const passes = timeline.passes.filter((pass) => pass.iteration >= from);
  const begins = passes.map((pass) => pass.begin - pass.forward_s - pass.waited_s)
    .concat(blocks.map((block) => block.posted));
  const ends = passes.map((pass) => pass.begin + pass.backward_s)
    .concat(blocks.map((block) => block.end));
  return { passes, blocks, from: Math.min(...begins), to: Math.max(...ends), planned };
}

/** Bars of a rank: the forward pass with its waits lies before the backward pass of its row. */
function barsOfRank(passes) {
  return passes.flatMap((pass) => {
    const start = pass.begin - pass.forward_s - pass.waited_s;
    return [
      { kind: "waited", from: start, to: start + pass.waited_s,
        says: `waited ${duration(pass.waited_s)} in the forward pass before iteration ${pass.iteration}` },
      { kind: "forward", from: start + pass.waited_s, to: pass.begin,
        says: `forward ${duration(pass.forward_s)} before iteration ${pass.iteration}` },
      { kind: "backward", from: pass.begin, to: pass.begin + pass.backward_s,
        says: `backward ${duration(pass.backward_s)} of iteration ${pass.iteration}` },
    ];
  }).filter((bar) => bar.to > bar.from);
}

const STAGES = ["in the node", "between nodes", "to the node's ranks"];

function nameOf(block) {
  const part = block.part ? `.${block.part}` : "";
  return block.iteration ? `${block.iteration}/${block.block}${part}` : `${block.block}${part}`;
}

function barsOfLane(blocks, lane) {
  return blocks.flatMap((block) => block.stages
    .filter((stage) => stage.lane === lane && stage.begin !== null)
    .map((stage) => {
      const end = stage.end ?? block.end;
      const waited = stage.queued === null ? 0 : stage.begin - stage.queued;
      const failed = block.code === "ok" ? "" : `, failed: ${block.code}`;
      return {
        kind: failed ? "failed" : `moved stage${stage.stage}`, label: String(block.block),
        queued: stage.queued, from: stage.begin, to: end,
        says: `block ${nameOf(block)} ${block.tensor}, ${bytes(block.bytes)}, ${STAGES[stage.stage] ?? ""}: `
          + `waited ${duration(waited)}, moved ${duration(end - stage.begin)}${failed}`,
      };
    }));
}

/** Spreads bars that overlap over a few tracks; the last one takes what is left. */
function inTracks(bars) {
  const ends = [];
  for (const bar of [...bars].sort((left, right) => left.from - right.from)) {
    let track = ends.findIndex((end) => end <= bar.from);
    if (track === -1) track = Math.min(ends.length, TRACKS_MAX - 1);
    ends[track] = Math.max(ends[track] ?? 0, bar.to);
    bar.track = track;
  }
  return Math.max(1, ends.length);
}

function rowsOf(last) {
  const ranks = [...new Set(last.passes.map((pass) => pass.rank))].sort((left, right) => left - right);
  const lanes = [...new Set(last.blocks.flatMap((block) => block.stages.map((stage) => stage.lane)))];
  const rows = ranks.map((rank) => ({
    name: `rank ${rank}`, bars: barsOfRank(last.passes.filter((pass) => pass.rank === rank)),
  }));
  for (const lane of lanes.sort()) rows.push({ name: lane, bars: barsOfLane(last.blocks, lane), lane: true });
  for (const row of rows) row.tracks = row.lane ? inTracks(row.bars) : 1;
  return rows;
}

/** Times between which the axis has its marks: 1, 2 or 5 times a power of ten. */
function markStep(span, marks) {
  const power = 10 ** Math.floor(Math.log10(span / marks));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => span / step <= marks);
}

function axis(picture, span, x, height) {
  const step = markStep(span, 8);
  for (let mark = 0; mark <= span; mark += step) {
    picture.append(
      shape("line", { class: "grid", x1: x(mark), x2: x(mark), y1: 0, y2: height }),
      shape("text", { class: "mark", x: x(mark) + 3, y: height + 13 }, duration(mark)));
  }
}

function drawBar(picture, bar, row, top, x, from) {
  const left = x(bar.from - from);
  const width = Math.max(1, x(bar.to - from) - left);
  const y = topOf(bar, top);
  picture.append(shape("rect", { class: bar.kind, x: left, y, width, height: BAR, rx: 1.5 },
    shape("title", {}, bar.says)));
  if (row.lane && width > 8 + 7 * bar.label.length) {
    picture.append(shape("text", { class: "inside", x: left + width / 2, y: y + BAR - 3 }, bar.label));
  }
}

function topOf(bar, top) {
  return top + (bar.track ?? 0) * (BAR + 3) + (ROW - BAR) / 2;
}

/** How long a stage waited for its lane: a line up to its bar, under all bars. */
function drawWait(picture, bar, top, x, from) {
  if (bar.queued === undefined || bar.queued === null || bar.queued >= bar.from) return;
  const y = topOf(bar, top) + BAR / 2;
  picture.append(shape("line", {
    class: "queued", x1: Math.max(x(0), x(bar.queued - from)), x2: x(bar.from - from), y1: y, y2: y,
  }));
}

function draw(last, rows, width) {
  const span = Math.max(last.to - last.from, 1e-6);
  const x = (seconds) => LABEL + ((width - LABEL - 8) * seconds) / span;
  const heights = rows.map((row) => ROW + (row.tracks - 1) * (BAR + 3));
  const height = heights.reduce((sum, each) => sum + each, 0);
  const picture = shape("svg", {
    class: "timeline", width, height: height + 18, role: "img",
    "aria-label": `Timeline of ${duration(span)}: ${rows.map((row) => row.name).join(", ")}`,
  }, pattern());
  axis(picture, span, x, height);
  let top = 0;
  rows.forEach((row, index) => {
    picture.append(shape("text", { class: "row", x: 0, y: top + ROW / 2 + 4 }, row.name.slice(0, 12)));
    for (const bar of row.bars) drawWait(picture, bar, top, x, last.from);
    for (const bar of row.bars) drawBar(picture, bar, row, top, x, last.from);
    top += heights[index];
    picture.append(shape("line", { class: "grid", x1: 0, x2: width, y1: top, y2: top }));
  });
  return picture;
}

/** Hatching, so that waiting is told from computing without colours too. */
function pattern() {
  return shape("defs", {}, shape("pattern", {
    id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
  }, shape("rect", { class: "hatch-ground", width: 6, height: 6 }),
  shape("line", { class: "hatch-line", x1: 0, x2: 0, y1: 0, y2: 6 })));
}

function legend(last) {
  const passes = [["backward", "backward pass"], ["forward", "forward pass"],
    ["waited", "forward pass stood still (drawn first)"]];
  const stages = [["stage0", STAGES[0]], ["stage1", STAGES[1]], ["stage2", STAGES[2]],
    ["queued", "waits for the lane"], ["failed", "failed"]];
  const wanted = last.passes.length ? passes.concat(stages) : stages;
  show("timeline-legend", ...wanted.map(([kind, words]) =>
    element("span", {}, swatch(kind), ` ${words}`)));
}

function swatch(kind) {
  const mark = kind === "queued"
    ? shape("line", { class: "queued", x1: 0, x2: 14, y1: 6, y2: 6 })
    : shape("rect", { class: kind, width: 14, height: 12, rx: 1.5 });
  return shape("svg", { class: "swatch", width: 14, height: 12, "aria-hidden": "true" }, mark);
}

function asTable(last) {
  return table("Blocks that have ended, newest first", [
    { title: "Block", cell: nameOf },
    { title: "Of", cell: (block) => block.tensor, kind: "name" },
    { title: "Bytes", kind: "number", cell: (block) => bytes(block.bytes) },
    { title: "Last rank", kind: "number", cell: (block) => (block.last_rank === null ? "" : String(block.last_rank)) },
    { title: "Gathered", kind: "number",
      cell: (block) => (block.ready === null ? "never" : duration(block.ready - block.posted)) },
    { title: "Took in all", kind: "number", cell: (block) => duration(block.end - block.posted) },
    { title: "Lanes", cell: (block) => block.stages.map((stage) => stage.lane).join(", ") },
    { title: "Ended", cell: (block) => block.code },
  ], [...last.blocks].reverse());
}

/** Draws the job's last `count` iterations. */
export function showTimeline(status, job, count) {
  const timeline = status.timelines.find((each) => each.job === job);
  if (timeline === undefined || timeline.blocks.length + timeline.passes.length === 0) {
    show("timeline-legend");
    show("timeline-table");
    show("timeline", nothing("No job has moved anything yet."));
    return;
  }
  const last = lastOf(timeline, count);
  const place = document.getElementById("timeline");
  legend(last);
  show("timeline", draw(last, rowsOf(last), Math.max(place.clientWidth, WIDTH_MIN)));
  show("timeline-table", asTable(last));
}
