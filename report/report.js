// Sorting and filters for the tables of the report. The page says everything without it.
"use strict";
(() => {
  const make = (tag, facts = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), facts);
    element.append(...children);
    return element;
  };
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- sorting: bodies of a table (a model with its published line), or the rows of a flat one -------------------
  const number = (text) => {
    const plain = text.replace(/\u2212/g, "-").replace(/[\u2009\u202f,]/g, "");
    const found = /^[^\d\s-]*\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)(?![\w.])/.exec(plain.trim());
    return found ? Number(found[1]) : null;
  };
  const textOf = (cell) => cell.dataset.sort ?? (cell.querySelector(".value") ?? cell).textContent.trim();
  const keyOf = (unit, index, skip) => {
    const row = unit.rows ? unit.querySelector(".measured") ?? unit.rows[0] : unit;
    const cell = unit.rows ? (index ? all("td", row)[index - skip] : unit.querySelector("th")) : row.cells[index];
    const none = cell && cell.querySelector(".none, .archived") && !cell.querySelector(".value");
    return cell && !none ? textOf(cell) : "";
  };
  const comparison = (keys) => (keys.every((key) => key === "" || number(key) !== null)
    ? (a, b) => number(a) - number(b)
    : (a, b) => a.localeCompare(b, "en", { numeric: true }));
  const sortable = (table) => {
    const flat = table.classList.contains("flat");
    const homes = all(flat ? "tbody > tr" : "tbody", table).map((unit) => [unit, unit.parentNode]);
    const heads = all("thead th", table);
    const skip = heads.some((head) => head.querySelector(".hidden")) ? 2 : 1;
    if (homes.length < 2 || table.classList.contains("matrix")) return;
    const mark = (chosen, direction) => heads.forEach((head) => {
      if (head === chosen && direction) head.setAttribute("aria-sort", direction);
      else head.removeAttribute("aria-sort");
    });
    const restore = () => {
      homes.forEach(([unit, home]) => home.append(unit));
      mark(null);
    };
    const sort = (head, index) => {
      const before = head.getAttribute("aria-sort");
      if (before === "descending") return restore();
      const sign = before === "ascending" ? -1 : 1;
      const keyed = homes.map(([unit]) => [keyOf(unit, index, skip), unit]);
      const compare = comparison(keyed.map(([key]) => key));
      keyed.sort(([a], [b]) => (a === "") - (b === "") || sign * compare(a, b)); // what has no value stays last
      const home = flat ? table.tBodies[table.tBodies.length - 1] : table;
      keyed.forEach(([, unit]) => home.append(unit));
      mark(head, sign > 0 ? "ascending" : "descending");
    };
    heads.forEach((head, index) => {
      if (head.querySelector(".hidden")) return;
      const button = make("button", { type: "button", className: "sort" }, ...head.childNodes);
      button.addEventListener("click", () => sort(head, index));
      head.append(button);
    });
    addEventListener("hashchange", () => {
      const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (flat && target && table.contains(target)) {
        restore();
        target.scrollIntoView();
      }
    });
  };

  // --- filters ------------------------------------------------------------------------------------------------------
  const state = { head: "", corpus: "", published: true };
  const search = (words) => { // in the parts of the page; those that have the words open
    const [text, parts] = [words.trim().toLowerCase(), all("details.entry, #claims tbody > tr:has(details)")];
    parts.forEach((part) => {
      const found = part.textContent.toLowerCase().includes(text);
      part.hidden = !found;
      if (part.tagName === "DETAILS") part.open = Boolean(text) && found;
    });
    status.textContent = text ? `${parts.filter((part) => !part.hidden).length} parts have these words.` : "";
  };
  const status = make("p", { className: "found" });
  status.setAttribute("role", "status");
  const showPublished = (body) => {
    const [paper, measured] = [body.querySelector(".paper"), body.querySelector(".measured")];
    const name = body.querySelector("[scope=rowgroup]");
    if (!paper || !measured || !name) return;
    body.dataset.lines ??= name.rowSpan;
    all(".paper, .difference", body).forEach((row) => { row.hidden = !state.published; });
    (state.published ? paper : measured).prepend(name);
    name.rowSpan = state.published ? Number(body.dataset.lines) : 1;
  };
  const apply = () => {
    const rows = all("[data-head]");
    all("[data-corpus]").forEach((part) => { part.hidden = Boolean(state.corpus) && part.dataset.corpus !== state.corpus; });
    rows.forEach((row) => { row.hidden = Boolean(state.head) && row.dataset.head !== state.head; });
    all("main table:not(.flat) > tbody").forEach(showPublished);
    const shown = rows.filter((row) => !row.hidden && !row.closest("[data-corpus][hidden]")).length;
    status.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} rows are shown.`;
  };
  const choice = (name, words, values) => {
    const select = make("select", {}, make("option", { value: "", textContent: "all" }));
    values.forEach((value) => select.append(make("option", { value, textContent: value })));
    select.addEventListener("change", () => { state[name] = select.value; apply(); });
    return values.length > 1 ? [make("label", {}, words, select)] : [];
  };
  const filters = () => {
    const values = (key) => [...new Set(all(`[data-${key}]`).map((one) => one.dataset[key]))];
    const corpora = [...new Set(all("[data-corpus]").filter((part) => part.querySelector("[data-head]")).map((part) => part.dataset.corpus))];
    const box = make("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => { state.published = box.checked; apply(); });
    const published = document.querySelector("tr.paper") ? [make("label", { className: "box" }, box, "published numbers")] : [];
    const controls = [...choice("head", "Head", values("head")), ...choice("corpus", "Corpus", corpora), ...published];
    const words = make("input", { type: "search" });
    words.addEventListener("input", () => search(words.value));
    controls.unshift(make("label", {}, "Search", words));
    const legend = make("legend", { textContent: "Show" });
    const isNarrow = matchMedia("(max-width: 69.99rem)").matches; // there the contents are folded, and filters with them
    document.querySelector(isNarrow ? "nav details" : "nav")[isNarrow ? "append" : "prepend"](make("fieldset", { className: "filters" }, legend, ...controls, status));
  };

  // --- where the reader is ----------------------------------------------------------------------------------------------
  const follow = () => {
    const links = new Map(all("nav details a").map((link) => [link.hash.slice(1), link]));
    const seen = new IntersectionObserver((changes) => changes.forEach((change) => {
      if (!change.isIntersecting) return;
      all("nav [aria-current]").forEach((link) => link.removeAttribute("aria-current"));
      links.get(change.target.id)?.setAttribute("aria-current", "true");
    }), { rootMargin: "-10% 0px -80%" });
    links.forEach((_, id) => { const section = document.getElementById(id); if (section) seen.observe(section); });
  };

  addEventListener("hashchange", () => {
    if (location.hash === "#all") all("details").forEach((part) => { part.open = true; });
  });
  all("main table").forEach(sortable);
  filters();
  follow();
})();
