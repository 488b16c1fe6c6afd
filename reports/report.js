"use strict";
// Filters the shapes and the cases by words, and opens a case that a link leads to. The page works without it.
(() => {
  const input = document.getElementById("filter");
  const found = document.getElementById("found");
  const rows = [...document.querySelectorAll(".heat tr[id], details.case, #absent tbody tr")];
  const lower = (row) => ((row.dataset.key || "") + " " + (row.matches("details") ? "" : row.textContent)).toLowerCase();
  let texts = null;
  let shown = new Set(rows);

  function filter() {
    texts = texts || rows.map(lower);
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = new Set(rows.filter((_, index) => words.every((word) => texts[index].includes(word))));
    for (const row of rows) row.hidden = !shown.has(row);
    for (const body of document.querySelectorAll(".heat tbody")) {
      body.hidden = ![...body.rows].some((row) => row.id && !row.hidden);
    }
    const shapes = [...shown].filter((row) => row.matches(".heat tr")).length;
    found.value = words.length ? `${shapes} shapes, ${shown.size - shapes} cases` : "";
    for (const button of document.querySelectorAll("[data-word]")) {
      button.setAttribute("aria-pressed", String(words.join(" ") === button.dataset.word));
    }
  }

  function reveal() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const row = target.closest("details.case, tr");
    if (row && row.hidden) {
      input.value = "";
      filter();
    }
    for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target.scrollIntoView();
    target.focus({ preventScroll: true });
  }

  let waiting = 0;
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 80);
  });
  for (const button of document.querySelectorAll("[data-word]")) {
    button.addEventListener("click", () => {
      input.value = button.getAttribute("aria-pressed") === "true" ? "" : button.dataset.word;
      filter();
    });
  }
  addEventListener("hashchange", reveal);
  reveal();
})();
