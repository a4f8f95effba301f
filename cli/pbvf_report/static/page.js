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
    at: -1,
  }));

  // Distinct for colour-blind eyes (Okabe and Ito), darker on white and lighter on black.
  const LIGHT = ["#0072b2", "#c75000", "#00805e", "#a8437f", "#5f5f5f", "#8a6d00"];
  const DARK = ["#56b4e9", "#f0a030", "#2cc59a", "#e79ac6", "#b5b5b5", "#f0e442"];
  const cycle = (list, k) => list[(k + Math.floor(k / list.length)) % list.length];
  const SYMBOLS = ["circle", "diamond", "square", "triangle-up", "cross", "x"];
  const MARKS = ["●", "◆", "■", "▲", "✚", "✖"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const GL_FROM = 2000; // points from which the graphics card draws them
  const GL_CHARTS = 4; // a browser gives a page few places to draw there
  const ROWS = 200; // of a table of numbers
  const PRINTED = 640; // width of a chart on paper, in CSS pixels
  let printed = {};

  const plain = (text) => String(text).replace(/[&<>$]/g, (sign) => `&#${sign.charCodeAt(0)};`);
  /** A title in lines of so many letters, its unit in a line of its own; plotly breaks none. */
  const wrapped = (text, width) =>
    (text.length > width ? text.replace(" (", "\n(") : text)
      .replace(new RegExp(`(.{1,${width}})( |$)`, "gm"), "$1\n").trim()
      .split(/\n+/).map(plain).join("<br>");
  const short = (text) => (text.length > 34 ? text.slice(0, 33) + "…" : text);
  const shown = (value) =>
    value === null ? "–" : value.toLocaleString("en", { maximumSignificantDigits: 5 });
  const isDark = () =>
    root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
  const hasGl = (() => {
    const context = document.createElement("canvas").getContext("webgl");
    if (context) context.getExtension("WEBGL_lose_context")?.loseContext();
    return Boolean(context);
  })();
  let glLeft = hasGl ? GL_CHARTS : 0;
  for (const plot of plots) {
    for (const series of plot.chart.series)
      series.isNumbered = String(series.x) === String(series.index);
    if (plot.chart.series.every((s) => s.style === "histogram"))
      plot.figure.querySelector("details").hidden = true;
    const points = plot.chart.series.map((s) => (s.style === "points" ? s.x.length : 0));
    plot.gl = Math.max(...points) >= GL_FROM && glLeft-- > 0;
  }

  // ------------------------------------------------------------------------------ filters

  const filters = () => {
    const bound = (id, none) => {
      const value = find(id)?.value;
      return value ? Number(value) : none;
    };
    const sources = [...form.querySelectorAll("[name=source]:checked")];
    return {
      sources: new Set(sources.map((box) => Number(box.value))),
      low: bound("low", -Infinity),
      high: bound("high", Infinity),
    };
  };

  /** The rows of a series that pass. */
  const passing = (series, by) => {
    if (!by.sources.has(series.source)) return [];
    const value = series.value;
    return [...series.x.keys()].filter(
      (k) => !value || value[k] === null || (by.low <= value[k] && value[k] <= by.high),
    );
  };

  // ------------------------------------------------------------------------------- charts

  const nameOf = (series) =>
    page.sources.length > 1 ? `${page.sources[series.source]}: ${series.name}` : series.name;
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
      tell(axis(chart.colour || "return"), series.value[k]);
    for (const [name, values] of Object.entries(series.more)) tell(name, values[k]);
    return about;
  };

  const traces = (plot, by) => {
    const { chart } = plot;
    const palette = isDark() ? DARK : LIGHT;
    const seen = {};
    const all = [];
    let scaled = false;
    const alone = new Set(chart.series.map((series) => series.source)).size === 1;
    const kept = chart.series.map((series) => passing(series, by));
    const range = chart.series
      .flatMap((s, i) => (s.value && s.style === "points" ? kept[i].map((k) => s.value[k]) : []))
      .reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
    chart.series.forEach((series, number) => {
      const rows = kept[number];
      // Sources keep their colours; series of one source differ by symbols and dashes.
      const names = (seen[`${series.source} ${["line", "band"].includes(series.style)}`] ??= []);
      const isNew = !names.includes(series.name);
      if (isNew) names.push(series.name);
      const turn = names.indexOf(series.name);
      const many = page.sources.length > 1;
      const colour = palette[(series.source + (alone ? turn : 0)) % palette.length];
      const pick = (array) => rows.map((k) => array[k]);
      const base = {
        name: plain(many ? `${short(page.sources[series.source])}: ${series.name}` : series.name),
        legendgroup: `${series.source} ${series.name}`,
        x: pick(series.x),
        showlegend: chart.series.length > 1 && isNew,
      };
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
          const edge = { ...base, mode: "lines", line: { width: 0, color: colour }, hoverinfo: "skip", showlegend: false };
          all.push({ ...edge, y: pick(series.more.low) });
          all.push({ ...edge, y: pick(series.more.high), fill: "tonexty", fillcolor: colour + "33" });
        }
        all.push({ ...common, mode: rows.length > 60 ? "lines" : "lines+markers", line, marker: { size: 5 } });
        return;
      }
      const star = series.style === "stars";
      const marker = { size: star ? 16 : rows.length > 500 ? 5 : 8, color: colour, opacity: star || rows.length < 500 ? 1 : 0.75,
        symbol: star ? "star" : cycle(SYMBOLS, series.source + turn), line: { width: star ? 1.5 : 0, color: isDark() ? "#ffffff" : "#000000" } };
      if (chart.colour && series.value && !star) {
        Object.assign(marker, { line: { width: 0.5, color: "#808890" }, color: pick(series.value), colorscale: "Viridis", cmin: range[0], cmax: range[1], showscale: !scaled,
          colorbar: { title: { text: wrapped(chart.colour, 34), side: "right" }, thickness: 14, outlinewidth: 0 } });
        scaled = true;
      }
      all.push({ ...common, type: plot.gl && !star ? "scattergl" : "scatter", mode: "markers", marker });
    });
    return all;
  };

  const layout = ({ chart, div }) => {
    const text = getComputedStyle(document.body).color;
    const grid = getComputedStyle(document.querySelector(".chart")).borderTopColor;
    const side = (title, width, more) => ({ title: { text: wrapped(title, width), standoff: 8 }, gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, ...more });
    const ticks = chart.ticks.length
      ? { tickmode: "array", tickvals: [...chart.ticks.keys()], ticktext: chart.ticks.map(plain) }
      : {};
    const shapes = chart.guides.map((guide) => ({
      type: "line", layer: "below", line: { color: text, width: 1.2, dash: "dash" },
      ...(guide.axis === "x" ? { x0: guide.at, x1: guide.at, yref: "paper", y0: 0, y1: 1 }
        : guide.axis === "y" ? { y0: guide.at, y1: guide.at, xref: "paper", x0: 0, x1: 1 }
          : diagonal(chart)),
    }));
    return {
      autosize: true, ...printed, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, size: 12.5, family: getComputedStyle(document.body).fontFamily },
      margin: { l: 60, r: 20, t: 10, b: 50 }, hovermode: "closest", barmode: "overlay", dragmode: "zoom", shapes,
      xaxis: side(chart.x, Math.max(20, Math.floor(div.clientWidth / 10)), ticks), yaxis: side(chart.y, Math.floor(div.clientHeight / 13), chart.log ? { type: "log", nticks: 8 } : {}),
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemsizing: "constant" },
      hoverlabel: { align: "left", namelength: -1 },
    };
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
    let passed = 0, total = 0;
    for (const plot of plots) {
      plot.traces = traces(plot, by);
      plot.at = -1;
      Plotly.react(plot.div, plot.traces, layout(plot), { responsive: true, displaylogo: false,
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] });
      for (const series of plot.chart.series.filter((s) => s.value)) {
        passed += passing(series, by).length;
        total += series.x.length;
      }
      plot.figure.querySelector("details").open && numbers(plot);
    }
    find("count").textContent = total ? `${passed.toLocaleString("en")} of ${total.toLocaleString("en")} points` : "";
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
})();
