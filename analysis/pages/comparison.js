"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "circle", "line", "text"].includes(tag);
  const element = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const paint = (group) => `--light:${group.light};--dark:${group.dark}`;
const swatch = (group) => make("span", { class: "swatch", style: paint(group) });

// What is said, and the tables.

for (const { text, claim } of data.verdict) $("verdict").append(make("li", { class: claim }, text));
$("about").textContent = data.about;
$("introduction").textContent = data.introduction;
for (const note of data.notes) $("notes").append(make("li", {}, note));

function fill(table, { titles, numbers, rows }, groups = []) {
  const heads = titles.map((title, column) => {
    const button = make("button", { type: "button" }, title);
    const head = make("th", { scope: "col", class: numbers[column] ? "number" : "" }, button);
    button.addEventListener("click", () => sort(table, heads, column, numbers[column]));
    return head;
  });
  const body = rows.map((cells, row) => {
    const line = make("tr", groups[row] ? { "data-group": row } : {});
    cells.forEach(({ text, value }, column) => {
      const kind = numbers[column] ? "number" : ["better", "worse"].includes(text) ? text : "";
      const cell = make("td", { class: kind, "data-value": value ?? text }, make("span", {}, text));
      if (groups[row] && column === 0) cell.firstChild.prepend(swatch(groups[row]));
      if (groups[row] && titles[column] === "seeds") cell.firstChild.append(...links(groups[row].runs));
      line.append(cell);
    });
    return line;
  });
  table.append(make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
}

function links(runs) {
  const there = runs.filter(({ folder }) => folder);
  const link = ({ seed, folder }) => make("a", { href: folder, "aria-label": `the folder of seed ${seed}` }, seed);
  return there.length ? [": ", ...there.map(link)] : [];
}

function sort(table, heads, column, numeric) {
  const up = heads[column].getAttribute("aria-sort") !== "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => row.cells[column].dataset.value;
  const compare = (a, b) => {
    if (!numeric) return key(a).localeCompare(key(b), "en", { numeric: true }) * (up ? 1 : -1);
    const [left, right] = [parseFloat(key(a)), parseFloat(key(b))];
    if (isNaN(left) || isNaN(right)) return isNaN(left) - isNaN(right); // what was not measured is last
    return (left - right) * (up ? 1 : -1);
  };
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
}

fill($("results"), data.overview, data.groups);
for (const { title, table } of data.more) {
  const filled = make("table");
  fill(filled, table);
  const scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, filled);
  $("more").append(make("section", {}, make("h2", {}, title), scroll));
}

// The curves.

const view = { metric: data.metrics[0]?.name, axis: "step", train: true, hidden: new Set(), group: null, at: null };

function choice(name, label, options) {
  const select = make("select", { name }, ...options.map(([value, text]) => make("option", { value }, text)));
  select.addEventListener("change", () => { view[name] = select.value; view.at = null; draw(); });
  $("choices").append(make("label", {}, label, select));
}

function points(run, split) {
  const record = run.record[split];
  const values = record?.[view.metric];
  if (!values) return [];
  return values.map((y, i) => ({ step: record.step[i], x: record[view.axis][i], y })).filter(({ y }) => y !== null);
}

// The mean over seeds at the steps that all of them have.
function mean(curves) {
  const at = new Map();
  for (const point of curves.flat()) at.set(point.step, [...(at.get(point.step) ?? []), point]);
  const shared = [...at.values()].filter((same) => same.length === curves.length);
  const average = (same, name) => same.reduce((sum, point) => sum + point[name], 0) / same.length;
  return shared.map((same) => ({ step: same[0].step, x: average(same, "x"), y: average(same, "y") }));
}

function drawn() {
  return data.groups.map((group, index) => {
    const splits = Object.fromEntries(["validation", "train"].map((split) => {
      const seeds = group.runs.map((run) => points(run, split)).filter((curve) => curve.length);
      return [split, { seeds, mean: mean(seeds) }];
    }));
    return { ...group, index, splits };
  }).filter(({ index }) => !view.hidden.has(index));
}

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => +((first + i) * step).toPrecision(12));
}

const short = (number) => Math.abs(number) >= 1e4 ? number.toLocaleString("en", { notation: "compact" }) : +number.toPrecision(4);
const spread = (values) => [Math.min(...values), Math.max(...values)];
let shown = { groups: [], place: null };

function draw() {
  const width = Math.max($("chart").clientWidth, 240), height = Math.min(380, width * .75);
  const edge = { left: 52, right: 12, top: 10, bottom: 40 };
  const groups = drawn();
  const all = groups.flatMap(({ splits }) => [splits.validation, ...(view.train ? [splits.train] : [])]).flatMap(({ seeds }) => seeds.flat());
  $("chart").replaceChildren();
  shown = { groups, place: null };
  if (!all.length) { $("chart").append("Nothing to draw: all settings are hidden."); return; }
  let [[left, right], [low, high]] = [spread(all.map(({ x }) => x)), spread(all.map(({ y }) => y))];
  if (left === right) right += 1;
  const room = (high - low || Math.abs(high) || 1) * .05;
  [low, high] = [low - room, high + room];
  const x = (value) => edge.left + (value - left) / (right - left) * (width - edge.left - edge.right);
  const y = (value) => height - edge.bottom - (value - low) / (high - low) * (height - edge.top - edge.bottom);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height });
  for (const tick of ticks(low, high, 5)) {
    svg.append(make("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y(tick), y2: y(tick) }));
    svg.append(make("text", { x: edge.left - 8, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
  }
  for (const tick of ticks(left, right, width / 110)) {
    svg.append(make("text", { x: x(tick), y: height - edge.bottom + 18, "text-anchor": "middle" }, short(tick)));
  }
  const axis = view.axis === "step" ? "steps" : "seconds of training";
  svg.append(make("text", { x: (edge.left + width - edge.right) / 2, y: height - 4, "text-anchor": "middle" }, axis));
  const path = (curve) => curve.map((point, i) => `${i ? "L" : "M"}${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)}`).join("");
  for (const { splits, index, ...group } of groups) {
    const layer = make("g", { class: "group", "data-group": index, style: paint(group) });
    for (const split of view.train ? ["train", "validation"] : ["validation"]) {
      const { seeds, mean } = splits[split];
      const thin = seeds.length > 1 || !mean.length ? seeds : [];
      for (const seed of thin) layer.append(make("path", { class: `seed ${split}`, d: path(seed) }));
      layer.append(make("path", { class: split, d: path(mean) }));
      if (split === "validation" && mean.length <= 30) {
        for (const point of mean) layer.append(make("circle", { cx: x(point.x), cy: y(point.y), r: 3 }));
      }
    }
    svg.append(layer);
  }
  $("chart").append(svg, make("div", { id: "tip", hidden: "" }));
  shown = { groups, svg, x, y, width, place: { edge, height } };
  mark();
}

const seen = ({ splits }) => splits.validation.mean.length ? splits.validation.mean : splits.train.mean;

// Shows the values at `view.at`, and the group `view.group` above all others.
function mark() {
  for (const row of document.querySelectorAll("#results tr[data-group]")) row.classList.toggle("lit", +row.dataset.group === view.group);
  if (!shown.svg) return;
  const { svg, groups, x, width, place: { edge, height } } = shown;
  svg.classList.toggle("lit", groups.some(({ index }) => index === view.group));
  for (const layer of svg.querySelectorAll(".group")) layer.classList.toggle("lit", +layer.dataset.group === view.group);
  svg.querySelector(".cursor")?.remove();
  $("tip").hidden = view.at === null;
  if (view.at === null) return;
  svg.append(make("line", { class: "cursor", x1: x(view.at), x2: x(view.at), y1: edge.top, y2: height - edge.bottom }));
  const lines = groups.filter((group) => seen(group).length).map((group) => ({ group, ...nearest(seen(group), view.at) }));
  lines.sort((a, b) => b.y - a.y);
  const title = view.axis === "step" ? `step ${short(view.at)}` : `${short(view.at)} s`;
  const rows = lines.map(({ group, y }) => make("div", { class: group.index === view.group ? "lit" : "" }, swatch(group), `${short(y)}  ${group.label}`));
  const most = width < 500 ? 6 : 14, first = Math.max(0, Math.min(rows.length - most, lines.findIndex(({ group }) => group.index === view.group) - most / 2));
  $("tip").replaceChildren(make("div", { class: "soft" }, title), ...rows.slice(first, first + most));
  const right = x(view.at) < width / 2;
  Object.assign($("tip").style, { left: right ? `${x(view.at) + 14}px` : "auto", right: right ? "auto" : `${width - x(view.at) + 14}px` });
}

function nearest(curve, at) {
  return curve.reduce((best, point) => Math.abs(point.x - at) < Math.abs(best.x - at) ? point : best);
}

function look(event) {
  if (!shown.svg) return;
  const box = $("chart").getBoundingClientRect();
  const groups = shown.groups.filter((group) => seen(group).length);
  if (!groups.length) return;
  const [px, py] = [event.clientX - box.left, event.clientY - box.top];
  const at = groups.flatMap(seen).reduce((best, point) => Math.abs(shown.x(point.x) - px) < Math.abs(shown.x(best.x) - px) ? point : best).x;
  const distance = (group) => Math.abs(shown.y(nearest(seen(group), at).y) - py);
  Object.assign(view, { at, group: groups.reduce((best, group) => distance(group) < distance(best) ? group : best).index });
  mark();
}

function leave() { Object.assign(view, { at: null, group: null }); mark(); }

function move(event) {
  const groups = shown.groups.filter((group) => seen(group).length);
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (event.key === "Escape") leave();
  if (!ways || !groups.length) return;
  event.preventDefault();
  const place = groups.findIndex(({ index }) => index === view.group);
  const group = groups[place < 0 ? 0 : (place + ways[1] + groups.length) % groups.length];
  const curve = seen(group);
  const now = view.at === null ? -1 : curve.indexOf(nearest(curve, view.at));
  const point = curve[now < 0 ? curve.length - 1 : Math.max(0, Math.min(curve.length - 1, now + ways[0]))];
  Object.assign(view, { at: point.x, group: group.index });
  mark();
  $("status").textContent = `${group.label}, ${view.axis} ${short(point.x)}: ${short(point.y)}`;
}

if (data.metrics.length) {
  choice("metric", "metric", data.metrics.map(({ name, title }) => [name, title]));
  choice("axis", "against", [["step", "steps"], ["seconds", "seconds of training"]]);
  const train = make("input", { type: "checkbox", checked: "" });
  train.addEventListener("change", () => { view.train = train.checked; draw(); });
  $("choices").append(make("label", { class: "check" }, train, "training data"));
  data.groups.forEach((group, index) => {
    const button = make("button", { type: "button", "aria-pressed": true }, swatch(group), group.label);
    button.addEventListener("click", () => {
      view.hidden.has(index) ? view.hidden.delete(index) : view.hidden.add(index);
      button.setAttribute("aria-pressed", !view.hidden.has(index));
      draw();
    });
    $("legend").append(button);
  });
  for (const [area, selector] of [["results", "tr"], ["legend", "button"]]) {
    $(area).addEventListener("pointerover", (event) => {
      const element = event.target.closest(selector);
      view.group = area === "legend" ? [...$(area).children].indexOf(element) : +(element?.dataset.group ?? -1);
      mark();
    });
    $(area).addEventListener("pointerleave", leave);
  }
  $("chart").addEventListener("pointermove", look);
  $("chart").addEventListener("pointerdown", look);
  $("chart").addEventListener("pointerleave", leave);
  $("chart").addEventListener("blur", leave);
  $("chart").addEventListener("keydown", move);
  let width = 0;
  new ResizeObserver(() => { if ($("chart").clientWidth !== width) { width = $("chart").clientWidth; draw(); } }).observe($("chart"));
} else {
  $("training").hidden = true;
}
