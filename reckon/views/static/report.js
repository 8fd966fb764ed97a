const charts = JSON.parse(document.getElementById("charts").textContent);
function ink(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
function drawAll() {
  charts.forEach((one, at) => {
    const place = document.getElementById("chart-" + at), narrow = place.clientWidth < 560;
    const axis = { gridcolor: ink("--line"), zerolinecolor: ink("--line"), linecolor: ink("--soft"),
                   automargin: true };
    const layout = { ...one.layout, font: { color: ink("--ink"), family: "system-ui, sans-serif" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 60, r: 15, t: 15, b: 50, ...(one.layout.margin ?? {}) },
      legend: narrow ? { orientation: "h", y: -0.25 } : { ...(one.layout.legend ?? {}) } };
    for (const name of ["xaxis", "yaxis"]) layout[name] = { ...axis, ...(layout[name] ?? {}) };
    if (narrow && layout.yaxis.type === "category") {  // the table below has the whole names
      const names = [...new Set(one.data.flatMap(trace => trace.y))];
      Object.assign(layout.yaxis, { tickvals: names, ticktext: names.map(n => n.split(":")[0]) });
    }
    Plotly.react(place, one.data, layout, { displayModeBar: false, responsive: true });
  });
}
drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
addEventListener("resize", () => { clearTimeout(drawAll.timer); drawAll.timer = setTimeout(drawAll, 150); });
