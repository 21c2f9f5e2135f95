// The dashboard: asks /admin/overview every few seconds, and shows what it says. See gateway/dashboard.py.
//
//   loading --answer--> live | draining --no answer--> gone: what was last said stays, dimmed --answer--> live

import { Chart } from "./charts.js";
import { el, endpointRow, fill, findingRow, prefixRow, refusalRows, tenantRow } from "./tables.js";
import { age, clock, count, duration, durationParts, isKnown, percent, percentParts, rate } from "./words.js";

const TIMEOUT_MS = 10_000;
const DOCTOR_EVERY_MS = 30_000;
const section = (id) => document.getElementById(id);
const words = (id, text) => (section(id).textContent = text);

const PERCENTILES = [
  { label: "p50", role: "--a", fill: "--fill" },
  { label: "p95", role: "--b" },
  { label: "p99", role: "--c" },
];
const charts = {
  ttft: new Chart(section("chart-ttft"), {
    lines: PERCENTILES, format: duration, top: 0.05, empty: "No streamed request in the last ten minutes",
  }),
  wait: new Chart(section("chart-wait"), {
    lines: PERCENTILES, format: duration, top: 0.05, empty: "Nobody had to wait in the last ten minutes",
  }),
  rate: new Chart(section("chart-rate"), {
    lines: [
      { label: "answered", role: "--a", fill: "--fill" },
      { label: "refused", role: "--b" },
      { label: "failed", role: "--c" },
    ],
    format: (value) => rate(value), top: 1, empty: "No request in the last ten minutes",
  }),
  hits: new Chart(section("chart-hits"), {
    lines: [{ label: "cached", role: "--a", fill: "--fill" }],
    format: percent, most: 1, top: 1, empty: "No engine has reported cached tokens",
  }),
};

let everyMs = 5000;
let answeredAt = null;
let hasDoctor = true;
let askedDoctorAt = -DOCTOR_EVERY_MS;
let timer = null;

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store", redirect: "error" });
  if (answer.ok) return answer.json();
  const error = new Error(`it answers ${answer.status}`);
  error.status = answer.status;
  throw error;
}

async function look() {
  clearTimeout(timer);
  try {
    const feed = await ask("admin/overview").catch(gone);
    if (feed) {
      answeredAt = Date.now();
      show(feed);
      section("trouble").hidden = true;
      if (hasDoctor && performance.now() - askedDoctorAt >= DOCTOR_EVERY_MS) await lookAtDoctor();
    }
  } finally {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(look, everyMs);
  }
}

function gone(error) {
  document.body.dataset.state = "gone";
  const reason = error.status === 401 || error.status === 403 ? "This page needs an admin key: load it again." : null;
  const since = answeredAt === null ? "" : ` Below is what it last said, at ${clock(answeredAt / 1000, true)}.`;
  words("trouble", (reason ?? "The gateway does not answer.") + since);
  section("trouble").hidden = false;
  tick();
}

async function lookAtDoctor() {
  askedDoctorAt = performance.now();
  try {
    const { is_enabled: isEnabled, findings, looked_at: lookedAt } = await ask("admin/doctor");
    fill(section("doctor"), findings.slice(0, 20).map(findingRow), `Nothing, in ${count(lookedAt)} prompts.`);
    section("doctor").hidden = !isEnabled;
  } catch (error) {
    hasDoctor = error.status !== 404; // one that does not answer is asked again
    section("doctor").hidden = true;
  }
}

function show(feed) {
  everyMs = Math.max(1000, feed.every_s * 1000);
  document.body.dataset.state = feed.is_draining ? "draining" : "live";
  words("about", `${feed.version} · up ${age(feed.uptime_s)}`);
  for (const each of document.querySelectorAll(".window")) each.textContent = `last ${age(feed.window_s)}`;
  tiles(feed);
  const { at, ...points } = feed.points;
  const shares = (columns) => [columns.p50, columns.p95, columns.p99];
  charts.ttft.show(at, shares(points.ttft_s));
  charts.wait.show(at, shares(points.queue_wait_s));
  charts.rate.show(at, [points.served_per_s, points.refused_per_s, points.failed_per_s]);
  charts.hits.show(at, [points.hit_ratio]);
  const isOfMany = feed.pools.length > 1;
  fill(section("endpoints"), feed.endpoints.map((each) => endpointRow(each, isOfMany)), "No endpoint is known.");
  words("pools", feed.pools.map((each) => pool(each, isOfMany)).join("   ·   ") + unlisted(feed.endpoints_total, feed.endpoints));
  fill(section("tenants"), feed.tenants.map(tenantRow), "Nobody has asked for anything yet.");
  fill(section("prefixes"), feed.prefixes.map(prefixRow), "No two prompts have begun alike lately.");
  fill(section("refusals"), refusalRows(feed.refusals), "None.");
}

function pool(each, isOfMany) {
  const parts = [`${each.ready} of ${each.endpoints} ready`];
  if (isKnown(each.saturation)) parts.push(`${percent(each.saturation)} full`);
  if (each.waiting) parts.push(`${count(each.waiting)} waiting`);
  return (isOfMany ? `${each.name}: ` : "") + parts.join(", ");
}

const unlisted = (total, rows) => (total > rows.length ? ` · the first ${rows.length} of ${total}` : "");

function tiles({ now }) {
  const p95 = (figures) => figures?.p95 ?? null;
  const p50 = (figures) => (isKnown(figures?.p50) ? `p50 ${duration(figures.p50)}` : "");
  const nobodyWaits = now.waiting === 0 && !p95(now.queue_wait_s);
  const every = isKnown(now.served_per_s) ? now.served_per_s + now.refused_per_s + now.failed_per_s : null;
  const turnedAway = isKnown(every) ? (now.refused_per_s + now.failed_per_s) * 60 : null;
  section("tiles").replaceChildren(
    tile("Requests", [rate(every), "/s"], `${count(now.active_requests)} being served`),
    tile("Output", [rate(now.output_tokens_per_s), "tokens/s"], `prompt ${rate(now.prompt_tokens_per_s)} tokens/s`),
    tile("Cache hits", percentParts(now.hit_ratio), "of prompt tokens"),
    tile("First token, p95", durationParts(p95(now.ttft_s)), p50(now.ttft_s)),
    tile("Queue wait, p95", nobodyWaits ? ["0", "s"] : durationParts(p95(now.queue_wait_s)), `${count(now.waiting)} waiting`),
    tile("Refused or failed", [rate(turnedAway), "/min"], isKnown(every) && every > 0 ? `${percent(turnedAway / 60 / every)} of requests` : ""),
  );
}

function tile(title, [value, unit], more) {
  const figure = el("p", "value", value, el("span", "unit", unit));
  return el("div", "tile", el("p", "", title), figure, el("p", "", more));
}

function tick() {
  const state = document.body.dataset.state;
  if (state === "loading") return;
  const since = answeredAt === null ? "" : `${age((Date.now() - answeredAt) / 1000)} ago`;
  const told = { live: `live, ${since}`, draining: `draining, ${since}`, gone: since ? `gone, last heard ${since}` : "gone" };
  words("status-words", told[state]);
}

tiles({ now: {} });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => Object.values(charts).forEach((each) => each.plot && each.build()));
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : look()));
setInterval(tick, 1000);
look().then(tick);
