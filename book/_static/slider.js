// Figures with a slider: accuracies of groups over what was kept, or a boundary that moves. A classic script, since
// browsers load no module from a file. Without it, and on paper, the tables or the text in the figure stand for it.
(() => {
  const make = (name, attributes, parent, text) => {
    const inSvg = ["svg", "path", "circle", "line", "text"].includes(name);
    const node = inSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };

  // A row for each group: its name, a bar, the accuracy uncompressed as a mark, and the interval over seeds.
  const bars = (choice, stage, floor) => {
    const rows = choice.groups.map((group) => {
      const row = make("div", { class: "row" }, stage);
      make("span", { class: "name" }, row, group.name).append(make("small", {}, row, ` ${group.size.toLocaleString("en")}`));
      const track = make("span", { class: "track" }, row);
      const parts = ["bar", "spread", "before"].map((name) => make("i", { class: name }, track));
      parts[2].style.left = `${group.accuracy[0]}%`;
      return { row, group, parts, value: make("span", { class: "value" }, row) };
    });
    return (level) => {
      const said = rows.map(({ row, group, parts: [bar, spread], value }) => {
        const accuracy = group.accuracy[level], half = group.half[level];
        const low = Math.max(0, accuracy - half), high = Math.min(100, accuracy + half);
        bar.style.width = `${accuracy}%`;
        Object.assign(spread.style, { left: `${low}%`, width: `${high - low}%` });
        value.textContent = accuracy.toFixed(1);
        row.classList.toggle("gone", accuracy < floor);
        return `${group.name} ${accuracy.toFixed(1)}`;
      });
      const [first, last] = [choice.groups[0], choice.groups.at(-1)].map(({ name, accuracy }) => {
        const points = (accuracy[level] - accuracy[0]).toFixed(1);
        return `${name} ${points > 0 ? "+" : ""}${points.replace("-", "\u2212")} points`;
      });
      const share = `${choice.levels[level]} ${choice.unit}`;
      const gone = choice.groups.filter(({ accuracy }) => accuracy[level] < floor).map(({ name }) => name).join(", ");
      const none = gone ? ` Next to nothing ${level ? "left " : ""}to lose: ${gone}.` : "";
      const changed = level ? `${first}, ${last}` : "nothing is compressed";
      return { short: `${share}: ${changed}.${none}`, long: `${share}. Accuracy in percent: ${said.join(", ")}.${none}` };
    };
  };

  // Points of two classes and the boundary of each network, in the unit of the points; y points up.
  const boundary = ({ box: [left, bottom, right, top], points, frames, truth }, stage) => {
    const svg = make("svg", { viewBox: `${left} ${-top} ${right - left} ${top - bottom}`, role: "img" }, stage);
    const path = (line) => line.map(([x, y], place) => `${place ? "L" : "M"}${x} ${-y}`).join("");
    points.forEach((own, side) => own.forEach(([cx, y]) => make("circle", { cx, cy: -y, r: 0.018, class: `side-${side}` }, svg)));
    make("path", { d: path(truth), class: "truth" }, svg);
    const drawn = make("path", { class: "boundary" }, svg);
    return (level) => {
      drawn.setAttribute("d", frames[level].lines.map(path).join(""));
      svg.setAttribute("aria-label", frames[level].text);
      return { short: frames[level].text, long: frames[level].text };
    };
  };

  document.querySelectorAll("figure.interactive").forEach((figure, number) => {
    const source = figure.querySelector("script[type='application/json']");
    if (!source) return;
    const data = JSON.parse(source.textContent);
    const fallback = [...figure.children].filter((node) => node.matches("table, p, .fallback"));
    const controls = make("div", { class: "controls" }, figure), stage = make("div", { class: "stage" }, figure);
    figure.prepend(controls, stage);
    const select = data.choices?.length > 1 && make("select", { "aria-label": "What is compressed" }, controls);
    data.choices?.forEach(({ title }, value) => select && make("option", { value }, select, title));
    const label = make("label", { for: `slider-${number}` }, controls, data.label ?? "Compress");
    const slider = make("input", { type: "range", id: label.getAttribute("for"), min: 0, step: 1, value: 0 }, controls);
    const output = make("output", { for: slider.id }, controls);
    let draw;
    const show = () => {
      const { short, long } = draw(Number(slider.value));
      output.textContent = short;
      slider.setAttribute("aria-valuetext", long);
    };
    const choose = () => {
      const chosen = data.choices ? data.choices[select ? Number(select.value) : 0] : data;
      stage.replaceChildren();
      draw = data.choices ? bars(chosen, stage, data.floor) : boundary(chosen, stage);
      slider.max = (chosen.levels ?? chosen.frames).length - 1;
      slider.value = Math.min(slider.value, slider.max);
      show();
    };
    const details = make("details", {}, figure);
    make("summary", {}, details, data.choices ? "All numbers" : "In words");
    details.append(...fallback);
    let open = false;
    addEventListener("beforeprint", () => { open = details.open; details.open = true; });
    addEventListener("afterprint", () => { details.open = open; });
    slider.addEventListener("input", show);
    if (select) select.addEventListener("change", () => { slider.value = 0; choose(); });
    choose();
  });
})();
