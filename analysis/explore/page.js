"use strict";
// A map is a matrix of weights: where its bytes start, the weight of a step, and whether they have signs. The maps of a
// layer are its heads, their mean and, in self-attention, the rollout up to the layer.
const data = JSON.parse(document.getElementById("data").textContent);
const state = {example: 0, stack: 0, runs: [0], heads: [], way: "row", token: 0, cell: 0, order: "", common: false, uniform: false};
let bytes, signedBytes, panels = [], hovered = null, palette, finding = innerWidth > 700;

const $ = (id) => document.getElementById(id);
const range = (n) => [...Array(n).keys()];
const make = (tag, attributes = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children);
  return element;
};
const number = (x) => (Math.abs(x) >= 0.0995 ? x.toFixed(2) : x.toFixed(3)).replace("-", "−");
const shown = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f]/g, "□") || "∅";
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

async function unpack() {
  const packed = Uint8Array.from(atob($("weights").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  signedBytes = new Int8Array(bytes.buffer);
}

const at = (map, place) => (map.signed ? signedBytes : bytes)[map.at + place] * map.step;
const most = (map) => map.step * (map.signed ? 127 : 255);

// What is shown of a map: its weights, or how far each is from the same weight for all keys, as a multiple of that.
function seen(stack, map, place) {
  if (!state.uniform) return at(map, place);
  const keys = stack.columns.length, row = Math.floor(place / keys);
  if (!stack.causal) return at(map, place) * keys - 1;
  return place % keys > row ? 0 : at(map, place) * (row + 1) - 1;
}

function greatest(stack, map) {
  if (!state.uniform) return most(map);
  const farthest = () => range(stack.rows.length * stack.columns.length).reduce((far, place) => Math.max(far, Math.abs(seen(stack, map, place))), 0);
  return (map.farthest ??= farthest() || 1);
}

const amount = (x) => (state.uniform ? `${(x + 1).toFixed(2)}×`.replace("-", "−") : number(x));

// Colours: from paper over a middle tone to the end, by the square root of the weight's share of the scale.
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
  palette = {zero: rgb("--zero"), plus: [rgb("--plus-mid"), rgb("--plus")], minus: [rgb("--minus-mid"), rgb("--minus")],
    ink: style.getPropertyValue("--ink"), soft: style.getPropertyValue("--soft"), accent: style.getPropertyValue("--accent")};
  palette.pixels = range(511).map((step) => {
    const [r, g, b] = colour((step - 255) / 255);
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}

function colour(share) {
  const [middle, end] = share < 0 ? palette.minus : palette.plus;
  const t = Math.sqrt(Math.min(1, Math.abs(share)));
  const [a, b, u] = t < 0.5 ? [palette.zero, middle, 2 * t] : [middle, end, 2 * t - 1];
  return a.map((x, i) => Math.round(x + (b[i] - x) * u));
}

const css = (share) => `rgb(${colour(share).join(" ")})`;
const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#16181c" : "#ffffff");

// A canvas of some values of a map, a pixel each; `places` are where they stand in it.
function bitmap(stack, map, scale, width, height, places = (pixel) => pixel) {
  const canvas = make("canvas", {width, height, className: width > 48 ? "" : "coarse"}), context = canvas.getContext("2d");
  const image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
  for (let pixel = 0; pixel < pixels.length; pixel++) {
    pixels[pixel] = palette.pixels[255 + Math.round(255 * clamp(seen(stack, map, places(pixel)) / scale, -1, 1))];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// The state of the page and its address.
function remember() {
  const words = new URLSearchParams({example: state.example, stack: state.stack, runs: state.runs.join(","),
    heads: state.heads.slice(0, data.gallery ? 1 : 2).map((head) => head.join(".")).join(","), [state.way]: state.token});
  if (state.order) words.set("order", state.order);
  if (state.common) words.set("common", 1);
  if (state.uniform) words.set("uniform", 1);
  history.replaceState(null, "", "#" + words);
}

function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const numbers = (name) => (words.get(name) ?? "").split(/[.,]/).map(Number);
  const index = (value, length) => (Number.isInteger(value) && value >= 0 && value < length ? value : 0);
  state.example = index(numbers("example")[0], data.examples.length);
  const some = words.has("runs") ? numbers("runs") : range(Math.min(2, data.runs.length));
  state.runs = data.gallery ? range(data.runs.length) : [...new Set(some.map((run) => index(run, data.runs.length)))].slice(0, 2);
  state.stack = index(numbers("stack")[0], stacks().length);
  const flat = numbers("heads");
  state.heads = state.runs.map((run, i) => {
    const {layers} = stackOf(run);
    const of = data.gallery ? 0 : 2 * i; // of a gallery, all show the same head
    const layer = words.has("heads") ? index(flat[of], layers.length) : layers.length - 1;
    const head = data.gallery && !words.has("heads") ? stackOf(run).heads : flat[of + 1];
    return [layer, index(head, layers[layer].maps.length)];
  });
  state.way = words.has("column") ? "column" : "row";
  const first = stackOf(state.runs[0]);
  const tokens = first[state.way + "s"].length;
  state.token = words.has(state.way) ? index(numbers(state.way)[0], tokens) : data.examples[state.example].image ? 0 : tokens - 1;
  state.order = patternsOf(state.runs).includes(words.get("order")) ? words.get("order") : "";
  state.common = words.has("common");
  state.uniform = words.has("uniform");
}

const exampleOf = (run) => data.runs[run].examples[state.example];
const stacks = () => exampleOf(state.runs[0]).stacks;
const stackOf = (run) => exampleOf(run).stacks[state.stack] ?? exampleOf(run).stacks[0];
const patternsOf = (runs) => [...new Set(runs.flatMap((run) => stackOf(run).layers.flatMap((layer) => Object.keys(layer.scores))))];
const focus = () => hovered ?? {way: state.way, token: state.token};

function change(changes) {
  Object.assign(state, changes);
  hovered = null;
  remember();
  recall();
  build();
}

function hold(way, token) {
  Object.assign(state, {way, token});
  hovered = null;
  remember();
  draw();
}

function hover(way, token, event, text) {
  if (event) tell(event, text);
  hovered = way && {way, token};
  draw();
}

function tell(event, text) {
  const tip = $("tip");
  tip.hidden = !text;
  tip.textContent = text ?? "";
  const {innerWidth, innerHeight} = window;
  tip.style.left = clamp(event.clientX + 14, 4, innerWidth - tip.offsetWidth - 4) + "px";
  tip.style.top = (event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - 10 - tip.offsetHeight : event.clientY + 18) + "px";
}

// Moves among elements of which one can be reached with Tab, by the arrow keys.
function arrows(container, selector, across, move) {
  container.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: across(), ArrowUp: -across(), Home: -Infinity, End: Infinity}[event.key];
    const all = [...container.querySelectorAll(selector)], here = all.indexOf(document.activeElement);
    if (step === undefined || here < 0) return;
    event.preventDefault();
    const to = all[Math.abs(step) === Infinity ? clamp(here + step, 0, all.length - 1) : all[here + step] ? here + step : here];
    to.focus();
    move(to);
  });
}

// The controls above.
function controls() {
  const select = (name, options, chosen, act) => {
    const box = make("select", {onchange: () => act(Number(box.value))},
      ...options.map((text, value) => make("option", {value, textContent: text, selected: value === chosen})));
    box.id = "choose-" + name.toLowerCase().replace(/ /g, "-");
    return make("label", {}, make("span", {textContent: name}), box);
  };
  const names = data.runs.map((run) => run.name);
  const parts = [select("Example", data.examples.map((example) => example.title), state.example, (example) => go({example}))];
  if (stacks().length > 1) parts.push(select("Attention", stacks().map((stack) => stack.name), state.stack, (stack) => go({stack})));
  if (data.gallery) {
    const {layers, heads} = stackOf(0), places = layers.flatMap((one, l) => one.maps.map((_, h) => [l, h]));
    parts.push(select("Shown", places.map(([l, h]) => nameOf(l, h, heads)), places.findIndex(([l, h]) => l === state.heads[0][0] && h === state.heads[0][1]),
      (place) => change({heads: state.runs.map(() => places[place])})));
  } else if (names.length > 1) {
    parts.push(select("Run", names, state.runs[0], (run) => go({runs: [run, ...state.runs.slice(1)]})));
    parts.push(select("Beside it", ["none", ...names], (state.runs[1] ?? -1) + 1,
      (run) => go({runs: run ? [state.runs[0], run - 1] : [state.runs[0]]})));
  }
  const orders = patternsOf(state.runs);
  if (!data.gallery) parts.push(select("Order of heads", ["layer and head", ...orders], orders.indexOf(state.order) + 1, (order) => change({order: orders[order - 1] ?? ""})));
  for (const [name, words] of [["common", "one colour scale for all heads"], ["uniform", "weight over uniform"]]) {
    const box = make("input", {type: "checkbox", id: `choose-${name}`, checked: state[name], onchange: () => change({[name]: box.checked})});
    parts.push(make("label", {className: "check"}, box, words));
  }
  $("controls").replaceChildren(...parts);
}

// Another example, stack or run starts with its own token.
function go(changes) {
  Object.assign(state, changes);
  const words = new URLSearchParams({example: state.example, stack: state.stack, runs: state.runs.join(",")});
  if (!changes.runs) words.set("heads", state.heads.slice(0, data.gallery ? 1 : 2).map((head) => head.join(".")).join(","));
  if (state.order) words.set("order", state.order);
  if (state.common) words.set("common", 1);
  if (state.uniform) words.set("uniform", 1);
  history.replaceState(null, "", "#" + words);
  recall();
  build();
}

function build() {
  const active = document.activeElement?.id;
  controls();
  panels = state.runs.map((run, slot) => panel(run, slot));
  $("runs").className = data.gallery ? "gallery" : panels.length === 1 ? "alone" : "both";
  const along = $("runs").scrollLeft;
  $("runs").replaceChildren(...panels.map((one) => one.element));
  $("runs").scrollLeft = along;
  if (active) $(active)?.focus();
  draw();
}

function draw() {
  for (const one of panels) one.draw();
}

const nameOf = (l, h, heads) => `layer ${l + 1} · ${h < heads ? `head ${h + 1}` : h === heads ? "mean of heads" : "rollout"}`;

// Everything about one run.
function panel(run, slot) {
  const stack = stackOf(run), example = data.examples[state.example];
  const [layer, head] = state.heads[slot], map = stack.layers[layer].maps[head];
  const {rows, columns} = stack, size = {row: rows.length, column: columns.length};
  const two = rows.some((text, i) => text !== columns[i]) || size.row !== size.column;
  const first = example.image ? size.column - example.grid[0] * example.grid[1] : 0;
  const name = (l, h) => nameOf(l, h, stack.heads);
  const word = (way, i) => (example.image ? (way === "row" ? rows : columns)[i] : `“${shown((way === "row" ? rows : columns)[i])}”`);
  const quoted = (way, i) => (!example.image ? "" : i < first ? "the " : "the patch in ") + word(way, i);
  const scaleOf = (one, l, h) => state.common && h <= stack.heads
    ? Math.max(...stack.layers.flatMap((x) => x.maps.slice(0, stack.heads).map((of) => greatest(stack, of)))) : greatest(stack, one);
  const scale = scaleOf(map, layer, head);
  const now = () => {
    const {way, token} = focus();
    return {way, token: clamp(token, 0, size[way] - 1)};
  };
  const other = (way) => (way === "row" ? "column" : "row");
  const place = ({way, token}, k) => (way === "row" ? token * size.column + k : k * size.column + token);
  const weights = (one, spot) => range(size[other(spot.way)]).map((k) => seen(stack, one, place(spot, k)));
  const said = (way, i, k, value) => way === "row" ? `${quoted("row", i)} looks at ${quoted("column", k)}: ${amount(value)}`
    : `${quoted("column", i)} is looked at by ${quoted("row", k)}: ${amount(value)}`;
  const pick = (l, h) => {
    state.heads[slot] = [l, h];
    change({});
  };
  const parts = {run, slot, stack, example, layer, head, map, size, two, first, name, quoted, scaleOf, scale, now, other, place, weights, said, pick, word};
  if (data.gallery) return card(parts);
  const overview = heads(parts), look = example.image ? pictures(parts) : text(parts), square = matrix(parts), table = strongest(parts);
  const {note: words, expected} = exampleOf(run), comment = make("p", {className: "soft", textContent: words});
  const note = words || expected.length ? [comment] : [];
  const element = make("section", {className: "run"},
    make("header", {}, make("h2", {textContent: data.runs[run].name}), make("span", {className: "model", textContent: data.runs[run].model})),
    make("div", {className: "parts"},
      make("div", {className: "overview"}, make("h3", {textContent: `All heads: ${stack.name}`}), overview.element, finder(parts)),
      make("div", {className: "detail"}, title(parts), ...note, look.element, legend(parts), make("div", {className: "pair"}, make("div", {}, square.element, make("p", {className: "caption", textContent: "rows look at columns"})), table.element))));
  element.setAttribute("aria-label", data.runs[run].name);
  return {element, draw: () => {
    for (const one of [overview, look, square, table]) one.draw();
    if (expected.length) comment.textContent = shown(expected[now().token]);
    if (slot === 0) $("status").textContent = `${name(layer, head)}: ${table.words()}`;
  }};
}

// One mechanism of a gallery: what one head sees, without the others.
function card(parts) {
  const {run, example} = parts, look = example.image ? pictures(parts) : text(parts), square = example.image ? null : matrix(parts);
  const element = make("section", {className: "run"}, make("h2", {textContent: data.runs[run].name}),
    make("p", {className: "soft", textContent: exampleOf(run).note}), look.element, legend(parts), ...(square ? [square.element] : []));
  element.setAttribute("aria-label", data.runs[run].name);
  return {element, draw: () => {
    look.draw();
    square?.draw();
  }};
}

function title({stack, layer, head, name, two}) {
  const bar = make("div", {className: "title"},
    make("h3", {}, `${name(layer, head)} `, make("span", {className: "soft", textContent: stack.layers[layer].name})));
  const ways = make("div", {className: "ways"}, ...[["row", "what it looks at"], ["column", "what looks at it"]].map(([way, words]) => {
    const button = make("button", {type: "button", textContent: words, id: `way-${way}`, onclick: () => change({way, token: focus().token})});
    button.setAttribute("aria-pressed", state.way === way);
    return button;
  }));
  if (!two) bar.append(ways);
  return bar;
}

// Small multiples: all layers and heads, by place or by how far they follow a pattern.
function heads({slot, stack, example, layer, head, size, first, name, scaleOf, now, place, pick}) {
  const count = stack.layers[0].maps.length, places = stack.layers.flatMap((_, l) => range(count).map((h) => [l, h]));
  const score = ([l, h]) => stack.layers[l].scores[state.order]?.[h] ?? 0;
  const ordered = state.order ? places.filter(([, h]) => h < stack.heads).sort((a, b) => score(b) - score(a)) : places;
  const across = state.order ? Math.min(count, 6) : count;
  const element = make("div", {className: "heads"});
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", "all heads");
  element.style.gridTemplateColumns = state.order ? `repeat(${across}, minmax(0, 1fr))` : `minmax(1.1rem, 2.2rem) repeat(${count}, minmax(0, 64px))`;
  const label = (text, more = "") => make("span", {className: `name ${more}`, textContent: text});
  if (!state.order) element.append(label(""), ...range(count).map((h) => label(h < stack.heads ? h + 1 : h === stack.heads ? "mean" : "roll")));
  const drawn = ordered.map(([l, h]) => {
    const one = stack.layers[l].maps[h], button = make("button", {type: "button", className: h < stack.heads ? "head" : "head summary",
      id: `head-${slot}-${l}-${h}`, tabIndex: l === layer && h === head ? 0 : -1, onclick: () => pick(l, h)});
    button.setAttribute("aria-pressed", l === layer && h === head);
    button.setAttribute("aria-label", `${name(l, h)}${state.order ? `, ${state.order} ${score([l, h]).toFixed(2)}` : ""}`);
    const facts = Object.entries(stack.layers[l].scores).map(([pattern, row]) => `${pattern} ${row[h]?.toFixed(2)}`).join("\n");
    button.onpointermove = (event) => tell(event, `${name(l, h)} · ${stack.layers[l].name}${h < stack.heads ? "\n" + facts : ""}`);
    button.onpointerleave = (event) => tell(event);
    if (!state.order && h === 0) element.append(label(l + 1, "layer"));
    element.append(button);
    return {one, button, l, h};
  });
  if (!ordered.some(([l, h]) => l === layer && h === head)) drawn[0].button.tabIndex = 0;
  arrows(element, ".head", () => across, (to) => to.click());
  const fill = ({one, button, l, h}) => {
    const scale = scaleOf(one, l, h), [height, width] = example.image ? example.grid : [size.row, size.column];
    const spot = now(), patch = (pixel) => place(spot, first + pixel);
    button.replaceChildren(bitmap(stack, one, scale, width, height, example.image ? patch : undefined));
    if (state.order) button.append(make("small", {textContent: `${l + 1}.${h + 1}  ${score([l, h]).toFixed(2)}`}));
  };
  drawn.forEach(fill);
  return {element, draw: () => example.image && drawn.forEach(fill)};
}

function finder({run, slot, stack, pick}) {
  const buttons = patternsOf([run]).map((pattern) => {
    const places = stack.layers.flatMap((one, l) => (one.scores[pattern] ?? []).map((score, h) => [score, l, h]));
    const [score, l, h] = places.reduce((a, b) => (b[0] > a[0] ? b : a));
    const button = make("button", {type: "button", id: `find-${slot}-${pattern}`, onclick: () => {
      state.order = pattern;
      pick(l, h);
    }}, pattern, make("small", {textContent: `layer ${l + 1} head ${h + 1}: ${score.toFixed(2)}`}), make("i"));
    button.lastChild.style.width = `${100 * score}%`;
    button.setAttribute("aria-pressed", state.order === pattern);
    return button;
  });
  const element = make("details", {open: finding, ontoggle: () => { finding = element.open; }}, make("summary", {textContent: "Find a head"}),
    make("p", {className: "soft", textContent: "The head that follows each pattern most: the share of its weight there, on this example."}),
    make("div", {className: "finder"}, ...buttons));
  return element;
}

// Text: tokens with the weights behind them, and arcs from the token in focus to those that it looks at.
function text({slot, stack, size, two, map, scale, now, other, weights, said}) {
  const element = make("div", {className: "text"}), lists = {};
  const names = stack.name.startsWith("target") ? {row: "target, as it is written", column: "source"} : {row: "writes", column: "reads"};
  for (const way of two ? ["column", "row"] : ["row"]) {
    const side = () => (two ? way : state.way), list = make("div", {className: "tokens"});
    lists[way] = stack[way + "s"].map((token, i) => {
      const button = make("button", {type: "button", className: "token", textContent: shown(token), id: `token-${slot}-${way}-${i}`, tabIndex: -1,
        onclick: () => hold(side(), i), onfocus: () => button.matches(":focus-visible") && hold(side(), i),
        onpointerenter: (event) => {
          const {way: from, token: held} = {way: state.way, token: clamp(state.token, 0, size[state.way] - 1)};
          const value = two && way === from ? null : weights(map, {way: from, token: held})[i];
          hover(side(), i, event, value === null || value === undefined ? "" : said(from, held, i, value));
        },
        onpointerleave: (event) => hover(null, 0, event)});
      list.append(button);
      if (token.includes("\n")) list.append(make("span", {className: "break"}));
      return button;
    });
    list.setAttribute("role", "group");
    list.setAttribute("aria-label", two ? names[way] : "tokens");
    arrows(list, ".token", () => Math.max(1, lists[way].filter((one) => one.offsetTop === lists[way][0].offsetTop).length), () => {});
    if (two) element.append(make("h4", {textContent: names[way]}));
    element.append(list);
  }
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.classList.add("arcs");
  svg.setAttribute("aria-hidden", "true");
  element.append(svg);
  return {element, draw: () => {
    const {way, token} = now(), values = weights(map, {way, token});
    const source = lists[two ? way : "row"], target = lists[two ? other(way) : "row"];
    for (const [side, list] of Object.entries(lists)) list.forEach((button, i) => {
      const share = list === target ? values[i] / scale : 0;
      button.style.background = share ? css(share) : "";
      button.style.color = share ? inkOn(colour(share)) : "";
      button.classList.toggle("now", list === source && i === token);
      button.tabIndex = i === (side === (two ? way : "row") ? token : 0) ? 0 : -1;
    });
    svg.replaceChildren(...arcsOf(element, source[token], target, state.uniform ? values.map((x) => Math.max(x, 0)) : values));
  }};
}

function arcsOf(element, from, target, values) {
  const box = element.getBoundingClientRect(), top = (button) => {
    const {left, width, top, bottom} = button.getBoundingClientRect();
    return {x: left + width / 2 - box.left, top: top - box.top, bottom: bottom - box.top};
  };
  const greatest = Math.max(...values.map(Math.abs)), a = top(from);
  const strong = range(values.length).filter((k) => Math.abs(values[k]) > 0.04 * greatest && target[k] !== from);
  return strong.sort((k, l) => Math.abs(values[l]) - Math.abs(values[k])).slice(0, 16).map((k) => {
    const b = top(target[k]), share = Math.abs(values[k]) / greatest, path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const apart = !target.includes(from), level = Math.abs(a.top - b.top) < 4;
    const lift = level ? clamp(7 + 0.06 * Math.abs(a.x - b.x), 8, 26) : 22;
    const [y, z] = apart ? (a.top > b.top ? [a.top, b.bottom] : [a.bottom, b.top]) : [a.top, b.top], half = (y + z) / 2;
    path.setAttribute("d", apart ? `M${a.x} ${y} C${a.x} ${half} ${b.x} ${half} ${b.x} ${z}` : `M${a.x} ${y} C${a.x} ${y - lift} ${b.x} ${z - lift} ${b.x} ${z}`);
    path.setAttribute("stroke", `rgb(${(values[k] < 0 ? palette.minus : palette.plus)[0].join(" ")})`);
    path.setAttribute("stroke-width", 0.8 + 2.6 * share);
    path.setAttribute("stroke-opacity", 0.18 + 0.6 * share);
    return path;
  });
}

// An image: its patches under the weights of the patch in focus, in the colours of the bar.
const OVER = 0.8; // of the colours; the rest is the image
function pictures({run, slot, example, map, first, scale, size, now, weights, said, quoted}) {
  const source = exampleOf(run).image, [high, wide] = example.grid, side = 300, plain = make("canvas", {width: source.width, height: source.height});
  const context = plain.getContext("2d"), pixels = context.createImageData(source.width, source.height);
  for (let place = 0; place < source.width * source.height; place++) {
    const channel = (c) => 255 * at(source, place * source.channels + Math.min(c, source.channels - 1));
    pixels.data.set([channel(0), channel(1), channel(2), 255], 4 * place);
  }
  context.putImageData(pixels, 0, 0);
  const ratio = source.height / source.width, screen = (label) => {
    const canvas = make("canvas", {width: 2 * side, height: Math.round(2 * side * ratio)});
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
    return canvas;
  };
  const paint = (canvas) => {
    const brush = canvas.getContext("2d");
    brush.imageSmoothingEnabled = source.width > 96;
    brush.drawImage(plain, 0, 0, canvas.width, canvas.height);
    return brush;
  };
  const input = screen("the input"), over = screen("weights over the image");
  over.tabIndex = 0;
  over.id = `picture-${slot}`;
  const patch = (event) => {
    const box = event.target.getBoundingClientRect();
    const cell = (x, length, count) => clamp(Math.floor(x / length * count), 0, count - 1);
    return first + cell(event.clientY - box.top, box.height, high) * wide + cell(event.clientX - box.left, box.width, wide);
  };
  for (const canvas of [input, over]) {
    canvas.onpointermove = (event) => {
      const to = patch(event), held = clamp(state.token, 0, size.row - 1);
      if (hovered?.token !== to) hover(state.way, to);
      tell(event, said(state.way, held, to, weights(map, {way: state.way, token: held})[to]));
    };
    canvas.onpointerleave = (event) => hover(null, 0, event);
    canvas.onclick = (event) => hold(state.way, patch(event));
  }
  over.onkeydown = (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide}[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const to = state.token + step;
    if (to >= 0 && to < size.row) hold(state.way, to);
    else if (to < 0) hold(state.way, 0);
  };
  const caption = make("figcaption"), element = make("div", {className: "pictures"},
    make("figure", {}, input, make("figcaption", {textContent: data.gallery ? "input" : "input: point at a patch, click to hold it"})), make("figure", {}, over, caption));
  if (first) {
    const button = make("button", {type: "button", id: `class-${slot}`, textContent: "class token", onclick: () => hold(state.way, 0)});
    button.style.padding = "4px 10px";
    element.firstChild.append(button);
  }
  return {element, draw: () => {
    const {way, token} = now(), values = weights(map, {way, token});
    for (const canvas of [input, over]) {
      const brush = paint(canvas), w = canvas.width / wide, h = canvas.height / high;
      if (canvas === over) {
        brush.globalAlpha = OVER;
        values.slice(first).forEach((value, place) => {
          brush.fillStyle = css(value / scale);
          brush.fillRect((place % wide) * w, Math.floor(place / wide) * h, w, h);
        });
        brush.globalAlpha = 1;
      }
      if (token < first) continue;
      brush.strokeStyle = "#fff";
      brush.lineWidth = 5;
      brush.strokeRect(((token - first) % wide) * w + 2.5, Math.floor((token - first) / wide) * h + 2.5, w - 5, h - 5);
    }
    caption.textContent = way === "row" ? `what ${quoted(way, token)} looks at` : `what looks at ${quoted(way, token)}`;
  }};
}

// The whole matrix, with the row or column in focus framed.
function matrix({slot, stack, example, layer, head, name, map, scale, size, now, quoted}) {
  const room = data.gallery ? 190 : window.innerWidth < 1050 ? window.innerWidth - 110 : state.runs.length > 1 ? 500 : 380;
  const cell = clamp(Math.floor(room / Math.max(size.row, size.column)), 2, 26), labelled = cell >= 9 && !example.image;
  const font = `${Math.min(13, cell)}px ui-monospace, Menlo, Consolas, monospace`, ruler = make("canvas").getContext("2d");
  ruler.font = font;
  const space = (texts) => (labelled ? Math.min(90, Math.max(...texts.map((one) => ruler.measureText(shown(one)).width)) + 8) : 2);
  const left = space(stack.rows), above = space(stack.columns), width = left + cell * size.column + 2, height = above + cell * size.row + 2;
  const ratio = window.devicePixelRatio || 1, element = make("canvas", {className: "matrix", width: width * ratio, height: height * ratio, tabIndex: 0, id: `matrix-${slot}`});
  element.style.width = `${width}px`;
  element.setAttribute("role", "img");
  const picture = bitmap(stack, map, scale, size.column, size.row);
  const place = (event) => {
    const box = element.getBoundingClientRect(), shrunk = width / box.width;
    const row = Math.floor(((event.clientY - box.top) * shrunk - above) / cell), column = Math.floor(((event.clientX - box.left) * shrunk - left) / cell);
    return row >= 0 && row < size.row && column >= 0 && column < size.column ? {row, column} : null;
  };
  const words = ({row, column}) => `${quoted("row", row)} looks at ${quoted("column", column)}: ${amount(seen(stack, map, row * size.column + column))}`;
  element.onpointermove = (event) => {
    const spot = place(event);
    tell(event, spot ? words(spot) : "");
    if (spot && (hovered?.token !== spot[state.way] || hovered?.way !== state.way)) hover(state.way, spot[state.way]);
  };
  element.onpointerleave = (event) => hover(null, 0, event);
  element.onclick = (event) => place(event) && hold(state.way, place(event)[state.way]);
  element.onkeydown = (event) => {
    const [way, step] = {ArrowDown: ["row", 1], ArrowUp: ["row", -1], ArrowRight: ["column", 1], ArrowLeft: ["column", -1]}[event.key] ?? [];
    if (!way) return;
    event.preventDefault();
    const from = state.way === way ? state.token : state.cell;
    const to = clamp(from + step, 0, size[way] - 1);
    if (state.way === way) hold(way, to);
    else Object.assign(state, {cell: to});
    const spot = {[state.way]: state.token, [way === state.way ? (way === "row" ? "column" : "row") : way]: way === state.way ? state.cell : to};
    const box = element.getBoundingClientRect();
    tell({clientX: box.left + left + cell * spot.column, clientY: box.top + above + cell * spot.row}, words(spot));
    $("status").textContent = words(spot);
  };
  element.onblur = (event) => tell({clientX: 0, clientY: 0});
  return {element, draw: () => {
    const {way, token} = now(), brush = element.getContext("2d");
    brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    brush.clearRect(0, 0, width, height);
    brush.imageSmoothingEnabled = false;
    brush.drawImage(picture, left, above, cell * size.column, cell * size.row);
    if (labelled) {
      brush.font = font;
      brush.textBaseline = "middle";
      const write = (texts, side, put) => texts.forEach((one, i) => {
        brush.fillStyle = side === way && i === token ? palette.accent : palette.soft;
        put(shown(one), i);
      });
      brush.textAlign = "right";
      write(stack.rows, "row", (one, i) => brush.fillText(one, left - 4, above + cell * (i + 0.5), left - 4));
      brush.textAlign = "left";
      write(stack.columns, "column", (one, i) => {
        brush.save();
        brush.translate(left + cell * (i + 0.5), above - 4);
        if (one.length > 1) brush.rotate(-Math.PI / 2);
        else brush.textAlign = "center";
        brush.fillText(one, 0, one.length > 1 ? 0 : -4, above - 4);
        brush.restore();
      });
    }
    brush.strokeStyle = palette.accent;
    brush.lineWidth = 2;
    if (way === "row") brush.strokeRect(left - 1, above + cell * token - 1, cell * size.column + 2, cell + 2);
    else brush.strokeRect(left + cell * token - 1, above - 1, cell + 2, cell * size.row + 2);
    element.setAttribute("aria-label", `weights of ${name(layer, head)}, ${size.row} by ${size.column}; ${quoted(way, token)} in focus`);
  }};
}

function legend({map, scale}) {
  const low = map.signed ? -1 : state.uniform ? -Math.min(1, 1 / scale) : 0; // no weight is less than 0
  const few = low ? [low, 0, 1] : [0, 1 / 4, 1], many = low ? [low, ...(low < -0.7 ? [-0.25] : []), 0, 0.25, 1] : [0, 1 / 16, 1 / 4, 9 / 16, 1];
  const root = (share) => Math.sign(share) * Math.sqrt(Math.abs(share)), place = (share) => (100 * (root(share) - root(low))) / (1 - root(low));
  const bar = make("div", {className: "bar"}), marks = make("div", {className: "ticks"});
  const stops = range(33).map((i) => root(low) + (i / 32) * (1 - root(low))).map((at) => css(Math.sign(at) * at * at));
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  for (const share of data.gallery ? few : many) {
    const mark = make("span", {textContent: amount(share * scale)});
    mark.style.left = `${place(share)}%`;
    marks.append(mark);
  }
  return make("div", {className: "legend"}, bar, marks, state.uniform ? "weight over uniform; below 1× in blue" : map.signed ? "weight; below 0 in blue" : "weight");
}

function strongest({map, scale, now, other, weights, quoted, word}) {
  const element = make("table"), top = () => {
    const spot = now(), values = weights(map, spot);
    const size = (x) => (state.uniform ? x + 1 : Math.abs(x)); // of a weight that is shown as more or less than uniform
    const order = range(values.length).filter((k) => values[k]).sort((a, b) => size(values[b]) - size(values[a])).slice(0, 8);
    return {...spot, rest: order.map((k) => [word(other(spot.way), k), values[k]]), sum: values.reduce((a, b) => a + b, 0)};
  };
  const heading = ({way, token}) => (way === "row" ? `${quoted(way, token)} looks most at` : `${quoted(way, token)} is looked at most by`);
  return {element, words: () => {
    const found = top();
    return `${heading(found)} ${found.rest.slice(0, 3).map(([text, value]) => `${text} ${amount(value)}`).join(", ") || "nothing"}`;
  }, draw: () => {
    const found = top(), body = make("tbody", {}, ...found.rest.map(([text, value]) => {
      const bar = make("i");
      bar.style.width = `${100 * Math.min(1, Math.abs(value) / scale)}%`;
      bar.style.background = `rgb(${(value < 0 ? palette.minus : palette.plus)[0].join(" ")})`;
      return make("tr", {}, make("td", {textContent: text}), make("td", {textContent: amount(value)}), make("td", {}, bar));
    }));
    if (!state.uniform) body.append(make("tr", {}, make("td", {className: "soft", textContent: "all together"}), make("td", {className: "soft", textContent: number(found.sum)}), make("td")));
    element.replaceChildren(make("caption", {textContent: heading(found)}), body);
  }};
}

unpack().then(() => {
  readPalette();
  recall();
  build();
  addEventListener("hashchange", () => { recall(); build(); });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width !== innerWidth) build();
    width = innerWidth;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readPalette(); build(); });
});
