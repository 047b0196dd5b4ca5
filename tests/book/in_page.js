// What the tests ask of a page from within it. MathJax has set the formulas before any of this is called.
window.inPage = (() => {
  const article = document.querySelector("article.bd-article") || document.querySelector("main");
  const all = (selector) => [...article.querySelectorAll(selector)];

  // Tables wider than their box on a laptop, those that are folded too; on a telephone they scroll.
  const cut = () => {
    if (window.innerWidth < 1366) return [];
    const shut = all("details:not([open])");
    shut.forEach((fold) => { fold.open = true; });
    const box = (node) => (getComputedStyle(node).overflowX === "visible" && node !== article ? box(node.parentElement) : node);
    const found = all("table:not(.genindextable)")
      .filter((table) => box(table.parentElement).scrollWidth > box(table.parentElement).clientWidth + 1)
      .map((table) => table.textContent.replace(/\s+/g, " ").slice(0, 80));
    shut.forEach((fold) => { fold.open = false; });
    return found;
  };

  // Code may hold dollars and backslashes, prose may not.
  const facts = () => {
    const prose = article.cloneNode(true);
    prose.querySelectorAll("pre, code, script, style, mjx-container").forEach((node) => node.remove());
    return {
      formulas: all(".math").length,
      unset: all(".math").filter((node) => !node.querySelector("mjx-container")).map((node) => node.textContent),
      failed: all("mjx-merror, [data-mjx-error]").map((node) => node.textContent),
      prose: prose.textContent,
      images: [
        ...all("article img").map((image) => ({alt: image.alt.trim(), shown: image.complete && image.naturalWidth > 0})),
        ...all("article svg[role=img]").map((drawing) => ({
          alt: (drawing.getAttribute("aria-label") || "").trim(),
          shown: drawing.viewBox.baseVal.width > 0,
        })),
      ],
      headings: all("h1, h2, h3, h4, h5, h6").map((heading) => Number(heading.tagName[1])),
      cut: cut(),
      raw: all("td, th").map((cell) => cell.textContent.trim()).filter((text) => /^(NaN|nan|<NA>|None|decides)$/.test(text)),
      toggles: document.querySelectorAll(".primary-toggle").length,
    };
  };

  // What reaches beyond the right edge and is not within something that scrolls by itself; empty if nothing scrolls.
  const sideways = () => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    const beyond = (node) => node.getBoundingClientRect().right > width + 1;
    const held = (node) => node && (getComputedStyle(node).overflowX !== "visible" || held(node.parentElement));
    const found = [...document.body.querySelectorAll("*")]
      .filter((node) => beyond(node) && ![...node.children].some(beyond) && !held(node.parentElement));
    return ["the page", ...found.map((node) => `${node.localName}.${node.className}: ${node.textContent.slice(0, 60)}`)];
  };

  // The glyphs of a formula are most of a long page; a box of their size stands for them from here on. All sizes are read
  // before the first change: a size that is read after one lays the whole page out anew.
  const box = () => {
    const sizes = [...document.querySelectorAll("mjx-container")]
      .map((formula) => [formula, (formula.firstElementChild || formula).getBoundingClientRect()]);
    for (const [formula, {width, height}] of sizes) {
      const instead = document.createElement("span");
      instead.style.cssText = `display: inline-block; width: ${width}px; height: ${height}px`;
      instead.role = "img";
      instead.ariaLabel = "formula";
      formula.replaceChildren(instead);
    }
  };

  // One element for each combination of colour, size, weight and what lies behind, of links also of underline and colour
  // around: all others have its contrast.
  const looks = () => {
    const behind = new Map();
    const ground = (node) => {
      if (!node) return "";
      if (!behind.has(node)) {
        const {backgroundColor, backgroundImage, opacity} = getComputedStyle(node);
        const own = `${backgroundColor} ${backgroundImage} ${opacity}`;
        const clear = own === "rgba(0, 0, 0, 0) none 1";
        behind.set(node, ground(node.parentElement) + (clear ? "" : ` < ${own}`));
      }
      return behind.get(node);
    };
    const found = new Map();
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const node = texts.currentNode.parentElement;
      if (!texts.currentNode.data.trim() || !node.checkVisibility({visibilityProperty: true})) continue;
      const {color, fontSize, fontWeight} = getComputedStyle(node);
      const link = node.closest("a");
      const around = link && [getComputedStyle(link).textDecorationLine, link.parentElement.localName,
        getComputedStyle(link.parentElement).color].join(" ");
      const look = [color, fontSize, fontWeight, around, ground(node)].join(" | ");
      if (!found.has(look)) found.set(look, link || node);
    }
    return [...found.values()];
  };

  // Takes the inside of drawings out of the page for a while: an image has no parts for a screen reader, axe takes the colour
  // of a drawn text from `color` where `fill` paints it, and most elements of a page are drawn.
  const withoutDrawings = async (work) => {
    const held = all("svg[role=img][aria-label]").map((drawing) => [drawing, [...drawing.childNodes]]);
    held.forEach(([drawing]) => drawing.replaceChildren());
    const found = await work();
    held.forEach(([drawing, parts]) => drawing.replaceChildren(...parts));
    return found;
  };

  // Faults that axe finds, each as [rule, selector, element, what is wrong], without those in `known` (rule: selector).
  const ofColour = ["color-contrast", "link-in-text-block"];
  const faults = (known, contrast) => withoutDrawings(async () => {
    const rules = Object.fromEntries(ofColour.map((rule) => [rule, {enabled: false}]));
    const settings = contrast ? {runOnly: ofColour} : {rules};
    const nodes = contrast ? {include: looks()} : document;
    const result = await axe.run(nodes, {preload: false, resultTypes: ["violations"], ...settings});
    return result.violations.flatMap(({id, nodes}) => nodes
      .filter(({target}) => !(known[id] && document.querySelector(target[0])?.matches(known[id])))
      .map(({target, html, any, all, none}) =>
        [id, target.join(" "), html.slice(0, 120), [...any, ...all, ...none].map(({message}) => message).join("; ")]));
  });

  // Measures each drawing, in folds too: its smallest text in pixels, and the most panels that stand side by side.
  const drawings = () => {
    document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
    return all("svg[role=img]").filter((drawing) => drawing.getBoundingClientRect().width).map((drawing) => {
      const scale = drawing.getBoundingClientRect().width / drawing.viewBox.baseVal.width;
      const texts = [...drawing.querySelectorAll("text")].map((text) => scale * parseFloat(getComputedStyle(text).fontSize));
      const panels = [...drawing.querySelectorAll(".axes:not(.axes .axes)")].map((panel) => panel.getBoundingClientRect());
      const beside = panels.map(({top, bottom}) => panels.filter((other) => other.top < bottom - 20 && top + 20 < other.bottom).length);
      return [drawing.ariaLabel, Math.round(10 * Math.min(...texts)) / 10, Math.max(1, ...beside)];
    });
  };

  return {facts, sideways, box, faults, drawings};
})();
