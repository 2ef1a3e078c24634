// Lets a reader filter the rows of the ledger by words, class and verdict, and sort each table by a column.
document$.subscribe(() => {
  const titlesOf = table => [...table.tHead.rows[0].cells].map(cell => cell.textContent.trim());
  const tables = [...document.querySelectorAll(".md-typeset table")].filter(table => titlesOf(table).includes("verdict"));
  if (!tables.length || document.querySelector(".ledger")) return;
  const titles = titlesOf(tables[0]);
  const at = (row, title) => row.cells[titles.indexOf(title)].textContent.trim();
  const rows = tables.flatMap(table => [...table.tBodies[0].rows]);

  const bar = document.createElement("form");
  bar.className = "ledger";
  const words = Object.assign(document.createElement("input"), {type: "search", placeholder: "Words in a row"});
  const chooser = title => {
    const made = Object.assign(document.createElement("select"), {title});
    const values = [...new Set(rows.map(row => at(row, title).replace(/ within.*/, "")))].sort();
    made.append(new Option(`any ${title}`, ""), ...values.map(value => new Option(value)));
    return made;
  };
  const kind = chooser("class"), verdict = chooser("verdict"), count = document.createElement("output");
  words.setAttribute("aria-label", words.placeholder);
  bar.append(words, kind, verdict, count);
  document.querySelector(".md-typeset h2").before(bar);

  const shown = row =>
    words.value.toLowerCase().split(/\s+/).every(word => row.textContent.toLowerCase().includes(word)) &&
    ["", at(row, "class")].includes(kind.value) && at(row, "verdict").startsWith(verdict.value);
  const filter = () => {
    for (const row of rows) row.hidden = !shown(row);
    for (const table of tables) { // without rows, it goes with all up to its heading
      const empty = [...table.tBodies[0].rows].every(row => row.hidden);
      let part = table.closest(".md-typeset__scrollwrap") || table;
      for (; part; part = part.tagName === "H2" ? null : part.previousElementSibling) part.hidden = empty;
    }
    count.value = `${rows.filter(row => !row.hidden).length} of ${rows.length} claims`;
  };
  bar.addEventListener("input", filter);
  bar.addEventListener("submit", event => event.preventDefault());
  filter();

  for (const table of tables) {
    const heads = [...table.tHead.rows[0].cells], before = [...table.tBodies[0].rows];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => { // rising, falling, and as the page has it
        const next = {none: "ascending", ascending: "descending", descending: "none"}[head.ariaSort || "none"];
        for (const other of heads) other.ariaSort = "none";
        head.ariaSort = next;
        const text = row => row.cells[column].textContent.trim();
        const order = (a, b) => text(a).localeCompare(text(b), undefined, {numeric: true});
        const sorted = next === "none" ? before : before.toSorted(order);
        table.tBodies[0].append(...(next === "descending" ? sorted.reverse() : sorted));
      });
    });
  }
});
