// Search and filters over the rows of the ledger, which begins with those of one paper. Without JavaScript, and on paper,
// the page is the whole ledger.
(() => {
  const page = document.querySelector("section#the-ledger-of-claims");
  if (!page) return;
  const claims = [...page.querySelectorAll("div.claim")].map((row) => ({
    row,
    text: row.textContent.toLowerCase(),
    pages: row.dataset.page.split(" "),
    tests: [...row.querySelectorAll("li")].map((test) => ({...test.dataset, sets: test.dataset.data.split(", ")})),
  }));
  if (!claims.length) return;
  const sections = [...new Set(claims.map(({row}) => row.parentElement))];
  const titles = {};
  for (const link of page.querySelectorAll("div.claim > p:first-of-type > a[href*='notebooks/']")) {
    titles[link.getAttribute("href").split("/").pop().split(".")[0]] = link.textContent.trim();
  }
  for (const section of sections) {
    titles[section.querySelector("div.claim").dataset.paper] = section.querySelector("h2").firstChild.textContent;
  }
  const present = (values) => [...new Set(values)].filter(Boolean);
  const order = ["supported", "supported, negligible", "reversed", "reversed, negligible", "no effect", "undecided", "undecided (floor)", "not testable here"];
  const tests = claims.flatMap((claim) => claim.tests);
  const verdicts = present(tests.map((test) => test.verdict)).sort((a, b) => order.indexOf(a) - order.indexOf(b));
  const choices = {
    Paper: ["paper", present(claims.map(({row}) => row.dataset.paper))],
    Verdict: ["verdict", verdicts],
    Evidence: ["evidence", present(tests.map((test) => test.evidence)).sort()],
    Groups: ["groups", present(tests.map((test) => test.groups)).sort()],
    Written: ["written", present(tests.map((test) => test.written)).sort().reverse()],
    Data: ["data", present(tests.flatMap((test) => test.sets)).sort()],
    Page: ["page", present(claims.flatMap((claim) => claim.pages)).sort()],
  };
  const tools = document.createElement("form");
  tools.className = "ledger-tools";
  tools.setAttribute("role", "search");
  tools.setAttribute("aria-label", "Filter the claims");
  const field = (name, control) => {
    const label = document.createElement("label");
    label.append(name, control);
    tools.append(label);
  };
  const search = Object.assign(document.createElement("input"), {type: "search", name: "words", autocomplete: "off"});
  field("Search", search);
  for (const [name, [key, values]] of Object.entries(choices)) {
    const select = Object.assign(document.createElement("select"), {name: key});
    select.append(new Option("any", ""), ...values.map((value) => new Option(titles[value] ?? value, value)));
    field(name, select);
  }
  tools.append(Object.assign(document.createElement("button"), {type: "reset", textContent: "Show all"}));
  const output = document.createElement("output");
  output.setAttribute("aria-live", "polite");
  tools.append(output);
  const figure = page.querySelector(".ledger-figure"), glance = figure.closest("section");
  const rows = document.createElement("div");  // The filters stay in sight beside the rows, and no longer.
  glance.before(rows);
  rows.append(tools, glance, ...sections);

  const value = (key) => tools.elements[key].value;
  tools.elements.paper.value = choices.Paper[1][0];
  // One and the same test must have the verdict, the evidence and the data that are asked for.
  const fits = (test) => (!value("verdict") || test.verdict === value("verdict"))
    && ["evidence", "groups", "written"].every((key) => !value(key) || test[key] === value(key))
    && (!value("data") || test.sets.includes(value("data")));
  const show = () => {
    const words = value("words").toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0, elsewhere = 0;
    for (const {row, text, pages, tests} of claims) {
      const found = (!value("page") || pages.includes(value("page")))
        && tests.some(fits) && words.every((word) => text.includes(word));
      const here = !value("paper") || row.dataset.paper === value("paper");
      row.hidden = !(found && here);
      count += found && here;
      elsewhere += found && !here;
    }
    for (const section of sections) section.hidden = !section.querySelector("div.claim:not([hidden])");
    for (const panel of figure.children) {
      panel.toggleAttribute("hidden", Boolean(value("paper")) && panel.dataset.paper !== value("paper"));
    }
    output.textContent = `${count} of ${claims.length} claims${elsewhere ? `, ${elsewhere} in other papers` : ""}`;
  };
  const remember = () => {
    const state = new URLSearchParams([...new FormData(tools)].filter(([key, given]) => given || key === "paper")).toString();
    history.replaceState(null, "", location.href.split("#")[0] + (state ? `#?${state}` : ""));
  };
  // Also where a link from another page leads to a row: `#T-fig-1` shows the row, whatever was filtered.
  const arrive = () => {
    if (location.hash.startsWith("#?")) {
      tools.elements.paper.value = "";
      for (const [key, given] of new URLSearchParams(location.hash.slice(2))) {
        if (tools.elements[key]) tools.elements[key].value = given;
      }
    }
    const anchor = location.hash.startsWith("#?") ? null : document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (anchor?.closest("[hidden]")) {
      tools.reset();
      tools.elements.paper.value = anchor.closest("div.claim")?.dataset.paper ?? "";
    }
    show();
    if (location.hash.startsWith("#?")) tools.scrollIntoView();
    if (!anchor) return;
    const folded = anchor.closest("details");
    if (folded) folded.open = true;
    (anchor.closest("div.claim") ?? anchor).scrollIntoView();
  };
  tools.addEventListener("input", () => { show(); remember(); });
  tools.addEventListener("reset", () => setTimeout(() => { show(); if (!location.hash || location.hash.startsWith("#?")) remember(); }));
  tools.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", arrive);
  show();
  // Formulas change heights until they are set, so that the row is looked for once more then.
  if (location.hash) addEventListener("load", () => (window.MathJax?.startup?.promise ?? Promise.resolve()).then(arrive));
  arrive();
})();
