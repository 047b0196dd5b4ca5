// A page opened from a file may not read its neighbours, which the summaries under search results are made of.
if (window.location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// Paper is white, also for those who read in the dark.
let theme;
addEventListener("beforeprint", () => {
  theme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
});
addEventListener("afterprint", () => { document.documentElement.dataset.theme = theme; });

addEventListener("DOMContentLoaded", () => {
  // The theme's buttons that unfold the contents below a page have no name for those who do not see them.
  for (const toggle of document.querySelectorAll("summary:has(.toctree-toggle)")) {
    if (toggle.textContent.trim()) continue;
    toggle.setAttribute("aria-label", `Pages of ${toggle.closest("li").querySelector("a").textContent.trim()}`);
  }
  // What stands under a result of the search is prose: no ticks of figures, no code.
  if (typeof Search === "undefined") return;
  const plain = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    page.querySelectorAll("svg, pre, summary, mjx-container").forEach((node) => node.remove());
    return plain(page.documentElement.outerHTML, anchor);
  };
});
