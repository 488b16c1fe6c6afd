"use strict";
// Lists, filters and sorts the cases out of the data of the page, builds a case when a reader opens it, and keeps the
// state of it all in the address. The page reads without it. Texts are set as texts. The only markup that it puts in
// is the page's own: a <noscript> within a <details>, which a browser with scripts leaves as it is, and drawings.
(async () => {
  const $ = (id) => document.getElementById(id);
  const SVG = document.createRange().createContextualFragment("<svg></svg>").firstChild.namespaceURI;

  let parts = [];
  let evidenceOf = () => null;

  function openLate(box) {
    const late = box.matches("details[open]") && box.querySelector(":scope > noscript");
    if (!late) return;
    late.remove();
    const part = parts[box.dataset.late] || "";
    const evidence = "brief" in box.dataset && evidenceOf(box.id);
    if (evidence) box.append(evidence);
    else box.insertAdjacentHTML("beforeend", part && "instead" in late.dataset ? part : part + late.textContent);
    box.querySelectorAll("details[open]").forEach(openLate);
  }

  function watch() {
    addEventListener("toggle", (event) => openLate(event.target), true);
    document.querySelectorAll("details[open]").forEach(openLate);
  }

  // The part of the data that holds the target of a link, put in its place.
  function openPartWith(anchor) {
    const number = parts.findIndex((part) => part.includes(`id="${anchor}"`));
    const box = number >= 0 && document.querySelector(`[data-late="${number}"]`);
    if (!box) return null;
    box.open = true;
    openLate(box);
    return document.getElementById(anchor);
  }

  if (!window.DecompressionStream) {
    $("cannot").hidden = false;
    watch();
    return;
  }
  const packed = Uint8Array.from(atob($("data").textContent), (character) => character.charCodeAt(0));
  const data = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  parts = data.late;
  const [SHAPE, KERNEL, VERDICT, OUTCOME, ANCHOR, CAUSE, TIME, RATIO, SHARE, LAUNCHED, REASONS, DETAILS, ID] = Array(13).keys();
  const [CELL, MODEL, PHASE, PROVEN, WHY, SHAPE_ANCHOR] = Array(6).keys();
  const PAGE = 60; // rows that are added at a time
  const PATH_PARTS = 4;
  const LONG_WORD = 20;
  const OPTIONS = 300; // choices of a filter; whoever looks for another one types it
  const NAMES = { kernel: data.kernels, model: data.models, check: data.causes };
  const STEPS = [1.02, 1.25, 1.6, 2.5];
  const GLYPHS = { fail: "✗", inconclusive: "?", note: "•", pass: "✓" };
  const FIELDS = ["text", "verdict", "kernel", "model", "phase", "check", "sort", "view"];
  const controls = Object.fromEntries(FIELDS.map((name) => [name, $(`f-${name}`)]));
  let found = data.cases;
  let shown = 0;
  let texts = null;

  // What is shown in words

  const shapeOf = (row) => data.shapes[row[SHAPE]];
  const idOf = (row) => row[ID] || `${shapeOf(row)[CELL]}/${data.kernels[row[KERNEL]]}`;
  const reasonsOf = (row) => row[REASONS].map((number) => data.texts[number]);

  function significant(value) {
    if (value >= 100) return Math.round(value).toLocaleString("en");
    return value.toFixed(value >= 10 ? 1 : value >= 1 ? 2 : 3);
  }

  function duration(us) {
    if (us >= 1e6) return `${significant(us / 1e6)} s`;
    return us >= 1e3 ? `${significant(us / 1e3)} ms` : `${significant(us)} µs`;
  }

  function counted(count, one, many) {
    return `${count.toLocaleString("en")} ${count === 1 ? one : many || `${one}s`}`;
  }

  // Elements

  function el(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== null && child !== ""));
    return element;
  }

  function svg(tag, attributes, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function badge(number) {
    const [name, glyph, word] = data.verdicts[number];
    return el("span", { class: `v ${name}` }, `${glyph} ${word}`);
  }

  // A number as qualify/report/figures.py writes it; what is no number comes as a word.
  function number(value, unit) {
    if (value === null) return "–";
    if (typeof value === "string" || unit === "count") return value.toLocaleString("en");
    if (value && Math.abs(value) < 1e-3) return value.toExponential(1);
    return value < 0 ? `-${significant(-value)}` : significant(value);
  }

  const barOf = (width) => svg("svg", { class: "bar", "aria-hidden": "true" }, svg("rect", { width }));

  // A number, or one with its limit: 40 pixels of the bar stand for the limit, and it is cut at 56.
  function measured(value, [, , , unit, showLimit]) {
    const [own, limit] = Array.isArray(value) ? value : [value];
    const text = number(own, unit) + (showLimit && limit !== undefined ? ` / ${number(limit, unit)}` : "");
    const share = typeof own === "string" || !limit ? 9 : Math.abs(own) / limit;
    const td = el("td", { class: Array.isArray(value) && limit !== null && !(share <= 1) ? "n x" : "n" }, text);
    if (limit) td.append(barOf(Math.round(10 * Math.min(40 * share, 56)) / 10));
    return td;
  }

  // Where the id of a case or a long word may be broken into lines, as `parted` of qualify/report/names.py has it.
  function parted(text) {
    const breaks = (parts) => parts.flatMap((part, at) => (at ? [el("wbr"), part] : [part]));
    const path = text.split(/(?<=\/)/);
    if (path.length >= PATH_PARTS) return breaks(path);
    const broken = (word) => breaks(word.split(/(?<=::|._)(?=[^\s_])|(?<=[<,])(?=\S)/));
    return text.split(/(\s+)/).flatMap((word) => (word.length > LONG_WORD ? broken(word) : [word]));
  }

  function cell(value, column) {
    const [text, href] = Array.isArray(value) ? value : [value, ""];
    const shown = parted(String(text));
    return el("td", column[1] ? { class: column[1] } : {}, ...(href ? [el("a", { href }, ...shown)] : shown));
  }

  function table(caption, columns, rows, fields) {
    const heads = columns.map(([title, classes, meaning]) =>
      el("th", { scope: "col", ...(classes === "n" && { class: "n" }), ...(meaning && { title: meaning }) }, title));
    const lines = rows.map((row) => el("tr", {}, ...row.map((value, at) => fields(value, columns[at]))));
    return el("div", { class: "wide", tabindex: "0" },
      el("table", { class: "data" }, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...lines)));
  }

  // What a text has between backticks is code, as `with_code` of qualify/report/quoted.py has it.
  function quoted(text) {
    const parts = text.split(/(?<![\w`])`(?!\s)([^`\n]+)(?<!\s)`(?![\w`])/);
    return parts.map((part, at) => (at % 2 ? el("code", {}, part) : part));
  }

  function findingItem([verdict, check, told, detail, values]) {
    const raw = values && el("details", { class: "raw" }, el("summary", {}, "Raw values"), el("code", {}, values));
    return el("li", { class: verdict },
      el("b", {}, el("span", { "aria-hidden": "true" }, GLYPHS[verdict]), ` ${verdict}`), " ",
      el("div", {}, el("i", {}, check), " ", ...(told ? [...quoted(told), " ", el("span", { class: "detail" }, ...quoted(detail))] : quoted(detail)), " ", raw || ""));
  }

  function findings(numbers) {
    const all = numbers.map((number) => data.findings[number]);
    const open = new Set(all.filter(([verdict]) => verdict === "fail" || verdict === "inconclusive").map((it) => it[1]));
    const plain = ([verdict, check]) => verdict === "pass" && !open.has(check);
    const told = all.filter((finding) => !plain(finding));
    const passed = all.filter(plain);
    const names = [...new Set(passed.map((finding) => finding[1]))];
    return [
      told.length ? el("ul", { class: "findings" }, ...told.map(findingItem)) : "",
      passed.length ? el("details", { class: "passed" },
        el("summary", {}, `✓ ${counted(names.length, "check passes", "checks pass")}: ${names.join(", ")}`),
        el("ul", { class: "findings" }, ...passed.map(findingItem))) : "",
    ];
  }

  function strip([median, places, label]) {
    const ticks = places.map((place) => `M${place} 4v12`).join("");
    return el("figure", {},
      svg("svg", { class: "strip", viewBox: "0 0 320 20", role: "img", "aria-label": label },
        svg("path", { d: ticks }), svg("path", { class: "mid", d: `M${median} 0v20` })),
      el("figcaption", {}, label));
  }

  const statistic = (value, column) => (column[1] === "n" ? measured(value, column) : el("td", column[1] ? { class: column[1] } : {}, data.texts[value]));

  // The same as reports/case.html makes of a failed case.
  function built(row) {
    const [name, , word] = data.verdicts[row[VERDICT]];
    const parts = [];
    const findingsOf = row[DETAILS] ? row[DETAILS][0].map((at) => data.findings[at]) : [];
    const known = new Set(findingsOf.map(([, check, , detail]) => `${check}: ${detail}`));
    const reasons = reasonsOf(row).filter((reason) => !known.has(reason));
    if (reasons.length) {
      parts.push(el("p", { class: `reasons ${name}` }, el("b", {}, `${word} because`), " ", ...quoted(reasons.join("; "))));
    }
    if (row[DETAILS]) {
      const [told, launches, statistics, samples, facts, log] = row[DETAILS];
      parts.push(...findings(told));
      if (launches.length) parts.push(table("Launched kernels", data.columns.launches, launches.map((at) => data.launches[at]), cell));
      if (statistics.length) parts.push(table("Error against the golden result", data.columns.statistics, statistics, statistic), el("p", { class: "dim" }, data.symbols));
      if (samples) parts.push(strip(samples));
      const terms = facts.flatMap(([term, value]) => [el("dt", {}, data.texts[term]), el("dd", {}, data.texts[value])]);
      parts.push(el("dl", { class: "terms" }, ...terms));
      if (log >= 0) parts.push(el("pre", {}, data.texts[log]));
    }
    if (data.at) parts.push(el("p", { class: "links" }, el("a", { href: `${data.at}/${encodeURI(idOf(row)).replace(/[?#]/g, encodeURIComponent)}` }, "Page of this case")));
    return parts.filter(Boolean);
  }

  // The list and the map

  function summary(row) {
    const outcome = data.outcomes[row[OUTCOME]];
    const ratio = row[RATIO] && !data.verdicts[row[VERDICT]][0].match(/FAIL|INCONCLUSIVE/) ? (row[RATIO] === 1 ? "fastest" : `${row[RATIO].toFixed(2)}× the fastest`) : "";
    const words = [row[TIME] ? duration(row[TIME]) : "", ratio, data.texts[row[LAUNCHED]]].filter(Boolean).join(" · ");
    return el("summary", {}, badge(row[VERDICT]), " ", el("code", {}, ...parted(idOf(row))), " ",
      el("span", { class: "dim" }, outcome === "measured" ? "" : el("b", {}, `${outcome} `), ...(words ? [words] : quoted(reasonsOf(row)[0] || ""))));
  }

  function item(row) {
    const box = el("details", { class: "case", "data-anchor": `case-${row[ANCHOR]}` }, summary(row));
    box.addEventListener("toggle", () => {
      if (box.open && !box.querySelector(".body")) box.append(el("div", { class: "body", tabindex: "-1" }, ...built(row)));
    });
    return box;
  }

  function mapField(row, byTime) {
    const [name, glyph, word] = data.verdicts[row[VERDICT]];
    const timed = row[TIME] > 0 && name === "PASS" && row[RATIO] > 0;
    const step = STEPS.filter((limit) => row[RATIO] > limit).length;
    const text = byTime ? (timed ? `${row[RATIO].toFixed(2)}×` : `${glyph} ${word}`) : `${glyph} ${word}`;
    const note = row[TIME] ? duration(row[TIME]) : data.outcomes[row[OUTCOME]];
    return el("td", { class: byTime ? (timed ? `t${step}` : "untimed") : name, title: reasonsOf(row)[0] || "" },
      el("a", { href: `#case-${row[ANCHOR]}` }, text), " ", el("small", {}, note));
  }

  // Only kernels with a case that was found have a column, so that what matches is in view.
  function map(byTime) {
    const kernels = [...new Set(found.map((row) => row[KERNEL]))];
    const rows = new Map();
    for (const row of found) {
      if (!rows.has(row[SHAPE])) rows.set(row[SHAPE], new Map());
      rows.get(row[SHAPE]).set(row[KERNEL], row);
    }
    const body = el("tbody", {});
    const some = [...rows].slice(0, shown);
    for (const [number, fields] of some) {
      const shape = data.shapes[number];
      const [name, glyph, word] = data.verdicts[shape[PROVEN]];
      body.append(el("tr", {}, el("th", { scope: "row" }, shape[CELL]),
        el("td", { class: name, title: data.texts[shape[WHY]] }, `${glyph} ${word}`),
        ...kernels.map((kernel) => (fields.has(kernel) ? mapField(fields.get(kernel), byTime) : el("td", { class: "no" }, "–")))));
    }
    const heads = ["Shape", "Proven path", ...kernels.map((kernel) => data.kernels[kernel])];
    $("list").replaceChildren(el("div", { class: "map", tabindex: "0", role: "region", "aria-label": "Production shapes by kernel" },
      el("table", { class: "heat" }, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)))), body)));
    return rows.size;
  }

  function render() {
    const view = controls.view.value;
    let total = found.length;
    if (view) {
      total = map(view === "ratio");
    } else {
      const list = $("list");
      if (list.firstElementChild && !list.firstElementChild.matches("details")) list.replaceChildren();
      list.append(...found.slice(list.childElementCount, shown).map(item));
    }
    $("more").hidden = shown >= total;
    $("more").textContent = `Show ${Math.min(PAGE, total - shown)} more of ${total.toLocaleString("en")}`;
  }

  // Filter and order

  function textOf(row) {
    const words = [idOf(row), data.verdicts[row[VERDICT]][2], data.outcomes[row[OUTCOME]], data.texts[row[LAUNCHED]], ...reasonsOf(row)];
    return words.join(" ").toLowerCase();
  }

  const ORDERS = {
    time: (a, b) => b[TIME] - a[TIME],
    ratio: (a, b) => b[RATIO] - a[RATIO],
    share: (a, b) => (a[SHARE] || 9) - (b[SHARE] || 9),
    id: (a, b) => (idOf(a) < idOf(b) ? -1 : 1),
  };

  function matching() {
    const chosen = (name, names) => (controls[name].value ? names.indexOf(controls[name].value) : -1);
    const [verdict, kernel, model, phase, check] = [
      chosen("verdict", data.verdicts.map((entry) => entry[0])), chosen("kernel", data.kernels),
      chosen("model", data.models), chosen("phase", data.phases), chosen("check", data.causes)];
    const words = controls.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length) texts = texts || new Map(data.cases.map((row) => [row, textOf(row)]));
    return data.cases.filter((row) => (verdict < 0 || row[VERDICT] === verdict) && (kernel < 0 || row[KERNEL] === kernel) &&
      (model < 0 || shapeOf(row)[MODEL] === model) && (phase < 0 || shapeOf(row)[PHASE] === phase) &&
      (check < 0 || row[CAUSE] === check) && words.every((word) => texts.get(row).includes(word)));
  }

  function state() {
    return new URLSearchParams(FIELDS.filter((name) => controls[name].value).map((name) => [name, controls[name].value]));
  }

  function update(write = true) {
    found = matching();
    const order = ORDERS[controls.sort.value];
    if (order) found = [...found].sort(order);
    shown = PAGE;
    $("list").replaceChildren();
    render();
    const shapes = new Set(found.map((row) => row[SHAPE])).size;
    const all = found.length === data.cases.length;
    $("found").value = all ? "" : `${counted(found.length, "case")} of ${counted(shapes, "shape")}`;
    if (write) {
      const words = state().toString();
      history.replaceState(null, "", words ? `#?${words}` : "#cases");
    }
  }

  function fill(name, values) {
    for (const [value, text] of values.slice(0, OPTIONS)) controls[name].append(el("option", { value }, text));
  }

  // A choice that the list has no place for, because there are too many, stands in it as soon as an address names it.
  function choose(name, value) {
    controls[name].value = value;
    if (controls[name].selectedIndex !== -1) return;
    const known = (NAMES[name] || []).includes(value);
    if (known) controls[name].append(el("option", { value }, value));
    controls[name].value = known ? value : "";
  }

  function set(values) {
    for (const name of FIELDS) {
      choose(name, values.get(name) || "");
    }
  }

  // Places

  evidenceOf = (anchor) => {
    const row = data.cases.find((candidate) => `case-${candidate[ANCHOR]}` === anchor);
    return row ? el("div", { class: "body" }, ...built(row)) : null;
  };

  function show(target) {
    for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) {
      box.open = true;
      openLate(box);
    }
    target.scrollIntoView();
    target.focus({ preventScroll: true });
  }

  // What a link leads to in the list stands below the filter, which stays at the top and has as many rows as it needs.
  function measure() {
    document.documentElement.style.setProperty("--filter", `${document.querySelector(".filter").offsetHeight}px`);
  }

  function showCase(anchor) {
    const row = data.cases.find((candidate) => `case-${candidate[ANCHOR]}` === anchor);
    if (!row) return false;
    set(new URLSearchParams({ text: idOf(row) }));
    update();
    const box = $("list").querySelector(`[data-anchor="${anchor}"]`);
    box.open = true;
    if (!box.querySelector(".body")) box.append(el("div", { class: "body", tabindex: "-1" }, ...built(row)));
    measure(); // what was found stands in the filter now, and may have given it another row
    box.scrollIntoView();
    box.querySelector(".body").focus({ preventScroll: true });
    return true;
  }

  function showShape(anchor) {
    const shape = data.shapes.find((candidate) => candidate[SHAPE_ANCHOR] === anchor);
    if (!shape) return;
    set(new URLSearchParams({ text: shape[CELL], view: "verdict" }));
    update();
    $("cases").scrollIntoView();
  }

  // The anchor that an address names: as it stands there where it is no encoded text.
  function decoded(words) {
    try {
      return decodeURIComponent(words);
    } catch {
      return words;
    }
  }

  function go() {
    const words = location.hash.slice(1);
    if (words.startsWith("?")) {
      set(new URLSearchParams(words.slice(1)));
      update(false);
      $("cases").scrollIntoView();
      return;
    }
    if (["", "cases"].includes(words) && state().toString()) {
      set(new URLSearchParams());
      update(false);
    }
    const anchor = decoded(words);
    const target = anchor && (document.getElementById(anchor) || openPartWith(anchor));
    if (target) show(target);
    else if (anchor.startsWith("shape-")) showShape(anchor);
    else if (anchor) showCase(anchor);
  }

  const used = new Set(data.cases.map((row) => row[VERDICT]));
  fill("verdict", data.verdicts.filter((_, number) => used.has(number)).map(([name, glyph, word]) => [name, `${glyph} ${word}`]));
  fill("kernel", data.kernels.map((name) => [name, name]));
  fill("model", data.models.map((name) => [name, name]));
  fill("phase", data.phases.map((name) => [name, name]));
  fill("check", data.causes.map((name) => [name, name]));
  let waiting = 0;
  for (const control of Object.values(controls)) {
    control.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(update, control === controls.text ? 80 : 0);
    });
  }
  $("clear").addEventListener("click", () => {
    set(new URLSearchParams());
    update();
  });
  $("more").addEventListener("click", () => {
    shown += PAGE;
    render();
  });
  for (const button of document.querySelectorAll("[data-colour]")) {
    button.addEventListener("click", () => {
      $("overview").classList.toggle("times", button.dataset.colour === "time");
      for (const other of document.querySelectorAll("[data-colour]")) other.setAttribute("aria-pressed", String(other === button));
    });
  }
  for (const link of document.querySelectorAll("[data-cases]")) link.setAttribute("href", `#?${link.dataset.cases}`);
  watch();
  document.documentElement.classList.add("scripted");
  new ResizeObserver(measure).observe(document.querySelector(".filter"));
  addEventListener("hashchange", go);
  update(false);
  go();
})();
