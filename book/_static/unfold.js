// What an address leads to may be folded: open all that holds it. Chromium does so itself, other browsers do not yet.
function unfold() {
  let node = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const target = node;
  for (; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("DOMContentLoaded", unfold);
addEventListener("hashchange", unfold);
