"use strict";
(() => {
  // Texts of files reach the page as textContent, or through plain() where plotly would read tags.
  const page = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const find = (id) => document.getElementById(id);
  const form = find("filters");
  const plots = [...document.querySelectorAll(".chart")].map((figure) => ({
    figure,
    div: figure.querySelector(".plot"),
    chart: page.charts[figure.dataset.chart],
    hidden: new Set(), // series that the legend switched off
    few: {}, // axes of whole numbers that show less than ten
    at: -1,
  }));

  // Distinct for colour-blind eyes (Okabe and Ito), darker on white and lighter on black.
  const LIGHT = ["#0072b2", "#c75000", "#00805e", "#a8437f", "#5f5f5f", "#8a6d00"];
  const DARK = ["#56b4e9", "#f0a030", "#2cc59a", "#e79ac6", "#b5b5b5", "#f0e442"];
  // Viridis, without the end that the page's own colour hides.
  const SCALE_LIGHT = [[0, "#440154"], [0.35, "#31688e"], [0.7, "#35a779"], [1, "#cdb800"]];
  const SCALE_DARK = [[0, "#8a6fd6"], [0.35, "#3f94c4"], [0.7, "#45c08a"], [1, "#fde725"]];
  const NARROW = 480; // width of a chart, in CSS pixels, below which its scale is above it
  const cycle = (list, k) => list[(k + Math.floor(k / list.length)) % list.length];
  const SYMBOLS = ["circle", "diamond", "square", "triangle-up", "cross", "x"];
  const MARKS = ["●", "◆", "■", "▲", "✚", "✖"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const STROKES = { solid: "", dash: "6 3", dot: "2 2", dashdot: "6 2 2 2", longdash: "10 3", longdashdot: "10 2 2 2" };
  const LEGEND = 12; // entries of a legend
  const MANY = 2000; // points of a chart from which they are drawn as one picture
  const SHADES = 64; // colours of a scale in such a picture
  const ROWS = 200; // of a table of numbers
  const PRINTED = 640; // width of a chart on paper, in CSS pixels
  let printed = {};

  const plain = (text) => String(text).replace(/[&<>$]/g, (sign) => `&#${sign.charCodeAt(0)};`);
  /** A title in lines of so many letters, its unit in a line of its own; plotly breaks none. */
  const wrapped = (text, width) =>
    (text.length > width ? text.replace(" (", "\n(") : text)
      .replace(new RegExp(`(.{1,${width}})( |$)`, "gm"), "$1\n").trim()
      .split(/\n+/).map(plain).join("<br>");
  const short = (text, letters) => (text.length > letters ? text.slice(0, letters - 1) + "…" : text);
  const shown = (value) =>
    value === null ? "–" : value.toLocaleString("en", { maximumSignificantDigits: 5 });
  const isDark = () =>
    root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
  for (const plot of plots) {
    for (const series of plot.chart.series)
      series.isNumbered = String(series.x) === String(series.index);
    if (plot.chart.series.every((s) => s.style === "histogram"))
      plot.figure.querySelector("details").hidden = true;
    const points = plot.chart.series.map((s) => (s.style === "points" ? s.x.length : 0));
    plot.many = points.reduce((a, b) => a + b, 0) >= MANY;
    // Between whole numbers of steps or episodes there is nothing to mark on an axis.
    const whole = (name) => plot.chart.series.every((s) => (s[name] ?? [0]).every((v) => v === null || Number.isInteger(v)));
    plot.whole = ["x", "y"].filter((name) => whole(name) && !(name === "x" && plot.chart.ticks.length) && !(name === "y" && plot.chart.log));
  }

  // ------------------------------------------------------------------------------ filters

  const filters = () => {
    const bound = (range, name, none) => {
      const value = range.querySelector(name).value;
      return value ? Number(value) : none;
    };
    const ranges = [...form.querySelectorAll(".range")].map((range) => [
      range.dataset.quantity,
      { low: bound(range, ".low", -Infinity), high: bound(range, ".high", Infinity) },
    ]);
    const sources = [...form.querySelectorAll("[name=source]:checked")];
    return {
      sources: new Set(sources.map((box) => Number(box.value))),
      ranges: new Map(ranges.filter(([, { low, high }]) => low > -Infinity || high < Infinity)),
    };
  };

  /** The rows of a series that pass; a range acts on its own quantity alone. */
  const passing = (series, by) => {
    if (series.source >= 0 && !by.sources.has(series.source)) return [];
    const range = by.ranges.get(series.quantity);
    const rows = [...series.x.keys()];
    if (!range) return rows;
    const inside = (value) => value !== null && range.low <= value && value <= range.high;
    return rows.filter((k) => inside(series.value[k]));
  };

  /** How many things of a quantity there are, and pass; each counts once, on however many charts. */
  const counted = (quantity, by) => {
    const all = new Set(), passed = new Set();
    for (const { chart } of plots)
      for (const series of chart.series.filter((s) => s.quantity === quantity)) {
        const key = (k) => `${series.source} ${chart.unit} ${series.index?.[k] ?? k}`;
        for (const k of series.x.keys()) all.add(key(k));
        for (const k of passing(series, by)) passed.add(key(k));
      }
    return `${passed.size.toLocaleString("en")} of ${all.size.toLocaleString("en")}`;
  };

  /** What filters hide, for paper, where they are not. */
  const hiddenBy = (by) => {
    const off = page.sources.filter((_, k) => !by.sources.has(k));
    const parts = [...by.ranges].map(([quantity, { low, high }]) =>
      [quantity, low > -Infinity && `from ${shown(low)}`, high < Infinity && `to ${shown(high)}`].filter(Boolean).join(" "));
    if (off.length) parts.push(`without ${off.join(", ")}`);
    return parts.length ? `Charts show: ${parts.join("; ")}.` : "";
  };

  // ------------------------------------------------------------------------------- charts

  const nameOf = (series, letters = Infinity) =>
    page.sources.length > 1 && series.source >= 0 ? `${short(page.sources[series.source], letters)}: ${series.name}` : series.name;
  const axis = (title) => title.split(" (")[0];

  /** What is said of one point, line by line. */
  const lines = (chart, series, k) => {
    const about = [nameOf(series)];
    const tell = (name, value) => about.push(`${name}: ${shown(value)}`);
    if (series.index) about.push(`${chart.unit} ${series.index[k]}`);
    if (!series.isNumbered) {
      if (chart.ticks.length) about.push(chart.ticks[series.x[k]]);
      else tell(axis(chart.x), series.x[k]);
    }
    tell(axis(chart.y), series.y[k]);
    if (series.value && series.value[k] !== series.y[k] && series.value[k] !== series.x[k])
      tell(series.quantity, series.value[k]);
    for (const [name, values] of Object.entries(series.more)) tell(name, values[k]);
    return about;
  };

  const traces = (plot, by) => {
    const { chart, hidden } = plot;
    const palette = isDark() ? DARK : LIGHT;
    const seen = {};
    const all = [];
    let scaled = false;
    const alone = new Set(chart.series.map((series) => series.source)).size === 1;
    const kept = chart.series.map((series) => (hidden.has(group(series)) ? [] : passing(series, by)));
    const isColoured = (series) => chart.colour !== null && series.quantity === chart.colour && series.style === "points";
    const range = chart.series
      .flatMap((s, i) => (isColoured(s) ? kept[i].map((k) => s.value[k]).filter((v) => v !== null) : []))
      .reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
    chart.series.forEach((series, number) => {
      const rows = kept[number];
      // The highest are drawn last, over the others: they are few.
      if (isColoured(series)) rows.sort((a, b) => (series.value[a] ?? -Infinity) - (series.value[b] ?? -Infinity));
      // Sources keep their colours; series of one source differ by symbols and dashes.
      const names = (seen[`${series.source} ${["line", "band"].includes(series.style)}`] ??= []);
      if (!names.includes(series.name)) names.push(series.name);
      const turn = names.indexOf(series.name);
      const colour = palette[(Math.max(0, series.source) + (alone ? turn : 0)) % palette.length];
      const pick = (array) => rows.map((k) => array[k]);
      const base = { series, x: pick(series.x) };
      if (series.style === "histogram") {
        all.push({ ...base, type: "histogram", nbinsx: 40, opacity: 0.75, marker: { color: colour },
          hovertemplate: `%{x}: %{y} ${chart.unit}s<extra></extra>` });
        return;
      }
      const told = rows.map((k) => lines(chart, series, k));
      const common = { ...base, y: pick(series.y), told, text: told.map((t) => t.map(plain).join("<br>")),
        hovertemplate: "%{text}<extra></extra>" };
      if (series.style === "line" || series.style === "band") {
        const line = { color: colour, width: 2, dash: cycle(DASHES, turn) };
        if (series.style === "band") {
          const edge = { ...base, mode: "lines", line: { width: 0, color: colour }, hoverinfo: "skip" };
          all.push({ ...edge, y: pick(series.more.low) });
          all.push({ ...edge, y: pick(series.more.high), fill: "tonexty", fillcolor: colour + "33" });
        }
        all.push({ ...common, mode: rows.length > 60 ? "lines" : "lines+markers", line, marker: { size: 5 } });
        return;
      }
      const star = series.style === "stars";
      const marker = { size: star ? 13 : rows.length > 500 ? 5 : 8, color: colour, opacity: star || rows.length < 500 ? 1 : 0.75,
        symbol: star ? "star" : cycle(SYMBOLS, Math.max(0, series.source) + turn), line: { width: star ? 1.5 : 0, color: isDark() ? "#ffffff" : "#000000" } };
      const scale = {};
      if (isColoured(series)) {
        Object.assign(scale, { colorscale: isDark() ? SCALE_DARK : SCALE_LIGHT, cmin: range[0], cmax: range[1], showscale: !scaled,
          colorbar: { thickness: 14, outlinewidth: 0, ...(isNarrow(plot)
            ? { orientation: "h", yref: "container", y: 1 - 24 / plot.div.clientHeight, yanchor: "top" }
            : { title: { text: wrapped(chart.colour, 34), side: "right" } }) } });
        Object.assign(marker, { line: { width: 0.8, color: "#808890" }, color: pick(series.value), ...scale });
      }
      if (plot.many && !star) {
        // paint() draws them; plotly knows where they are, leaves room, and draws the scale.
        all.push({ ...common, mode: "none", hoveron: "points", hoverlabel: { bgcolor: colour }, marker });
        const ends = (list) => list.reduce(([a, b], v) => (v === null ? [a, b] : [Math.min(a, v), Math.max(b, v)]), [Infinity, -Infinity]);
        if (rows.length) all.push({ series, x: ends(base.x), y: ends(common.y), mode: "markers", hoverinfo: "skip", marker: { size: 9, opacity: 0 } });
        if (scale.showscale) all.push({ series, x: [null], y: [null], mode: "markers", hoverinfo: "skip", marker: { color: [range[0]], ...scale } });
      } else all.push({ ...common, mode: "markers", marker });
      scaled ||= Boolean(scale.showscale);
    });
    return all;
  };

  const CROSS = [[0.4, 0.4], [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4], [-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4]];
  const OUTLINES = {
    circle: [...Array(12).keys()].map((k) => [Math.cos((k * Math.PI) / 6), Math.sin((k * Math.PI) / 6)]),
    diamond: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
    square: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
    "triangle-up": [[0, -1.2], [1.2, 0.9], [-1.2, 0.9]],
    cross: CROSS,
    x: CROSS.map(([x, y]) => [(x - y) * Math.SQRT1_2, (x + y) * Math.SQRT1_2]),
  };

  /** The colours of a scale, from low to high. */
  const shades = (scale) =>
    [...Array(SHADES).keys()].map((k) => {
      const at = k / (SHADES - 1);
      const next = Math.max(1, scale.findIndex(([place]) => place >= at));
      const [[low, from], [high, to]] = [scale[next - 1], scale[next]];
      const part = (colour, i) => parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16);
      return `rgb(${[0, 1, 2].map((i) => part(from, i) + ((at - low) / (high - low)) * (part(to, i) - part(from, i))).join()})`;
    });

  /** Draw the points of a chart of many under what plotly draws: WebGL would need eval. */
  const paint = (plot) => {
    const area = plot.div.querySelector(".nsewdrag");
    if (!plot.many || !area) return;
    plot.canvas ??= plot.div.insertBefore(document.createElement("canvas"), plot.div.firstChild);
    const [box, own] = [area, plot.div].map((element) => element.getBoundingClientRect());
    const ratio = Math.max(2, devicePixelRatio || 1);
    Object.assign(plot.canvas, { className: "points", width: box.width * ratio, height: box.height * ratio });
    Object.assign(plot.canvas.style, { left: `${box.left - own.left}px`, top: `${box.top - own.top}px`, width: `${box.width}px`, height: `${box.height}px` });
    const pen = plot.canvas.getContext("2d");
    const { xaxis, yaxis } = plot.div._fullLayout;
    const place = ({ range: [from, to] }, length) => (value) => ((value - from) / (to - from)) * length;
    const [x, y] = [place(xaxis, box.width), place(yaxis, box.height)];
    for (const { mode, marker, ...trace } of plot.traces) {
      if (mode !== "none") continue;
      const colours = Array.isArray(marker.color) ? shades(marker.colorscale) : null;
      const shade = (v) => colours[Math.round(((v - marker.cmin) / (marker.cmax - marker.cmin || 1)) * (SHADES - 1))];
      const shape = new Path2D();
      OUTLINES[marker.symbol].forEach(([a, b], k) => shape[k ? "lineTo" : "moveTo"]((a * marker.size) / 2, (b * marker.size) / 2));
      shape.closePath();
      pen.globalAlpha = marker.opacity;
      trace.x.forEach((value, k) => {
        if (value === null || trace.y[k] === null) return;
        pen.setTransform(ratio, 0, 0, ratio, ratio * x(value), ratio * (box.height - y(trace.y[k])));
        pen.fillStyle = (colours ? shade(marker.color[k]) : marker.color) ?? "#808890";
        pen.fill(shape);
      });
    }
  };

  const group = (series) => `${series.source} ${series.name}`;

  /** What is drawn how; below the chart, where it is over no point, with a switch for each. */
  const legend = (plot) => {
    const named = new Map();
    for (const trace of plot.traces)
      if (trace.fill !== "tonexty" && !(trace.line && trace.line.width === 0)) named.set(group(trace.series), named.get(group(trace.series)) ?? trace);
    const entries = named.size > 1 ? [...named] : [];
    const shown = entries.length > LEGEND + 1 ? LEGEND : entries.length; // "and 1 more" takes the room of the one
    const box = plot.figure.querySelector(".legend");
    const focused = [...box.children].indexOf(document.activeElement);
    box.replaceChildren(...entries.slice(0, shown).map(([key, trace]) => {
      const entry = document.createElement("button");
      entry.type = "button";
      entry.setAttribute("aria-pressed", String(!plot.hidden.has(key)));
      entry.append(sample(trace), nameOf(trace.series, 34));
      entry.addEventListener("click", () => {
        plot.hidden.delete(key) || plot.hidden.add(key);
        draw();
      });
      return entry;
    }));
    if (entries.length > shown) box.append(`and ${entries.length - shown} more`);
    box.children[focused]?.focus();
  };

  /** A small picture of how a series is drawn. */
  const sample = ({ line, mode, marker, type }) => {
    const make = (name, attributes) => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      return node;
    };
    const picture = make("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" });
    if (mode && mode.startsWith("lines")) {
      picture.append(make("line", { x1: 1, x2: 31, y1: 6, y2: 6, stroke: line.color, "stroke-width": 2.5, "stroke-dasharray": STROKES[line.dash] }));
      return picture;
    }
    const text = make("text", { x: 16, y: 11, "text-anchor": "middle", "font-size": 14, fill: Array.isArray(marker.color) ? "#21918c" : marker.color });
    text.textContent = type === "histogram" ? "■" : marker.symbol === "star" ? "★" : MARKS[SYMBOLS.indexOf(marker.symbol)];
    picture.append(text);
    return picture;
  };

  const isNarrow = ({ div }) => div.clientWidth < NARROW;

  const layout = (plot) => {
    const { chart, div } = plot;
    const text = getComputedStyle(document.body).color;
    const quiet = getComputedStyle(form.querySelector("[type=reset]")).borderTopColor;
    const grid = getComputedStyle(document.querySelector(".chart")).borderTopColor;
    const side = (title, width, more) => ({ title: { text: wrapped(title, width), standoff: 8 }, gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, ...more });
    const whole = (name) => (plot.few[name] ? { tickmode: "linear", tick0: 0, dtick: 1 } : {});
    const ticks = chart.ticks.length
      ? { tickmode: "array", tickvals: [...chart.ticks.keys()], ticktext: chart.ticks.map(plain) }
      : {};
    const above = chart.colour !== null && isNarrow(plot); // what the scale there means
    const shapes = chart.guides.map((guide) => ({
      type: "line", layer: "below", line: { color: text, width: 1.2, dash: "dash" },
      ...(guide.axis === "x" ? { x0: guide.at, x1: guide.at, yref: "paper", y0: 0, y1: 1 }
        : guide.axis === "y" ? { y0: guide.at, y1: guide.at, xref: "paper", x0: 0, x1: 1 }
          : diagonal(chart)),
    }));
    return {
      autosize: true, ...printed, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, size: 12.5, family: getComputedStyle(document.body).fontFamily },
      margin: { l: 60, r: 20, t: above ? 70 : 10, b: 50 },
      ...(above && { title: { text: plain(axis(chart.colour)), font: { size: 12.5 }, x: 0.5, yref: "container", y: 1, yanchor: "top", pad: { t: 4 } } }), hovermode: "closest", barmode: "overlay", dragmode: "zoom", shapes,
      xaxis: side(chart.x, Math.max(20, Math.floor(div.clientWidth / 10)), { ...ticks, ...whole("x") }),
      yaxis: side(chart.y, Math.floor(div.clientHeight / 13), chart.log ? logarithmic(chart) : whole("y")),
      showlegend: false, uirevision: "kept", modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: text },
      hoverlabel: { align: "left", namelength: -1 },
    };
  };

  /** An axis that writes its marks out: 1, 2 and 5 of each decade, or 1 alone of many decades. */
  const logarithmic = (chart) => {
    const all = chart.series.flatMap((s) => s.y).filter((v) => v !== null).map(Math.log10);
    const [low, high] = all.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
    const decades = [];
    for (let k = Math.floor(low); k <= Math.ceil(high); k++) decades.push(Number(`1e${k}`));
    const tickvals = decades.flatMap((d) => (decades.length > 4 ? [d] : [d, 2 * d, 5 * d]));
    return { type: "log", tickmode: "array", tickvals, ticktext: tickvals.map(shown) };
  };

  const diagonal = (chart) => {
    const all = chart.series.flatMap((s) => [...s.x, ...s.y]).filter((v) => v !== null);
    const ends = all.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
    return { x0: ends[0], y0: ends[0], x1: ends[1], y1: ends[1] };
  };

  const draw = () => {
    const by = filters();
    const palette = isDark() ? DARK : LIGHT;
    form.querySelectorAll(".mark").forEach((mark, k) => {
      mark.textContent = cycle(MARKS, k);
      mark.style.color = palette[k % palette.length];
    });
    for (const plot of plots) {
      plot.traces = traces(plot, by);
      plot.at = -1;
      Plotly.react(plot.div, plot.traces, layout(plot), { responsive: true, displaylogo: false,
        // Named one by one: among plotly's own is one that offers to send the chart away.
        modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", ...(plot.many ? [] : ["toImage"])]] }).then(() => wholeTicks(plot));
      legend(plot);
      plot.figure.querySelector("details").open && numbers(plot);
    }
    for (const range of form.querySelectorAll(".range"))
      range.querySelector("output").textContent = counted(range.dataset.quantity, by);
    find("filtered").textContent = hiddenBy(by);
  };

  /** Mark whole numbers only, where so little of an axis is shown that there is room between. */
  const wholeTicks = (plot) => {
    const change = {};
    for (const name of plot.whole) {
      const [from, to] = plot.div.layout[`${name}axis`].range ?? [0, Infinity];
      const few = Math.abs(to - from) < 10;
      if (few !== Boolean(plot.few[name])) change[`${name}axis.tickmode`] = few ? "linear" : "auto";
      if (few && !plot.few[name]) Object.assign(change, { [`${name}axis.tick0`]: 0, [`${name}axis.dtick`]: 1 });
      plot.few[name] = few;
    }
    if (Object.keys(change).length) Plotly.relayout(plot.div, change);
  };

  // ---------------------------------------------------------------- numbers and keyboard

  /** The points of a chart as a table, the highest first. */
  const numbers = ({ chart, figure }) => {
    const details = figure.querySelector("details");
    const by = filters();
    const points = chart.series.flatMap((series) => passing(series, by).map((k) => [series, k]));
    const height = ([series, k]) => series.value?.[k] ?? series.y[k] ?? -Infinity;
    points.sort((a, b) => height(b) - height(a));
    const list = document.createElement("ol");
    for (const [series, k] of points.slice(0, ROWS)) {
      const item = document.createElement("li");
      item.textContent = lines(chart, series, k).join(" · ");
      list.append(item);
    }
    const note = document.createElement("p");
    note.className = "note";
    note.textContent = `The ${Math.min(ROWS, points.length)} highest of ${points.length.toLocaleString("en")}.`;
    details.replaceChildren(details.querySelector("summary"), note, list);
  };

  /** Go to another point of a chart, show what is said of it, and have it read out. */
  const walk = (plot, by) => {
    const points = plot.traces.flatMap((trace, curve) => (trace.told || []).map((_, k) => [curve, k]));
    if (!points.length) return;
    plot.at = plot.at < 0 ? (by > 0 ? 0 : points.length - 1) : (plot.at + by + points.length) % points.length;
    const [curveNumber, pointNumber] = points[plot.at];
    Plotly.Fx.hover(plot.div, [{ curveNumber, pointNumber }]);
    find("said").textContent = plot.traces[curveNumber].told[pointNumber].join(", ");
  };

  for (const plot of plots) {
    plot.figure.querySelector("details").addEventListener("toggle", (event) => event.target.open && numbers(plot));
    plot.div.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (by) {
        event.preventDefault();
        walk(plot, by);
      }
      if (event.key === "Escape") Plotly.Fx.unhover(plot.div);
    });
  }
  const choose = () => {
    root.dataset.theme = find("theme").value;
    draw();
  };
  form.hidden = find("colours").hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", draw);
  form.addEventListener("reset", () => setTimeout(draw));
  find("theme").addEventListener("change", choose);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    printed = { width: PRINTED };
    draw();
  });
  addEventListener("afterprint", () => {
    printed = {};
    choose();
  });
  draw();
  for (const plot of plots) {
    plot.div.on("plotly_relayout", () => wholeTicks(plot));
    for (const event of ["plotly_afterplot", "plotly_relayouting"]) plot.div.on(event, () => paint(plot));
    paint(plot);
  }
})();
