// The loss chart, with what lies under the pointer: drawn over the one that the page brings; and buttons that copy
// commands. All else works without.
"use strict";

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

function draw(figure) {
  const plot = figure.querySelector(".plot");
  if (!plot || figure.querySelector(".uplot")) return;
  const data = JSON.parse(figure.dataset.series);
  const [right, low, high] = figure.dataset.ends.split(" ").map(Number);
  const far = (_, from, to) => [0, to || right]; // from the genesis on
  const tall = (_, from, to) => (from == null || from === to ? [low, high] : uPlot.rangeNum(from, to, 0.1, true));
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const whole = [...Array(14).keys()].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power));
  const [, , said, measured] = data.map((column) => column.some((one) => one != null));
  const curve = { spanGaps: true, value: (_, value) => (value == null ? "" : value.toFixed(4)) };
  const few = { show: data[0].length < 60, fill: colour("--paper") };
  const chart = new uPlot({
    width: plot.clientWidth,
    height: plot.querySelector("svg").clientHeight + 28,
    scales: { x: { time: false, range: far }, y: { range: tall } },
    axes: [{ ...axis, size: 28, incrs: whole, values: (_, values) => values.map((value) => compact.format(value)) }, { ...axis, size: 44 }],
    series: [
      { label: figure.dataset.axis, value: (_, value) => (value == null ? "" : value.toLocaleString("en")) },
      said
        ? { ...curve, label: "training", stroke: colour("--soft"), width: 1, points: { show: false } }
        : { ...curve, label: "training", stroke: colour("--accent"), width: 1.75, points: few },
      ...(said ? [{ ...curve, label: "held-out", stroke: colour("--accent"), width: 2.25, points: few }] : []),
      ...(measured ? [{ ...curve, label: "measured here", stroke: colour("--late-fill"), paths: () => null, points: { show: true, size: 9, fill: colour("--late-fill") } }] : []),
    ],
    cursor: { y: false, drag: { x: true, y: false } },
  }, data.filter((_, column) => column < 2 || [said, measured][column - 2]));
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

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch { // no https: the old way
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

document.documentElement.classList.add("scripted");
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (button) copy(button);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  document.querySelectorAll(".uplot").forEach((one) => one.remove());
  document.querySelectorAll(".plot.sr").forEach((one) => one.classList.remove("sr"));
  drawAll();
});
document.addEventListener("DOMContentLoaded", drawAll);
document.addEventListener("htmx:afterSettle", drawAll);
