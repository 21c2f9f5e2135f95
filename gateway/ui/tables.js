// The page's parts as elements. All that comes from the feed becomes text, never markup.

import { count, duration, isKnown, percent, spelt } from "./words.js";

/** Make an element; children are elements or text. */
export function el(tag, classes = "", ...children) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A name that others chose: kept from turning the text around it, whatever it is written in. */
const name = (text) => el("bdi", "name", String(text));

const figure = (words, classes = "") => el("td", `n ${classes}`, words);

/** A count that is dim while it is nothing; `colour` where it is something to see to. */
function tally(value, colour = "", classes = "") {
  return figure(count(value), `${classes} ${value ? colour : "zero"}`);
}

function bar(share) {
  const filled = el("i");
  filled.style.width = `${Math.round(100 * Math.min(1, Math.max(0, share)))}%`;
  return el("span", "bar", filled);
}

function gauge(share, classes = "") {
  const value = el("span", "value", percent(share));
  return figure(isKnown(share) ? el("span", "gauge", bar(share), value) : "–", `${classes} ${isKnown(share) ? "" : "zero"}`);
}

/** Fill a section's table, or say in words that there is nothing. */
export function fill(section, rows, nothing) {
  section.querySelector("tbody").replaceChildren(...rows);
  section.querySelector("table").hidden = rows.length === 0;
  const empty = section.querySelector(".empty");
  empty.hidden = rows.length > 0;
  empty.textContent = nothing;
}

const HEALTH = { ready: "good", starting: "warn", warming: "warn", suspect: "warn", ejected: "bad", draining: "warn" };

export function endpointRow(each, isOfMany) {
  const about = [isOfMany ? each.pool : null, each.kind, each.models.join(", ")].filter(Boolean).join(" · ");
  const word = each.is_cooling && each.state === "ready" ? "busy" : each.state;
  const state = el("span", `state ${word === "busy" ? "warn" : (HEALTH[each.state] ?? "")}`, el("span", "dot"), word);
  const hits = gauge(each.hit_ratio);
  if (each.is_forecast_off) hits.append(el("small", "alarm", "not as predicted"));
  return el(
    "tr",
    "",
    el("td", "", name(each.name), el("small", "", el("bdi", "", about))),
    el("td", "", state, each.trouble ? el("small", "", el("bdi", "", each.trouble)) : null),
    tally(each.in_flight),
    figure(each.prefill_s ? duration(each.prefill_s) : "0", `wide ${each.prefill_s ? "" : "zero"}`),
    gauge(each.kv_usage, "wide"),
    hits,
    figure(count(each.held_tokens), "wide"),
    tally(each.tries, "", "wide"),
    tally(each.failures, "alarm", "wide"),
  );
}

export function tenantRow(each) {
  const hits = isKnown(each.hit_ratio) ? each.hit_ratio : each.predicted_hit_ratio;
  const cell = gauge(hits);
  if (!isKnown(each.hit_ratio) && isKnown(hits)) cell.append(el("small", "", "predicted"));
  return el(
    "tr",
    "",
    el("td", "", name(each.name)),
    tally(each.in_flight, "", "wide"),
    tally(each.requests),
    tally(each.refused, "caution"),
    figure(count(each.prompt_tokens), "wide"),
    figure(count(each.output_tokens), "wide"),
    cell,
    el("td", "limits", ...(each.limits ? fullest(each.limits).map(limit) : [el("span", "zero", "not known now")])),
  );
}

const used = (each) => (each.limit > 0 ? 1 - each.remaining / each.limit : 1);

const fullest = (limits) => [...limits].sort((a, b) => used(b) - used(a)).slice(0, 3);

function limit(each) {
  const share = used(each);
  const drawn = bar(share);
  if (share >= 0.8) drawn.classList.add(share >= 1 ? "over" : "full");
  const told = el("bdi", "", spelt(each.name));
  const line = el("div", "limit", told, drawn, el("span", "value", percent(share)));
  line.title = `${count(each.remaining)} of ${count(each.limit)} left`;
  return line;
}

export function prefixRow(each) {
  const homes = each.homes.map((home) => el("span", "", el("bdi", "", home)));
  if (each.homes_total > homes.length) homes.push(`and ${each.homes_total - homes.length} more`);
  return el(
    "tr",
    "",
    el("td", "mark", each.mark),
    el("td", "wide", el("bdi", "", each.model)),
    figure(count(each.tokens)),
    figure(count(Math.round(each.weight)), "wide"),
    el("td", "homes", ...(homes.length ? homes : [el("span", "", "nowhere")])),
  );
}

const isBudget = (limit) => /_per_(day|month)$/.test(limit);

/** What was behind a code, where more is known of it. */
function behind(code, { overload, limits }) {
  if (code === "server_overloaded") return overload.map((each) => [each.reason, each.count]);
  if (code === "rate_limit_exceeded" || code === "insufficient_quota") {
    return limits.filter((each) => isBudget(each.limit) === (code === "insufficient_quota")).map((each) => [each.limit, each.count]);
  }
  return [];
}

/** Refusals by code, and under some of them what was behind. */
export function refusalRows(refusals) {
  return refusals.codes.flatMap(({ code, count: many }) => [
    el("tr", "", el("td", "", el("bdi", "", spelt(code))), figure(count(many))),
    ...behind(code, refusals).map(([reason, each]) =>
      el("tr", "detail", el("td", "under", el("bdi", "", spelt(reason))), figure(count(each))),
    ),
  ]);
}

export function findingRow(each) {
  const about = [each.advice, each.masked_text || each.example].filter(Boolean);
  const [advice, example] = about.map((text) => el("bdi", "", text));
  const lost = figure(count(each.wasted_tokens));
  if (isKnown(each.wasted_tokens_per_day)) lost.append(el("small", "", `${count(each.wasted_tokens_per_day)} a day`));
  return el(
    "tr",
    "",
    el(
      "td",
      "",
      el("bdi", "name", spelt(each.what ?? each.fault)),
      advice ? el("small", "", advice) : null,
      example ? el("small", "mark", example) : null,
    ),
    el("td", "", el("bdi", "", String(each.tenant))),
    el("td", "wide", el("bdi", "", String(each.model))),
    figure(count(each.position_tokens), "wide"),
    figure(percent(each.share), "wide"),
    lost,
  );
}
