// A page opened from a file may not read its neighbours, which the summaries under search results are made of.
if (window.location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
