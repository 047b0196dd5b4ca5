// Tables that sort: each heading is a button. Without scripts the rows keep their order.
(() => {
  const words = (row, place) => row.cells[place].textContent.trim();
  document.querySelectorAll(".sortable table").forEach((table) => {
    const headings = [...table.tHead.rows[0].cells], rows = [...table.tBodies[0].rows];
    headings.forEach((heading, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent.trim();
      heading.replaceChildren(button);
      // A column of numbers begins with the largest, one of words with the first of the alphabet.
      const numbers = rows.every((row) => !Number.isNaN(parseFloat(words(row, place))));
      button.addEventListener("click", () => {
        const up = heading.ariaSort ? heading.ariaSort === "descending" : !numbers;
        headings.forEach((other) => other.removeAttribute("aria-sort"));
        heading.ariaSort = up ? "ascending" : "descending";
        const compare = (one, other) => (numbers
          ? parseFloat(words(one, place)) - parseFloat(words(other, place))
          : words(one, place).localeCompare(words(other, place), "en", {numeric: true}));
        table.tBodies[0].append(...rows.sort((one, other) => (up ? 1 : -1) * compare(one, other)));
      });
    });
  });
})();
