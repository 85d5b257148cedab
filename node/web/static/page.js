// The loss chart, with what lies under the pointer: drawn over the one that the page brings. All else works without.
"use strict";

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

function draw(figure) {
  const plot = figure.querySelector(".plot");
  if (!plot || figure.querySelector(".uplot")) return;
  const data = JSON.parse(figure.dataset.series);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const whole = [...Array(14).keys()].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power));
  const heldOut = data[2].some((one) => one != null);
  const loss = (_, value) => (value == null ? "" : value.toFixed(4));
  const chart = new uPlot({
    width: plot.clientWidth,
    height: plot.querySelector("svg").clientHeight + 28,
    scales: { x: { time: false } },
    axes: [{ ...axis, size: 28, incrs: whole, values: (_, values) => values.map((value) => compact.format(value)) }, { ...axis, size: 44 }],
    series: [
      { label: figure.dataset.axis === "rounds" ? "round" : figure.dataset.axis, value: (_, value) => (value == null ? "" : value.toLocaleString("en")) },
      { label: "loss", stroke: colour("--accent"), width: 1.75, points: { show: data[0].length < 60, fill: colour("--paper") }, spanGaps: true, value: loss },
      ...(heldOut ? [{ label: "held-out", stroke: colour("--late-fill"), paths: () => null, points: { show: true, size: 9, fill: colour("--late-fill") }, value: loss }] : []),
    ],
    cursor: { y: false, drag: { x: true, y: false } },
  }, heldOut ? data : data.slice(0, 2));
  requestAnimationFrame(() => chart.setLegend({ idx: data[0].length - 1 })); // the newest, until something is pointed at
  chart.root.setAttribute("aria-hidden", "true");
  plot.classList.add("sr"); // stays for who listens: its picture has the description
  figure.prepend(chart.root);
  const resized = new ResizeObserver(() => {
    if (!chart.root.isConnected) return resized.disconnect();
    chart.setSize({ width: figure.clientWidth, height: chart.height });
  });
  resized.observe(figure);
}

function drawAll() {
  document.querySelectorAll("figure.chart[data-series]").forEach(draw);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  document.querySelectorAll(".uplot").forEach((one) => one.remove());
  document.querySelectorAll(".plot.sr").forEach((one) => one.classList.remove("sr"));
  drawAll();
});
document.addEventListener("DOMContentLoaded", drawAll);
document.addEventListener("htmx:afterSettle", drawAll);
