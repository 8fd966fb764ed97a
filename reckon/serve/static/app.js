"use strict";
// The explorer: a form whose state is the address, and a picture of each answer.

const TABS = { train: "Training", infer: "Serving", power: "Power", accuracy: "Accuracy", compare: "Compare" };
const DEFAULTS = {
  train: { model: "llama3-70b", seq_len: "8192", global_batch: "1024", tokens: "15e12",
           system: "dgx-h100", gpus: "1024", tp: "8", pp: "4" },
  infer: { model: "llama3-70b", input_len: "1024", output_len: "256", concurrency: "64",
           system: "dgx-h200", gpus: "8", tp: "8" },
};
const POWERS = ["1", "2", "4", "8", "16", "32", "64"];
const FORM = {
  train: [
    ["Workload", [["model", "model", "models"], ["seq_len", "sequence length"],
                  ["global_batch", "global batch"], ["tokens", "tokens in all"]]],
    ["Cluster", [["system", "system", "systems"], ["gpus", "GPUs"],
                 ["price_per_gpu_hour", "price per GPU hour"],
                 ["variation", "how alike", ["none", "tuned", "typical", "cloud"]]]],
    ["Layout", [["tp", "tensor parallel", POWERS], ["pp", "pipeline parallel", POWERS],
                ["cp", "context parallel", POWERS], ["ep", "expert parallel", POWERS],
                ["vpp", "virtual stages", ["1", "2", "3", "4", "5", "6", "8"]],
                ["micro_batch", "micro-batch", ["1", "2", "4", "8", "16"]],
                ["recompute", "recompute", "choices"], ["sharding", "sharding", "choices"],
                ["schedule", "schedule", "choices"], ["precision", "precision", "choices"],
                ["framework", "framework"]]],
  ],
  infer: [
    ["Workload", [["model", "model", "models"], ["input_len", "tokens in"],
                  ["output_len", "tokens out"], ["concurrency", "requests at once"]]],
    ["Cluster", [["system", "system", "systems"], ["gpus", "GPUs"]]],
    ["Layout", [["tp", "tensor parallel", POWERS], ["pp", "pipeline parallel", POWERS],
                ["ep", "expert parallel", POWERS], ["precision", "weights", "choices"],
                ["kv_precision", "cache", "choices"], ["framework", "engine"]]],
  ],
};
const KNOBS = [["Limits", [["power_limit", "power limit, W"], ["clock", "clock, MHz"]]],
  ["Cooling", [["inlet", "inlet, °C"], ["cooling", "cooling", "choices"]]],
  ["Site", [["pue", "PUE"], ["price_per_kwh", "price per kWh"],
            ["carbon_intensity", "kg CO2e per kWh"]]]];
const TERMS = { forward: "forward", backward: "backward", recompute: "recomputation",
  tp_communication: "tensor-parallel comm.", cp_communication: "context-parallel comm.",
  ep_communication: "expert-parallel comm.", pp_communication: "pipeline transfers",
  dp_communication: "data-parallel comm.", offload: "copies to the host", host: "host",
  bubble: "pipeline bubble", optimizer: "optimizer", framework: "framework factor",
  data_loading: "waiting for data", linear: "products", experts: "experts",
  attention: "attention", elementwise: "elementwise", head: "head" };
const COLOURS = { forward: 0, backward: 1, linear: 0, experts: 1, attention: 11, elementwise: 8,
  head: 7, recompute: 9, tp_communication: 2, cp_communication: 3, ep_communication: 4,
  dp_communication: 3, pp_communication: 4, bubble: 5, framework: 6, optimizer: 7, host: 5,
  offload: 10, data_loading: 11 };

const $ = id => document.getElementById(id);
let names = null, tab = "train", of = "train", values = {}, pinned = [], turn = 0, timer = null, search = null,
    answer = null;

function el(kind, given = {}, ...inner) {
  const made = document.createElement(kind);
  for (const [key, value] of Object.entries(given)) {
    if (key === "on") for (const [name, f] of Object.entries(value)) made.addEventListener(name, f);
    else if (key in made && key !== "list" && !key.startsWith("aria")) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...inner.filter(one => one !== null && one !== undefined));
  return made;
}
const four = x => x === null || x === undefined ? "–"
  : Math.abs(x) >= 1000 ? Math.round(Number(x.toPrecision(4))).toLocaleString("en")
  : String(Number(x.toPrecision(3)));
function seconds(s) {
  if (s === null || s === undefined) return "–";
  if (s >= 7200) return four(s / 3600) + " h";
  if (s >= 600) return four(s / 60) + " min";
  return s >= 1 ? four(s) + " s" : s >= 1e-3 ? four(s * 1e3) + " ms" : four(s * 1e6) + " µs";
}
// What a figure stands for is told as the terminal tells it: to four digits.
const exactly = s => s >= 1 && s < 600 ? Number(s.toPrecision(4)) + " s" : s >= 1e-3 && s < 1 ? Number((s * 1e3).toPrecision(4)) + " ms" : seconds(s);
const whole = x => Math.round(x).toLocaleString("en");
const gib = gb => (gb * 1e9 / 2 ** 30).toFixed(1);

// Tabs of power and accuracy look at the request of training or serving that was shown last.
const verb = () => tab === "train" || tab === "infer" ? tab : of;

// -- state: the address holds the tab, the form and what is compared ------------------------------
function readAddress() {
  const given = new URLSearchParams(location.search);
  tab = given.get("tab") in TABS ? given.get("tab") : "train";
  pinned = given.getAll("pin");
  of = tab === "infer" || given.get("of") === "infer" ? "infer" : "train";
  for (const one of ["tab", "pin", "of"]) given.delete(one);
  const stated = Object.fromEntries(given);
  for (const one of ["train", "infer"]) values[one] ??= { ...DEFAULTS[one] };
  if (Object.keys(stated).length) values[verb()] = stated;
}
function writeAddress(moved = false) { // a move to another tab can be gone back on
  const said = new URLSearchParams({ tab, ...(verb() === tab ? {} : { of }), ...stated(verb()) });
  for (const one of pinned) said.append("pin", one);
  history[moved ? "pushState" : "replaceState"](null, "", "?" + said);
}
function stated(verb) {
  return Object.fromEntries(Object.entries(values[verb]).filter(([, v]) => v !== ""));
}
const TEXTS = ["cooling", "variation", "recompute", "sharding", "schedule", "precision", "kv_precision", "framework"];
function request(given) {
  const { model, system, ...rest } = given, plan = {};
  for (const [name, value] of Object.entries(rest)) {
    const number = Number(value);
    plan[name] = TEXTS.includes(name) || value.trim() === "" || Number.isNaN(number) ? value : number;
  }
  return { model: model || "", system: system || "", plan };
}
async function ask(path, body, method = "POST") {
  const found = await fetch(path, body === undefined ? { method } : {
    method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const content = await found.json();
  if (!found.ok) throw new Error(told(content.detail));
  return content;
}
function told(detail) {
  if (!Array.isArray(detail)) return String(detail);
  const first = detail[0];
  return `${(first.loc || []).slice(1).filter(part => !String(part).includes("-")).join(".")}: ${first.msg}`;
}

// -- the form ------------------------------------------------------------------------------------
function drawTabs() {
  $("tabs").replaceChildren(...Object.entries(TABS).map(([name, text]) => {
    const label = name === "compare" && pinned.length ? `${text} (${pinned.length})` : text;
    const made = el("button", { type: "button", on: { click: () => show(name, name !== tab) } }, label);
    if (name === tab) made.setAttribute("aria-current", "page");
    return el("li", {}, made);
  }));
}
function drawForm() {
  const form = $("form");
  form.hidden = tab === "compare";
  document.querySelector("main").classList.toggle("wide", form.hidden);
  if (form.hidden) return;
  const shown = tab === "power" ? KNOBS : tab === "accuracy" ? FORM[of].filter(([title]) => title !== "Layout") : FORM[tab];
  form.replaceChildren(...(verb() === tab ? [] : [drawOf()]), ...shown.map(([title, fields]) => el("fieldset", {},
    el("legend", {}, title), ...fields.map(field => drawField(...field)))));
}
function drawOf() {
  const input = el("select", { id: "f-of", on: { change: event => {
    event.stopPropagation();
    of = event.target.value;
    show(tab);
    $("f-of").focus();
  } } }, ...["train", "infer"].map(one => el("option", { value: one, selected: one === of }, TABS[one])));
  const { model, system, gpus } = values[of];
  return el("fieldset", {}, el("legend", {}, "Request"),
    el("div", { className: "field" }, el("label", { htmlFor: "f-of" }, "of the tab"), input),
    el("p", { className: "note" }, `${model} on ${gpus ?? ""} × ${system}`));
}
function drawField(name, text, kind) {
  const id = `f-${name}`, own = values[verb()][name] ?? "";
  const long = kind === "models" || kind === "systems";
  const entry = names.fields[verb()][name];
  let input;
  if (Array.isArray(kind) || kind === "choices") {
    const choices = kind === "choices" ? entry?.choices ?? [] : kind;
    const all = own && !choices.includes(own) ? [...choices, own] : choices;
    input = el("select", { id, name }, el("option", { value: "" }, "auto"),
      ...all.map(one => el("option", { value: one, selected: one === own }, one)));
  } else {
    input = el("input", { id, name, value: own, spellcheck: false });
    if (long) input.setAttribute("list", kind);
    else if (!TEXTS.includes(name)) input.inputMode = "decimal";
  }
  if (entry?.help) input.title = entry.help;
  return el("div", { className: long ? "field long" : "field" },
    el("label", { htmlFor: id }, text), input);
}
function show(name, moved = false) {
  tab = name;
  if (tab === "train" || tab === "infer") of = tab;
  stopSearch();
  answer = null;
  drawTabs(); drawForm(); writeAddress(moved);
  for (const id of ["figures", "where", "memory", "same", "better"]) $(id).hidden = tab === "compare";
  for (const id of ["same", "better"]) $(id).hidden ||= tab === "accuracy";
  $("better").hidden ||= tab === "infer";
  $("compare").hidden = tab !== "compare";
  $("error").hidden = true;
  if (tab === "compare") compare(); else if (tab === "accuracy") accuracy(); else { drawSearch(); predict(); }
}

// -- one prediction ------------------------------------------------------------------------------
async function predict() {
  const mine = ++turn, kind = verb(), powered = tab === "power";
  $("result").setAttribute("aria-busy", "true");
  try {
    const body = request(stated(kind));
    const [found, limits] = await Promise.all([ask(`/api/${kind}`, body),
      powered ? ask(`/api/limits/${kind}`, body) : null]);
    if (mine !== turn) return;
    answer = found;
    $("error").hidden = true;
    if (powered) drawPower(found, kind, limits); else draw(found, kind);
    for (const one of document.querySelectorAll(".card")) one.classList.remove("stale");
    $("status").textContent = `${Math.round(found.calibration.interval_level * 100)}% intervals · ` +
      `calibration ${found.calibration.name} · answered in ${Math.round(found.answered_ms)} ms`;
  } catch (error) {
    if (mine !== turn) return;
    $("error").textContent = error.message;
    $("error").hidden = false;
    for (const one of document.querySelectorAll(".card")) one.classList.add("stale");
    $("status").textContent = "";
  } finally {
    if (mine === turn) $("result").setAttribute("aria-busy", "false");
  }
}
function figure(name, value, interval, unit, notes = [], kind = "") {
  const made = el("div", { className: "figure" }, el("div", { className: "name" }, name),
    el("div", { className: `value ${kind}` }, value));
  if (interval) {
    const whole = 2 * interval.value, at = x => `${Math.min(Math.max(100 * x / whole, 0), 100)}%`;
    const strip = el("div", { className: "strip", role: "img",
      "aria-label": `80% interval ${unit(interval.low)} to ${unit(interval.high)}` });
    const band = el("i"), mark = el("b");
    band.style.left = at(interval.low);
    band.style.right = `calc(100% - ${at(interval.high)})`;
    mark.style.left = at(interval.value);
    strip.append(band, mark);
    made.append(strip, el("div", { className: "note" }, `${unit(interval.low)} to ${unit(interval.high)}`));
  }
  for (const note of notes) made.append(el("div", { className: "note" }, note));
  return made;
}
const percent = x => x === null || x === undefined ? "–" : (100 * x).toFixed(1) + "%";
const rate = scaled => ({ value: scaled.value, low: scaled.low, high: scaled.high });

function draw(found, verb) {
  const training = verb === "train", memory = found.memory;
  const fits = memory.fits ? ["fits", "good"] : ["does not fit", "bad"];
  const held = `${gib(training ? memory.peak_gb : memory.total_gb)} of ${gib(memory.capacity_gb)} GiB`;
  const figures = [];
  if (training) {
    const s = found.step_time_s, per = found.tokens_per_s_per_gpu;
    const inverse = { value: per, low: per * s.value / s.high, high: per * s.value / s.low };
    figures.push(figure("step time", exactly(s.value), s, exactly),
      figure("tokens/s per GPU", four(per), inverse, four),
      figure("MFU, causal", percent(found.mfu.megatron_causal), null, null,
             [`${percent(found.mfu.megatron)} counting full attention` +
                (found.mfu.megatron > 1 ? ", with keys behind masks and outside windows" : ""),
              ...(found.mfu.attended < 0.999 * found.mfu.megatron_causal
                ? [`${percent(found.mfu.attended)} counting windows`] : [])]));
    const run = found.training;
    if (run && run.days) {
      const notes = [`${whole(run.gpu_hours.value)} GPU-hours`];
      if (run.cost) notes.push(`${four(run.cost.value)} to pay`);
      figures.push(figure("training", run.days.value.toFixed(1) + " days", run.days, x => x.toFixed(1) + " d", notes));
    }
    const various = found.variation && found.variation.step_time_s;
    if (various) figures.push(figure("99% of steps take at most", seconds(various.p99), null, null,
      [`half of them ${seconds(various.p50)}`, `machines: ${found.variation.profile}`]));
    figures.push(figure("memory", fits[0], null, null,
      [held, `out of memory: ${Math.round(100 * memory.p_oom)}% likely`], fits[1]));
  } else {
    figures.push(figure("time to first token", exactly(found.ttft_s.value), found.ttft_s, exactly),
      figure("time per token", exactly(found.tpot_s.value), found.tpot_s, exactly),
      figure("output tokens/s", four(found.output_tokens_per_s.value), found.output_tokens_per_s, four,
             [`${four(found.output_tokens_per_s_per_gpu)} per GPU`]),
      figure("requests/s", four(found.requests_per_s), null, null),
      figure("memory", fits[0], null, null, [held], fits[1]));
  }
  $("figures").replaceChildren(...figures);
  drawWhere(found, training);
  drawMemory(found, training);
  drawSame(found);
}
function colour(name) { return `var(--c${COLOURS[name] ?? 6})`; }
function stack(parts, whole, label) {
  const bar = el("div", { className: "bar", role: "img", "aria-label": label });
  for (const [, size, shade] of parts) {
    const part = el("span");
    part.style.width = `${100 * Math.min(size / whole, 1)}%`;
    part.style.background = shade;
    bar.append(part);
  }
  return bar;
}
function drawWhere(found, training) {
  const parts = Object.entries(found.breakdown_s).filter(([, v]) => v > 0);
  const whole = parts.reduce((sum, [, v]) => sum + v, 0);
  const text = parts.map(([n, v]) => `${TERMS[n] ?? n} ${percent(v / whole)}`).join(", ");
  $("where").replaceChildren(
    el("h2", { id: "where-title" },
       `Where the ${seconds(training ? found.step_time_s.value : whole)} of a ${training ? "step" : "request"} go`),
    stack(parts.map(([n, v]) => [n, v, colour(n)]), whole, text),
    el("ul", { className: "legend" }, ...parts.map(([n, v]) => {
      const key = el("span", { className: "key" });
      key.style.background = colour(n);
      return el("li", {}, key, el("span", {}, TERMS[n] ?? n), el("span", { className: "num" }, seconds(v)),
        el("span", { className: "share" }, percent(v / whole)));
    })));
}
const SHADES = ["var(--c7)", "var(--c8)", "var(--c9)", "var(--c10)", "var(--c11)", "var(--c1)", "var(--c3)", "var(--c5)"];
function drawMemory(found, training) {
  const memory = found.memory, capacity = memory.capacity_gb;
  const stages = training ? memory.stages
    : [{ stage: "GPU", total: memory.total_gb, ...memory.classes }];
  const kinds = Object.keys(stages[0]).filter(k => k !== "stage" && k !== "total" &&
    stages.some(one => one[k] > 0.005));
  const shade = k => SHADES[kinds.indexOf(k) % SHADES.length];
  const fullest = stages.reduce((a, b) => b.total > a.total ? b : a);
  $("memory").replaceChildren(
    el("h2", { id: "memory-title" }, "Memory per GPU",
       el("small", {}, training ? "by pipeline stage, GiB; the bar is the capacity" : "GiB; the bar is the capacity")),
    ...stages.map(one => el("div", { className: "stage" }, el("span", {}, one.stage),
      stack(kinds.map(k => [k, one[k] ?? 0, shade(k)]), Math.max(capacity, one.total),
            kinds.map(k => `${k} ${gib(one[k] ?? 0)} GiB`).join(", ")),
      el("span", { className: one.total > capacity ? "num bad" : "num" }, `${gib(one.total)} / ${gib(capacity)}`))),
    el("ul", { className: "legend" }, ...kinds.map(k => {
      const key = el("span", { className: "key" });
      key.style.background = shade(k);
      return el("li", {}, key, el("span", {}, k), el("span", { className: "num" }, gib(fullest[k] ?? 0)), el("span"));
    })));
}
function flags(text) { // a line breaks before a flag, never within one
  return text.split(/(--[\w-]+)/).map(part => part.startsWith("--") ? el("span", { className: "flag" }, part) : part);
}
function copyLine(text, extra) {
  const button = el("button", { type: "button", on: { click: async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
    catch { button.textContent = "Select and copy"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } } }, "Copy");
  return el("div", { className: "line" }, el("pre", { tabIndex: 0 }, ...flags(text)), button, extra);
}
function table(head, rows, label) {
  return el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": label },
    el("table", {}, el("thead", {}, el("tr", {}, ...head.map(h => el("th", { scope: "col" }, h)))),
      el("tbody", {}, ...rows.map(row => el("tr", {}, ...row.map(cell =>
        el("td", { className: typeof cell === "string" && cell.length > 40 ? "wrap" : "" }, String(cell))))))));
}
function drawSame(found) {
  const pin = el("button", { type: "button", on: { click: () => {
    const one = new URLSearchParams({ verb: verb(), ...stated(verb()) }).toString();
    if (!pinned.includes(one)) pinned.push(one);
    drawTabs(); writeAddress();
    pin.textContent = "Pinned";
  } } }, "Pin to compare");
  const names = { mfu: "MFU" };
  $("same").replaceChildren(el("h2", { id: "same-title" }, "The same in the terminal"),
    copyLine(found.command, pin),
    el("details", {}, el("summary", {}, `${found.assumed.length} things were left open: what was taken for them`),
      table(["field", "value", "why"], found.assumed.map(a => [a.field, String(a.value), a.rule]), "assumptions")),
    el("details", {}, el("summary", {}, "Longest operators, what bounds them, how they are known"),
      table(["operator", "phase", "time", "bound", "known"],
        found.operators.map(o => [names[o.name] ?? o.name, o.phase, seconds(o.time_s), o.bound, o.pedigree]), "operators")));
}

// -- power ---------------------------------------------------------------------------------------
const watts = w => w >= 1e6 ? four(w / 1e6) + " MW" : w >= 1e4 ? four(w / 1e3) + " kW" : four(w) + " W";
const joules = j => j >= 1e6 ? four(j / 3.6e6) + " kWh" : j >= 1e3 ? four(j / 1e3) + " kJ" : four(j) + " J";
function drawPower(found, kind, limits) {
  const p = found.power;
  if (!p) throw new Error("nothing is known of the power of this accelerator: give a system whose accelerator has one");
  const each = kind === "train" ? "sample" : "request", hot = Math.max(...p.temperature_c);
  const held = p.throttled.some(one => one) ? ["held back by heat"] : [];
  const notes = [];
  if (p.energy_price !== undefined) notes.push(`${four(p.energy_price)} to pay for ${four(p.site_kwh)} kWh`);
  if (p.kg_co2e !== undefined) notes.push(`${four(p.kg_co2e)} kg CO2e`);
  $("figures").replaceChildren(
    figure("per GPU", watts(p.power_w.value), p.power_w, watts),
    figure("peak over 0.1 s", watts(p.peak_100ms_w.value), p.peak_100ms_w, watts, [`${four(p.burst)} times the mean`]),
    figure("energy per token", joules(p.energy_per_token_j.value), p.energy_per_token_j, joules,
           [`${joules(p[`energy_per_${each}_j`].value)} per ${each}`]),
    figure("hottest GPU", `${four(hot)} °C`, null, null, [p.temperature_c.map(t => four(t)).join(" / ") + " °C by position", ...held]),
    figure("at the meter", watts(p.site_power_w.value), p.site_power_w, watts,
           [kind === "train" ? `${four(p.site_kwh)} kWh a step` : "", ...notes].filter(one => one)));
  const phases = Object.entries(p.phases).filter(([, one]) => one.share > 1e-3);
  const whole = phases.reduce((sum, [, one]) => sum + one.share * one.power_w, 0);
  const shade = at => `var(--c${[0, 1, 9, 2, 5, 7, 6, 4][at % 8]})`;
  $("where").replaceChildren(
    el("h2", { id: "where-title" }, "What an accelerator draws, by phase", el("small", {}, "the bar is its energy; shares are of the time")),
    stack(phases.map(([n, one], at) => [n, one.share * one.power_w, shade(at)]), whole,
          phases.map(([n, one]) => `${n} ${watts(one.power_w)}`).join(", ")),
    el("ul", { className: "legend" }, ...phases.map(([n, one], at) => {
      const key = el("span", { className: "key" });
      key.style.background = shade(at);
      return el("li", {}, key, el("span", {}, n), el("span", { className: "num" }, watts(one.power_w)),
        el("span", { className: "share" }, percent(one.share)));
    })));
  const parts = Object.entries(p.node_parts_w).filter(([, w]) => w > 0);
  const node = parts.reduce((sum, [, w]) => sum + w, 0);
  $("memory").replaceChildren(
    el("h2", { id: "memory-title" }, `A machine draws ${watts(p.node_power_w.value)}`,
       el("small", {}, `${watts(p.node_power_w.low)} to ${watts(p.node_power_w.high)}`)),
    stack(parts.map(([n, w], at) => [n, w, SHADES[at % SHADES.length]]), node, parts.map(([n, w]) => `${n} ${watts(w)}`).join(", ")),
    el("ul", { className: "legend" }, ...parts.map(([n, w], at) => {
      const key = el("span", { className: "key" });
      key.style.background = SHADES[at % SHADES.length];
      return el("li", {}, key, el("span", {}, n), el("span", { className: "num" }, watts(w)), el("span", { className: "share" }, percent(w / node)));
    })));
  drawSame(found);
  drawLimits(limits, kind);
}
function drawLimits(limits, kind) {
  const rows = limits.rows, first = rows.find(row => !row.refused);
  const change = (row, key) => row === first ? "" : `${row[key].value >= first[key].value ? "+" : "−"}${percent(Math.abs(row[key].value / first[key].value - 1))}`;
  $("better").replaceChildren(
    el("h2", { id: "better-title" }, "Power limits", el("small", {}, `${limits.accelerator}, ${watts(limits.limit_w)} by itself`)),
    table(["limit", kind === "train" ? "step" : "per token", "", "per GPU", `energy per ${first?.each ?? ""}`, "", "hottest"],
      rows.map(row => row.refused ? [watts(row.limit_w), row.refused, "", "", "", "", ""]
        : [watts(row.limit_w) + (row.yours ? " (yours)" : ""), seconds(row.time_s.value), change(row, "time_s"),
           watts(row.power_w.value), joules(row.energy_j.value), change(row, "energy_j"), `${four(row.temperature_c)} °C`]),
      "power limits"));
}

// -- accuracy ------------------------------------------------------------------------------------
async function accuracy() {
  const mine = ++turn;
  try {
    const found = await ask("/api/accuracy", request(stated(verb())));
    if (mine !== turn) return;
    $("error").hidden = true;
    drawAccuracy(found);
    for (const one of document.querySelectorAll(".card")) one.classList.remove("stale");
    $("status").textContent = `calibration ${found.calibration}`;
  } catch (error) {
    if (mine !== turn) return;
    $("error").textContent = error.message;
    $("error").hidden = false;
    for (const one of document.querySelectorAll(".card")) one.classList.add("stale");
  }
}
const middle = list => list.length ? [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)] : null;
function drawAccuracy(found) {
  const known = found.kernels.filter(one => one.unseen_shapes !== undefined), runs = Object.entries(found.runs);
  const reach = Math.exp(1.2816 * found.sigma);
  $("figures").replaceChildren(
    figure("kernels, unseen shapes", percent(middle(known.map(one => one.unseen_shapes))), null, null,
           [known.length ? `median of ${known.length} kinds on ${found.accelerator}` : `${found.accelerator} was never measured`]),
    figure("the same, accelerator left out", percent(middle(found.kernels.map(one => one.accelerator_left_out).filter(one => one !== undefined))), null, null,
           ["what a machine that nobody measured gets"]),
    figure("runs in the fit", four(runs.reduce((sum, [, n]) => sum + n, 0)), null, null, [`of ${runs.length} sources`]),
    figure("interval of a step", `× ${reach.toFixed(2)}`, null, null, [`at ${Math.round(100 * found.level)}%, from runs of sources left out`]));
  $("where").replaceChildren(
    el("h2", { id: "where-title" }, `Kernels on ${found.accelerator}`, el("small", {}, "mean absolute error of what was left out of the fit")),
    found.kernels.length ? table(["kernel", "type", "points", "unseen shapes", "library left out", "accelerator left out"],
      found.kernels.map(one => [one.kind.replaceAll("_", " "), one.dtype === "*" ? "any" : one.dtype, one.points ? four(one.points) : "",
        percent(one.unseen_shapes), percent(one.library_left_out), percent(one.accelerator_left_out)]), "kernels")
      : el("p", {}, "Nobody measured its kernels: they are taken from the architectures most alike, with a wider interval."));
  $("memory").replaceChildren(
    el("h2", { id: "memory-title" }, "Runs and power"),
    el("details", {}, el("summary", {}, "published runs that the calibration is fitted to, by source"),
      table(["source", "rows"], runs.map(([name, n]) => [name.replaceAll("_", " "), four(n)]), "runs")),
    found.power.length ? table(["power: left out", "points", "mean error", "median", "bias"],
      found.power.map(one => [one.what, four(one.n), percent(one.mape), percent(one.median), one.bias === undefined ? "" : (one.bias > 0 ? "+" : "") + one.bias.toFixed(2)]), "power")
      : el("p", {}, `No measurement of the power of ${found.accelerator}: its constants follow from its limit, matrix units and memory.`));
}

// -- better plans ----------------------------------------------------------------------------------
function stopSearch() {
  if (search && search.state === "running") ask(`/api/search/${search.id}`, undefined, "DELETE").catch(() => {});
  clearTimeout(timer);
  search = null;
}
function drawSearch() {
  const box = $("better");
  if (tab !== "train") { if (tab === "power") box.replaceChildren(el("h2", { id: "better-title" }, "Power limits")); return; }
  const running = search && search.state === "running";
  const button = el("button", { type: "button", className: "main", id: "search-button",
    on: { click: running ? cancelSearch : startSearch } }, running ? "Cancel" : "Search all layouts");
  const line = el("p", { role: "status", id: "search-status" }, button, " ");
  if (running) line.append(el("progress", { max: 1, value: search.progress, "aria-label": "search" }),
    ` ${Math.round(100 * search.progress)}%`);
  else if (search && search.state === "cancelled") line.append("cancelled");
  else if (search && search.error) line.append(el("span", { className: "bad" }, search.error));
  const inner = [el("h2", { id: "better-title" }, "Better plans"), line];
  if (search && search.answer) inner.push(...drawPlans(search.answer, line));
  box.replaceChildren(...inner);
  if (search && search.answer) plot(search.answer);
}
async function startSearch() {
  try {
    search = await ask("/api/search", request(stated("train")));
    drawSearch();
    timer = setTimeout(poll, 250);
  } catch (error) {
    search = { state: "failed", error: error.message };
    drawSearch();
  }
}
async function cancelSearch() {
  const old = search;
  clearTimeout(timer);
  search = await ask(`/api/search/${old.id}`, undefined, "DELETE");
  drawSearch();
  $("search-button")?.focus();
}
async function poll() {
  if (!search || search.state !== "running") return;
  const id = search.id;
  const found = await ask(`/api/search/${id}`, undefined, "GET").catch(e => ({ state: "failed", error: e.message }));
  if (!search || search.id !== id) return;
  const before = search.state;
  search = { ...found, id };
  if (search.state === "running" && before === "running" && document.querySelector("#better progress")) {
    document.querySelector("#better progress").value = search.progress;
    timer = setTimeout(poll, 250);
    return;
  }
  drawSearch();
  if (search.state === "running") timer = setTimeout(poll, 250);
}
function drawPlans(found, line) {
  const counts = found.counts;
  line.append(` ${counts.enumerated.toLocaleString("en")} plans, ${counts.fitting.toLocaleString("en")} fit, in ${seconds(found.seconds)}`);
  const best = found.plans[0].step_time_s.value, tied = found.ties;
  const more = tied >= found.ties_asked && tied > 1 ? `${tied} or more plans tie` : `${tied} plans tie`;
  const sentence = el("p", {});
  if (found.own) sentence.append("Yours takes ", el("strong", {}, seconds(found.own.step_time)), "; the best found takes ",
    el("strong", {}, seconds(best)), found.own.tie ? ", which is a tie. " : `, ${percent(1 - best / found.own.step_time)} less. `);
  else sentence.append("The best takes ", el("strong", {}, seconds(best)), ". ");
  sentence.append(`${more} with it within the interval of the ratio: choose among them by what is simplest to run.`);
  const keys = ["tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "recompute", "sharding", "schedule"]
    .filter(k => found.plans.some(p => k in p.chosen && String(p.chosen[k]) !== "1"));
  const body = el("tbody");
  const detail = el("div", { id: "plan-line" });
  found.plans.forEach((plan, at) => {
    const chosen = el("button", { type: "button", "aria-label": `plan ${at + 1}`, on: { click: () => choose(plan, row) } }, String(at + 1));
    const over = at === 0 ? "best" : `+${(100 * (plan.over_best.value - 1)).toFixed(1)}%`;
    const last = el("td", {}, over);
    if (at && plan.tie_with_best) last.append(" ", el("span", { className: "tie" }, "tie"));
    const row = el("tr", {}, el("td", {}, chosen), el("td", {}, el("strong", {}, seconds(plan.step_time_s.value))), last,
      el("td", {}, gib(plan.peak_gb)), ...keys.map(k => el("td", {}, String(plan.chosen[k] ?? ""))),
      el("td", {}, `${seconds(plan.step_time_s.low)} – ${seconds(plan.step_time_s.high)}`));
    body.append(row);
  });
  function choose(plan, row) {
    for (const one of body.children) one.removeAttribute("aria-selected");
    row.setAttribute("aria-selected", "true");
    detail.replaceChildren(copyLine(plan.command, el("button", { type: "button", className: "main", on: { click: () => usePlan(plan) } }, "Use this plan")));
  }
  const head = ["#", "step", "over the best", "GiB", ...keys.map(k => k.replace("_", "-")), "80% interval"];
  return [sentence, el("div", { id: "plot", role: "img", "aria-label": "step time against peak memory of the plans; the table lists the best" }),
    el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "best plans" },
      el("table", {}, el("thead", {}, el("tr", {}, ...head.map(h => el("th", { scope: "col" }, h)))), body)), detail];
}
function usePlan(plan) {
  const chosen = Object.fromEntries(Object.entries(plan.chosen).filter(([k]) => k !== "dp").map(([k, v]) => [k, String(v).split(" ")[0]]));
  const more = Object.fromEntries(Object.entries(plan.more).map(([k, v]) => [k, String(v)]));
  for (const one of search.answer.plans) for (const key of Object.keys(one.more)) delete values.train[key];
  values.train = { ...values.train, ...chosen, ...more };
  search = null;
  drawForm(); writeAddress(); drawSearch(); predict();
  $("result").focus();
}
let plotly = null;
function loadPlotly() {
  plotly ??= new Promise((done, failed) => {
    const made = el("script", { src: "/plotly.js" });
    made.onload = done; made.onerror = failed;
    document.head.append(made);
  });
  return plotly;
}
async function plot(found) {
  await loadPlotly();
  const place = $("plot");
  if (!place) return;
  const style = getComputedStyle(document.documentElement), c = name => style.getPropertyValue(name).trim();
  const G = 2 ** 30, font = { color: c("--ink"), family: "system-ui, sans-serif" };
  const front = [...found.front].sort((a, b) => a.time - b.time);
  const traces = [
    { x: found.points.time, y: found.points.memory.map(m => m / G), mode: "markers", type: "scatter", name: "plans",
      marker: { size: 4, color: c("--c6") }, hovertemplate: "%{x:.3g} s, %{y:.1f} GiB<extra></extra>" },
    { x: front.map(p => p.time), y: front.map(p => p.memory / G), mode: "lines+markers", name: "Pareto front", line: { shape: "hv", color: c("--c0") },
      marker: { size: 8 }, hovertemplate: "%{x:.3g} s, %{y:.1f} GiB<extra></extra>" },
  ];
  if (found.own) traces.push({ x: [found.own.step_time], y: [found.own.memory / G], mode: "markers+text", text: ["yours"], textposition: "top center",
    textfont: { color: c("--own") }, marker: { size: 12, symbol: "diamond", color: c("--own") }, name: "yours", hoverinfo: "skip" });
  const capacity = found.capacity / G;
  Plotly.newPlot(place, traces, { margin: { l: 55, r: 15, t: 10, b: 45 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font,
    showlegend: false, xaxis: { title: { text: "step time, s" }, type: "log", gridcolor: c("--line"), dtick: "D2", tickformat: ",~g" },
    yaxis: { title: { text: "peak memory, GiB" }, gridcolor: c("--line"), rangemode: "tozero" },
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: capacity, y1: capacity, line: { color: c("--bad"), dash: "dash", width: 1 } }],
    annotations: [{ xref: "paper", x: 1, y: capacity, text: "capacity", showarrow: false, yanchor: "bottom", xanchor: "right", font: { color: c("--bad") } }],
  }, { displayModeBar: false, responsive: true });
}

// -- compare -----------------------------------------------------------------------------------------
async function compare() {
  const box = $("compare");
  const title = el("h2", { id: "compare-title" }, "Compare");
  $("status").textContent = "";
  if (!pinned.length) {
    box.replaceChildren(title, el("p", {}, "Nothing is pinned yet: “Pin to compare” below a prediction keeps it here."));
    return;
  }
  const rows = await Promise.all(pinned.map(async one => {
    const given = Object.fromEntries(new URLSearchParams(one)), verb = given.verb;
    delete given.verb;
    try { return { verb, given, found: await ask(`/api/${verb}`, request(given)) }; }
    catch (error) { return { verb, given, error: error.message }; }
  }));
  const keys = [...new Set(rows.flatMap(r => Object.keys(r.given)))];
  const varying = keys.filter(k => new Set(rows.map(r => r.given[k] ?? "")).size > 1 || k === "model");
  const head = ["", ...varying.map(k => k.replace("_", " ")), "time", "interval", "per GPU", "GiB", "fits", ""];
  const body = rows.map((row, at) => {
    const drop = el("button", { type: "button", "aria-label": `remove row ${at + 1}`, on: { click: () => { pinned.splice(at, 1); drawTabs(); writeAddress(); compare(); } } }, "×");
    const cells = varying.map(k => el("td", {}, row.given[k] ?? ""));
    if (row.error) return el("tr", {}, el("td", {}, TABS[row.verb]), ...cells, el("td", { colSpan: 5, className: "wrap bad" }, row.error), el("td", {}, drop));
    const f = row.found, train = row.verb === "train", s = train ? f.step_time_s : f.tpot_s;
    return el("tr", {}, el("td", {}, train ? "step" : "per token"), ...cells, el("td", {}, el("strong", {}, seconds(s.value))),
      el("td", {}, `${seconds(s.low)} – ${seconds(s.high)}`),
      el("td", {}, four(train ? f.tokens_per_s_per_gpu : f.output_tokens_per_s_per_gpu) + " tok/s"),
      el("td", {}, gib(train ? f.memory.peak_gb : f.memory.total_gb)), el("td", { className: f.memory.fits ? "good" : "bad" }, f.memory.fits ? "yes" : "no"), el("td", {}, drop));
  });
  box.replaceChildren(title, el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "comparison" },
    el("table", {}, el("thead", {}, el("tr", {}, ...head.map(h => el("th", { scope: "col" }, h || el("span", { className: "skip" }, "row"))))), el("tbody", {}, ...body))));
}

// -- start -------------------------------------------------------------------------------------------
function changed(event) {
  const { name, value } = event.target;
  if (!name) return;
  values[verb()][name] = value.trim();
  writeAddress();
  clearTimeout(changed.timer);
  changed.timer = setTimeout(tab === "accuracy" ? accuracy : predict, event.type === "change" ? 0 : 80);
}
async function start() {
  readAddress();
  names = await ask("/api/names", undefined, "GET");
  $("models").replaceChildren(...names.models.map(value => el("option", { value })));
  $("systems").replaceChildren(...[...names.systems, ...names.machines].map(value => el("option", { value })));
  $("form").addEventListener("input", changed);
  $("form").addEventListener("change", changed);
  $("form").addEventListener("submit", event => { event.preventDefault(); (tab === "accuracy" ? accuracy : predict)(); });
  addEventListener("popstate", () => { readAddress(); show(tab); });
  show(tab);
}
start();
