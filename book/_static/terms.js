// The meaning of a word that the glossary explains, beside it: by mouse, by keyboard, and by the first touch, of which the
// second follows the link. Without scripts the link has it as its title.
(() => {
  const links = document.querySelectorAll("a.term[title]");
  if (!links.length || !HTMLElement.prototype.showPopover) return;
  const meaning = Object.assign(document.createElement("div"), {id: "term-meaning", className: "meaning", popover: "manual"});
  meaning.setAttribute("role", "tooltip");
  document.querySelector("main").append(meaning);
  let shown = null, touched = false, leaving = 0;
  const hide = () => {
    clearTimeout(leaving);
    if (!shown) return;
    shown.removeAttribute("aria-describedby");
    shown = null;
    meaning.hidePopover();
  };
  const place = () => {
    if (!shown) return;
    const word = shown.getClientRects()[0], {width, height} = meaning.getBoundingClientRect();
    const below = word.bottom + 6 + height < innerHeight;
    meaning.style.left = `${Math.max(8, Math.min(word.left, document.documentElement.clientWidth - width - 8))}px`;
    meaning.style.top = `${below ? word.bottom + 6 : Math.max(8, word.top - height - 6)}px`;
  };
  // The pointer has the time to cross to the meaning, which stays while it is there.
  const leave = ({pointerType}) => { if (pointerType === "mouse") leaving = setTimeout(hide, 200); };
  meaning.addEventListener("pointerenter", () => clearTimeout(leaving));
  meaning.addEventListener("pointerleave", leave);
  const show = (link, text) => {
    clearTimeout(leaving);
    if (shown === link) return;
    hide();
    shown = link;
    meaning.textContent = text;
    link.setAttribute("aria-describedby", meaning.id);
    meaning.showPopover();
    place();
  };
  for (const link of links) {
    const text = link.title;
    link.removeAttribute("title");  // The browser would show it a second time.
    link.addEventListener("pointerenter", ({pointerType}) => { if (pointerType === "mouse") show(link, text); });
    link.addEventListener("pointerleave", leave);
    link.addEventListener("pointercancel", () => { touched = false; });  // The touch became a scroll.
    link.addEventListener("pointerdown", ({pointerType}) => { touched = pointerType !== "mouse" && shown !== link; });
    link.addEventListener("focus", () => show(link, text));
    link.addEventListener("blur", hide);
    link.addEventListener("click", (event) => {
      if (!touched) return;
      touched = false;
      event.preventDefault();
      show(link, text);
    });
  }
  addEventListener("keydown", ({key}) => { if (key === "Escape") hide(); });
  addEventListener("pointerdown", ({target}) => { if (shown && !shown.contains(target) && !meaning.contains(target)) hide(); });
  addEventListener("scroll", place, {passive: true, capture: true});
})();
