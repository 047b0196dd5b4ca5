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

// The theme's buttons that unfold the contents have no name for those who do not see them.
addEventListener("DOMContentLoaded", () => {
  for (const toggle of document.querySelectorAll("summary:has(.toctree-toggle)")) {
    toggle.setAttribute("aria-label", `Pages of ${toggle.closest("li").querySelector("a").textContent.trim()}`);
  }
});
