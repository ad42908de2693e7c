"""Hold the style sheet of the page (phone and desktop, light and dark) and the script of a live page."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --bg: #fff; --fg: #1d2327; --quiet: #5c6770; --line: #d5dade; --panel: #f5f7f8;
  --accent: #0b62c4; --dot: #b4460f; --parallel: #0b62c4; --vector: #b4460f; --unrolled: #25772f; --thread: #7a3aa8;
  --serial: #87929b; }
@media (prefers-color-scheme: dark) { :root { --bg: #14181b; --fg: #e6eaed; --quiet: #9aa6af; --line: #353d43;
  --panel: #1d2327; --accent: #6cb0ff; --dot: #ff9d66; --parallel: #6cb0ff; --vector: #ff9d66; --unrolled: #7fd08a;
  --thread: #c99bf0; --serial: #76828b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--bg); color: var(--fg);
  font: 1rem/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: .75rem 0 .25rem; }
.quiet, figcaption, .axis { color: var(--quiet); font-size: .875rem; }
.state { border-left: .25rem solid var(--accent); background: var(--panel); padding: .5rem .75rem; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0; }
.facts dt { color: var(--quiet); } .facts dd { margin: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9375rem; }
th { color: var(--quiet); font-weight: normal; font-size: .875rem; border-bottom: 1px solid var(--line); }
th, td { padding: .3rem .5rem; text-align: right; vertical-align: top; overflow-wrap: normal; }
td { border-bottom: 1px solid var(--line); }
th.left, td.left { text-align: left; overflow-wrap: anywhere; }
a { color: var(--accent); }
.bars { margin: 0; } .bars > div { display: grid; grid-template-columns: 7rem 1fr; gap: .5rem; margin: .2rem 0; }
.bars dt { color: var(--quiet); } .bars dd { margin: 0; display: grid; grid-template-columns: 1fr 8rem; gap: .5rem;
  align-items: center; }
.bar { display: block; background: var(--accent); height: .8rem; min-width: 2px; }
.value { white-space: nowrap; font-variant-numeric: tabular-nums; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .6rem 0; padding: 0 .75rem; }
details[open] { padding-bottom: .75rem; }
summary { cursor: pointer; padding: .5rem 0; } summary b { margin-right: .5rem; }
.panels { display: grid; align-items: start; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
figure { margin: 0; min-width: 0; }
.chart { width: 100%; max-width: 30rem; height: auto; display: block; }
.chart text { fill: var(--quiet); font: 11px system-ui, sans-serif; } .chart .grid { stroke: var(--line); }
.chart .line { fill: none; stroke: var(--accent); stroke-width: 2; } .chart .best { fill: var(--accent); }
.chart .pair { fill: var(--dot); fill-opacity: .65; }
.profile { width: 100%; height: auto; display: block; } .profile text { fill: var(--quiet);
  font: 11px system-ui, sans-serif; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .3rem 0; padding: 0;
  color: var(--quiet); font-size: .875rem; }
.key { display: inline-block; width: .8rem; height: .8rem; margin-right: .3rem; vertical-align: -.1rem; }
.of-importing { fill: #8a6d3b; background: #8a6d3b; } .of-searching { fill: var(--accent); background: var(--accent); }
.of-building { fill: var(--dot); background: var(--dot); }
.of-checking { fill: var(--thread); background: var(--thread); }
.of-timing { fill: var(--unrolled); background: var(--unrolled); }
.of-compiling { fill: #c2a51e; background: #c2a51e; } .of-verifying { fill: #2a8f99; background: #2a8f99; }
.of-else { fill: var(--serial); background: var(--serial); } .of-idle { fill: var(--line); background: var(--line); }
.nest { font-size: .8125rem; line-height: 1.35; }
.loop { border: 1px solid var(--line); border-left: .25rem solid var(--serial); border-radius: .25rem;
  padding: .15rem 0 .15rem .4rem; margin: .15rem 0; background: var(--bg); }
.loop:nth-child(even) { background: var(--panel); }
.loop.parallel { border-left-color: var(--parallel); } .loop.vector { border-left-color: var(--vector); }
.loop.unrolled { border-left-color: var(--unrolled); } .loop.thread { border-left-color: var(--thread); }
.chip { border: 1px solid currentColor; border-radius: .6rem; padding: 0 .4rem; margin-left: .3rem;
  font-size: .75rem; white-space: nowrap; }
.parallel > div .chip { color: var(--parallel); } .vector > div .chip { color: var(--vector); }
.unrolled > div .chip { color: var(--unrolled); } .thread > div .chip { color: var(--thread); }
.statement { display: block; padding: .1rem .3rem; font: .75rem ui-monospace, monospace; }
@media (max-width: 46rem) {
  body { padding: .6rem; }
  .facts { grid-template-columns: 1fr; gap: 0; } .facts dd { margin: 0 0 .4rem; }
  table, tbody, tr, td { display: block; } thead { display: none; }
  tr { border: 1px solid var(--line); border-radius: .4rem; padding: .4rem .6rem; margin: .5rem 0; }
  td, td.left { border: 0; padding: .1rem 0; text-align: right; display: flex; justify-content: space-between;
    gap: 1rem; }
  td::before { content: attr(data-label); color: var(--quiet); flex: none; }
  td.name { font-weight: 600; text-align: left; } td.name::before { content: none; }
  .bars > div { grid-template-columns: 6rem 1fr; } details { padding: 0 .5rem; }
}
"""
"""Style sheet of every page."""

SCRIPT = """
"use strict";
(function () {
  var shown = document.getElementById("page"), version = shown.dataset.version, closed = {};
  document.addEventListener("toggle", function (e) {
    if (e.target.id) { closed[e.target.id] = !e.target.open; }
  }, true);
  function keep(root) {
    Object.keys(closed).forEach(function (id) {
      var found = root.querySelector("#" + CSS.escape(id));
      if (found) { found.open = !closed[id]; }
    });
  }
  function say(text) { document.getElementById("live").textContent = text; }
  function renew() {
    if (document.hidden) { return; }
    fetch("body?after=" + encodeURIComponent(version), { cache: "no-store" }).then(function (answer) {
      if (answer.status === 204) { say("live"); return null; }
      if (!answer.ok) { throw new Error("status " + answer.status); }
      return answer.text().then(function (text) {
        var selected = window.getSelection();
        if (selected && !selected.isCollapsed) { return; }
        var left = window.scrollX, top = window.scrollY;
        version = answer.headers.get("X-Version");
        shown.innerHTML = text;
        keep(shown);
        window.scrollTo(left, top);
        say("live");
      });
    }).catch(function () { say("felixlike watch does not answer any more; this is the last page it gave"); });
  }
  window.setInterval(renew, 2000);
  document.addEventListener("visibilitychange", renew);
})();
"""
"""Script of a live page. It requests updates every two seconds while the page is visible. It preserves the scroll
position, open and closed sections, and selected text.
"""
