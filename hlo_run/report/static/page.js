"use strict";
// Draws the parts of the page when they come into view. Every text of the input is set as text, never as markup.

function made(tag, words, css) {
  const node = document.createElement(tag);
  if (words !== undefined) node.textContent = words;
  if (css) node.className = css;
  return node;
}

// An <svg> made by the HTML parser has the namespace that its children need.
const svgParser = document.createElement("template");
svgParser.innerHTML = "<svg></svg>";
const SVG = svgParser.content.firstChild.namespaceURI;

function drawn(tag, attributes, words) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  if (words !== undefined) node.textContent = words;
  return node;
}

function titled(node, words) {
  node.append(drawn("title", {}, words));
  return node;
}

// Unpacks the data called `name` in a part of the page: base64 of deflated JSON.
async function data(part, name) {
  const source = part.querySelector(`script[data-name="${name}"]`);
  if (!source) return null;
  const bytes = Uint8Array.from(atob(source.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function short(words, most) {
  return words.length > most ? words.slice(0, most - 1) + "\u2026" : words;
}

function grouped(number) {
  return Number(number).toLocaleString("en-US");
}

// ---- passes: a diff side by side

function passes(part) {
  part.querySelector(".all-passes").addEventListener("change", (event) => {
    part.querySelector(".passes").classList.toggle("all", event.target.checked);
  });
  part.addEventListener("click", (event) => {
    const button = event.target.closest("[data-diff]");
    const span = event.target.closest(".strip [data-run]");
    if (button) showDiff(part, button.dataset.diff);
    else if (span) showDiff(part, span.dataset.run);
  });
}

async function showDiff(part, number) {
  const diff = await data(part, `diff-${number}`);
  if (!diff) return;
  for (const button of part.querySelectorAll("[data-diff]")) button.classList.toggle("chosen", button.dataset.diff === number);
  const name = part.querySelector(`[data-diff="${number}"]`).textContent;
  const table = made("table");
  const columns = made("colgroup");
  for (const css of ["n", "", "n", ""]) columns.append(made("col", undefined, css));
  table.append(columns);
  let old = 0;
  for (const [first, second, gone, come, above] of diff.changes) {
    const hidden = first - above.length - old;
    if (hidden > 0) {
      const gap = made("tr", undefined, "gap");
      const cell = made("td", `${hidden} equal lines`);
      cell.colSpan = 4;
      gap.append(cell);
      table.append(gap);
    }
    above.forEach((words, row) => {
      const line = made("tr");
      for (const begin of [first, second]) line.append(made("td", String(begin - above.length + row + 1)), made("td", words));
      table.append(line);
    });
    for (let row = 0; row < Math.max(gone.length, come.length); row++) {
      const line = made("tr");
      const sides = [[gone, first, "gone"], [come, second, "come"]];
      for (const [lines, begin, css] of sides) {
        const has = row < lines.length;
        line.append(made("td", has ? String(begin + row + 1) : ""), made("td", has ? lines[row] : "", has ? css : ""));
      }
      table.append(line);
    }
    old = first + gone.length;
  }
  const place = part.querySelector(".diff");
  const scroll = made("div", undefined, "scroll");
  scroll.append(table);
  place.replaceChildren(made("h3", `Pass ${number}, ${name}: before and after`), scroll);
  if (diff.left_out) place.append(made("p", `${grouped(diff.left_out)} more changed lines are left out.`));
}

// ---- graphs: only boxes in view are drawn one by one

const [WIDTH, HEIGHT, STEP_X, STEP_Y] = [190, 60, 208, 98];

async function graphs(part) {
  const both = await data(part, "graphs");
  for (const side of part.querySelectorAll(".graph")) {
    const found = both[side.dataset.side];
    if (!found.length) continue;
    if (found.length > 1) {
      const choice = made("select");
      found.forEach((graph, number) => choice.append(new Option(graph.name, number)));
      choice.addEventListener("change", () => new Graph(side, found[choice.value], part));
      side.append(choice);
    }
    new Graph(side, found[0], part);
  }
}

class Graph {
  constructor(side, graph, part) {
    for (const old of side.querySelectorAll("svg, .about")) old.remove();
    this.part = part;
    this.nodes = graph.nodes.map(([name, opcode, shape, label, operands, layer, column, emitter, bytes, ms, kernel]) => ({
      name, opcode, shape, label, operands, emitter, bytes, ms, kernel, x: column * STEP_X, y: layer * STEP_Y,
    }));
    this.svg = drawn("svg", { role: "img", "aria-label": `graph of ${graph.name}` });
    this.group = drawn("g");
    this.svg.append(this.group);
    this.about = made("div", "", "about");
    side.append(this.svg, this.about);
    const right = Math.max(...this.nodes.map((node) => node.x)) + WIDTH;
    const bottom = Math.max(...this.nodes.map((node) => node.y)) + HEIGHT;
    const size = this.svg.getBoundingClientRect();
    this.scale = Math.max(0.02, Math.min(1, size.width / (right + 40), Math.max(size.height / (bottom + 40), 0.35)));
    this.left = (size.width - right * this.scale) / 2;
    this.top = 12;
    this.listen();
    this.draw();
  }

  listen() {
    let from = null;
    let moved = 0;
    this.svg.addEventListener("pointerdown", (event) => {
      from = event;
      moved = 0;
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from) return;
      moved += Math.abs(event.clientX - from.clientX) + Math.abs(event.clientY - from.clientY);
      this.left += event.clientX - from.clientX;
      this.top += event.clientY - from.clientY;
      from = event;
      this.later();
    });
    this.svg.addEventListener("pointerup", (event) => {
      from = null;
      if (moved < 4) this.choose(event);
    });
    this.svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = this.svg.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      const scale = Math.min(3, Math.max(0.01, this.scale * Math.exp(-event.deltaY / 400)));
      this.left = x - (x - this.left) * (scale / this.scale);
      this.top = y - (y - this.top) * (scale / this.scale);
      this.scale = scale;
      this.later();
    }, { passive: false });
  }

  later() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.draw();
    });
  }

  choose(event) {
    const box = this.svg.getBoundingClientRect();
    const x = (event.clientX - box.left - this.left) / this.scale;
    const y = (event.clientY - box.top - this.top) / this.scale;
    const node = this.nodes.find((one) => x >= one.x && x <= one.x + WIDTH && y >= one.y && y <= one.y + HEIGHT);
    this.chosen = node;
    this.draw();
    if (!node) return;
    const facts = [`${node.name} = ${node.shape} ${node.opcode}`, node.label, node.emitter && `emitter ${node.emitter}`];
    if (node.bytes) facts.push(`${grouped(node.bytes)} bytes`);
    if (node.ms !== null) facts.push(`${node.ms} ms`);
    if (node.operands.length) facts.push("operands " + node.operands.map((number) => this.nodes[number].name).join(", "));
    this.about.textContent = facts.filter(Boolean).join("; ");
    if (node.kernel !== null) showKernel(this.part.parentNode.querySelector('[data-part="kernels"]'), String(node.kernel));
  }

  kind(node) {
    if (node.emitter || node.kernel !== null) return "kernel";
    if (node.opcode === "parameter" || node.opcode === "constant") return "input";
    return ["custom-call", "while", "conditional", "call"].includes(node.opcode) ? "call" : "plain";
  }

  draw() {
    const size = this.svg.getBoundingClientRect();
    const [x0, y0] = [-this.left / this.scale - WIDTH, -this.top / this.scale - HEIGHT];
    const [x1, y1] = [(size.width - this.left) / this.scale, (size.height - this.top) / this.scale];
    const inView = (node) => node.x >= x0 && node.x <= x1 && node.y >= y0 && node.y <= y1;
    const shown = this.nodes.filter(inView);
    const lines = [];
    for (const node of this.nodes) {
      for (const number of node.operands) {
        const source = this.nodes[number];
        if (Math.max(node.x, source.x) < x0 || Math.min(node.x, source.x) > x1 || node.y < y0 || source.y > y1) continue;
        const [a, b, c, d] = [source.x + WIDTH / 2, source.y + HEIGHT, node.x + WIDTH / 2, node.y];
        lines.push(`M${a} ${b}C${a} ${b + 26} ${c} ${d - 26} ${c} ${d}`);
      }
    }
    const parts = [drawn("path", { class: "edge", d: lines.join("") })];
    if (this.scale > 0.28 && shown.length <= 800) {
      for (const node of shown) parts.push(this.box(node));
    } else {
      const paths = {};
      for (const node of shown) (paths[this.kind(node)] ||= []).push(`M${node.x} ${node.y}h${WIDTH}v${HEIGHT}h-${WIDTH}z`);
      for (const [kind, d] of Object.entries(paths)) parts.push(drawn("path", { class: `box ${kind}`, d: d.join("") }));
    }
    this.group.setAttribute("transform", `translate(${this.left} ${this.top}) scale(${this.scale})`);
    this.group.replaceChildren(...parts);
  }

  box(node) {
    const group = drawn("g", { transform: `translate(${node.x} ${node.y})`, class: "node" });
    const css = `box ${this.kind(node)}${node === this.chosen ? " chosen" : ""}`;
    const costs = [];
    if (node.bytes) costs.push(`${grouped(node.bytes)} bytes`);
    if (node.ms !== null) costs.push(`${node.ms} ms`);
    group.append(
      drawn("rect", { width: WIDTH, height: HEIGHT, rx: 4, class: css }),
      drawn("text", { x: 6, y: 16 }, short(node.name, 25)),
      drawn("text", { x: 6, y: 34 }, short(this.kind(node) === "kernel" ? `${node.emitter || node.opcode} kernel` : node.label || node.opcode, 25)),
      drawn("text", { x: 6, y: 52 }, short(costs.join(", ") || node.shape, 29)),
    );
    return titled(group, `${node.name} = ${node.shape} ${node.opcode} ${node.label}`);
  }
}

// ---- kernels: four texts whose lines belong together

function kernels(part) {
  part.addEventListener("click", (event) => {
    const button = event.target.closest("[data-kernel]");
    if (button) showKernel(part, button.dataset.kernel);
  });
  showKernel(part, "0");
}

async function showKernel(part, number) {
  if (!part) return;
  const kernel = await data(part, `kernel-${number}`);
  for (const button of part.querySelectorAll("[data-kernel]")) button.classList.toggle("chosen", button.dataset.kernel === number);
  const panes = made("div", undefined, "panes");
  for (const pane of kernel.panes) {
    const place = made("div", undefined, "pane");
    const lines = made("div", undefined, "lines");
    pane.lines.forEach((line, row) => {
      const element = made("div", line || " ");
      element.dataset.op = pane.ops[row];
      element.dataset.place = pane.places[row];
      lines.append(element);
    });
    if (!pane.lines.length) lines.append(made("p", "This text was not recorded."));
    place.append(made("h3", pane.title), lines);
    panes.append(place);
  }
  let held = false;
  const mark = (line, scrolls) => {
    for (const old of panes.querySelectorAll(".op, .place")) old.classList.remove("op", "place");
    if (!line || line.dataset.op === "-1") return;
    for (const other of panes.querySelectorAll(`.lines [data-op="${line.dataset.op}"]`)) {
      other.classList.add(other.dataset.place === line.dataset.place && line.dataset.place !== "-1" ? "place" : "op");
    }
    if (!scrolls) return;
    for (const lines of panes.querySelectorAll(".lines")) {
      const first = lines.querySelector(".place") || lines.querySelector(".op");
      if (first && !lines.contains(line)) lines.scrollTop = first.offsetTop - lines.clientHeight / 3;
    }
  };
  panes.addEventListener("mouseover", (event) => held || mark(event.target.closest(".lines [data-op]"), false));
  panes.addEventListener("click", (event) => {
    const line = event.target.closest(".lines [data-op]");
    held = Boolean(line && line.dataset.op !== "-1");
    mark(line, true);
  });
  const notes = kernel.notes.map(([title, words]) => made("pre", `${title}\n${words}`));
  const help = made("p", "Light lines come from the same HLO instruction, dark lines from the same op of the LLVM dialect. " +
    "A click keeps the colour and moves the other texts there. Debug metadata and directives are left out.");
  part.querySelector(".texts").replaceChildren(made("h3", kernel.name), help, panes, ...notes);
}

// ---- memory: live bytes over the schedule, and the place of each value

async function memory(part) {
  const chart = await data(part, "memory");
  const [width, top, bottom, gap] = [1000, 160, 260, 26];
  const steps = Math.max(1, chart.schedule.length + 1);
  const x = (time) => (time / steps) * width;
  const most = Math.max(1, ...chart.live);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${top + gap + bottom}`, preserveAspectRatio: "none", style: "height:446px" });
  let path = `M0 ${top}`;
  chart.live.forEach((bytes, time) => { path += `L${x(time)} ${top - (bytes / most) * (top - 8)}H${x(time + 1)}`; });
  svg.append(drawn("path", { class: "live", d: `${path}V${top}Z` }));
  const peak = chart.live.indexOf(Math.max(...chart.live));
  svg.append(drawn("line", { class: "peak", x1: x(peak + 0.5), x2: x(peak + 0.5), y1: 0, y2: top + gap + bottom }));
  const bases = {};
  let total = 0;
  for (const [allocation, bytes] of chart.allocations) {
    bases[allocation] = total;
    total += bytes;
  }
  const y = (bytes) => top + gap + (bytes / Math.max(1, total)) * bottom;
  for (const [name, shape, kind, allocation, offset, size, first, last] of chart.boxes) {
    const begin = bases[allocation] + offset;
    const box = drawn("rect", { class: `k${kind}`, x: x(first), y: y(begin), width: x(last - first + 1), height: y(begin + size) - y(begin) });
    svg.append(titled(box, `${name} ${shape}, ${chart.kinds[kind]}\nallocation ${allocation}, ${grouped(offset)} + ${grouped(size)} bytes\n` +
      `from ${chart.schedule[first] || first} to ${chart.schedule[last] || "the end"}`));
  }
  const legend = made("p", undefined, "legend");
  chart.kinds.forEach((kind, number) => legend.append(swatch(number), made("span", ` ${kind}`)));
  const place = part.querySelector(".chart");
  place.replaceChildren(
    made("p", `Above: bytes of live values over the schedule of ${steps - 1} instructions, at most ${grouped(most)}. ` +
      `Below: allocations one after another, ${grouped(total)} bytes; a box is a value.`),
    svg, legend);
  if (chart.left_out) place.append(made("p", `${grouped(chart.left_out)} values with the smallest boxes are left out.`));
}

function swatch(number) {
  const svg = drawn("svg", { viewBox: "0 0 12 12" });
  svg.append(drawn("rect", { class: `k${number % 6}`, width: 12, height: 12 }));
  return svg;
}

// ---- differences: heat maps

function differences(part) {
  for (const place of part.querySelectorAll(".chart")) heat(part, place);
}

async function heat(part, place) {
  const arrays = await data(part, place.dataset.source);
  place.replaceChildren();
  for (const array of arrays) {
    const shown = made("div");
    const head = made("p", `Array {${array.index.join(",")}} ${array.shape}: `);
    const choice = made("select");
    array.maps.forEach((map, number) => {
      const words = map.rows < 0 ? `dimension ${map.columns}` : `dimensions ${map.rows} (down) and ${map.columns} (across)`;
      choice.append(new Option(words, number));
    });
    choice.addEventListener("change", () => shown.replaceChildren(heatMap(array.maps[choice.value])));
    if (array.maps.length) shown.append(heatMap(array.maps[0]));
    if (array.maps.length > 1) head.append(choice);
    else if (array.maps.length) head.append(choice.options[0].textContent);
    place.append(head, shown);
  }
}

function heatMap(map) {
  const side = Math.max(6, Math.min(16, 640 / map.counts[0].length));
  const [width, height] = [map.counts[0].length * side, map.counts.length * side];
  const svg = drawn("svg", { viewBox: `-1 -1 ${width + 2} ${height + 2}`, style: `width:${width + 2}px;max-width:100%` });
  svg.append(drawn("rect", { class: "frame", width, height }));
  map.counts.forEach((row, down) => row.forEach((count, across) => {
    if (!count) return;
    const [r0, c0] = [down * map.row_size, across * map.column_size];
    const [r1, c1] = [Math.min(map.height, r0 + map.row_size), Math.min(map.width, c0 + map.column_size)];
    const whole = (r1 - r0) * (c1 - c0) * map.elements;
    const share = count / whole;
    const box = drawn("rect", { x: across * side, y: down * side, width: side, height: side, fill: `hsl(${50 - 50 * share} 90% ${75 - 35 * share}%)` });
    const range = (name, first, end) => `${name} ${first}${end - first > 1 ? `..${end - 1}` : ""}`;
    const where = (map.rows < 0 ? "" : range(`dimension ${map.rows}:`, r0, r1) + ", ") + range(`dimension ${map.columns}:`, c0, c1);
    svg.append(titled(box, `${where}\n${grouped(count)} of ${grouped(whole)} elements differ`));
  }));
  return svg;
}

// ---- profile: the thunks of the last run over time

async function profile(part) {
  const chart = await data(part, "profile");
  const end = Math.max(1, ...chart.events.map(([, , begin, time]) => begin + time));
  const depth = Math.max(0, ...chart.events.map((event) => event[4])) + 1;
  const kinds = [...new Set(chart.events.map((event) => event[1]))];
  const svg = drawn("svg", { viewBox: `0 0 1000 ${depth * 28}`, preserveAspectRatio: "none", style: `height:${depth * 28}px` });
  for (const [name, kind, begin, time, level] of chart.events) {
    const box = drawn("rect", {
      class: `k${kinds.indexOf(kind) % 6}`, x: (begin / end) * 1000, y: level * 28 + 2, width: Math.max(0.3, (time / end) * 1000), height: 24,
    });
    svg.append(titled(box, `${name}, ${kind}\nfrom ${begin} us, ${time} us`));
  }
  const wide = made("div", undefined, "wide");
  wide.append(svg);
  const zoom = made("input");
  Object.assign(zoom, { type: "range", min: 1, max: 40, value: 1, step: 0.5 });
  zoom.addEventListener("input", () => { svg.style.width = `${zoom.value * 100}%`; });
  const label = made("label", "zoom ");
  label.append(zoom);
  const legend = made("p", undefined, "legend");
  kinds.forEach((kind, number) => legend.append(swatch(number), made("span", ` ${kind}`)));
  const place = part.querySelector(".chart");
  place.replaceChildren(made("p", `Run ${chart.run}, ${(end / 1000).toFixed(3)} ms.`), label, wide, legend);
  if (chart.left_out) place.append(made("p", `${grouped(chart.left_out)} later events are left out.`));
}

// ---- draw a part once, when it is first seen

const DRAW = { passes, graphs, kernels, memory, differences, profile };
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    const part = entry.target;
    Promise.resolve(DRAW[part.dataset.part](part)).then(
      () => { part.dataset.drawn = "true"; },
      (error) => part.append(made("p", `This part cannot be drawn: ${error}`, "problem")),
    );
  }
}, { rootMargin: "200px" });
for (const part of document.querySelectorAll(".part")) if (DRAW[part.dataset.part]) seen.observe(part);
