"""Hold the style sheet of all pages: report, inspect, compare, probes."""

CSS = """
:root { color-scheme: light dark; --paper: #faf9f7; --card: #fff; --ink: #1c1e22; --soft: #666b73;
  --rule: #e3e1dc;
  --blue: #1d5fbf; --pale: #93b1db; --amber: #b3621b; --green: #23783a; --mark: #fdf1c7; --bar:
  #a9c3e8; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #131519; --card: #1b1e23; --ink:
  #e7e5e0;
  --soft: #9ca1aa; --rule: #2f343b; --blue: #82b1ff; --pale: #52719f; --amber: #e2a065; --green:
  #7ccb8d;
  --mark: #4a4020; --bar: #44608c; } } * { box-sizing: border-box; overflow-wrap: anywhere; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui,
  -apple-system, 'Segoe UI',
  'Helvetica Neue', 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', 'Noto Sans CJK SC', sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 48px 32px 32px; } dl div:first-child dd { color:
  var(--blue); }
h1 { font-size: 34px; line-height: 1.2; letter-spacing: -.02em; margin: 2px 0 24px; }
h2 { font-size: 21px; margin: 56px 0 4px; } h3 { font-size: 15px; margin: 28px 0 4px; }
.overline, .lead, .unit, .share, .missed, .legend, dt, th, footer { color: var(--soft); } .missed {
  margin: 8px 0 0; }
.overline, .unit, .share, .missed, .legend, dt, td, footer { font-size: 13px; } .overline, .lead {
  margin: 0; }
.notes { margin: 0 0 28px; padding: 10px 16px 10px 34px; border-left: 3px solid var(--amber);
  background: var(--card); }
.place { margin: 20px 0 0; } .place + .notes { margin-top: 20px; }
.headline { display: grid; grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)); gap: 20px
  32px; margin: 0; }
dl div { border-top: 2px solid var(--rule); padding-top: 10px; } dl div:first-child { border-color:
  var(--blue); }
dd { margin: 0; font-size: 25px; font-weight: 600; letter-spacing: -.01em; } .cards, .charts {
  margin-top: 14px; }
.cards, .charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px),
  1fr)); gap: 16px; }
article, figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  margin: 0; min-width: 0;
  padding: 16px 20px; break-inside: avoid; } figure { padding: 14px 12px 8px 16px; }
.prompt { font: 19px/1.55 Georgia, 'Noto Serif', 'Songti SC', 'Noto Serif CJK SC', serif; margin: 0
  0 12px; }
mark { background: var(--mark); border-bottom: 2px solid var(--amber); border-radius: 3px 3px 0 0; }
.drawn { font-size: 16px; white-space: pre-wrap; } .drawn mark { border: 0; color: inherit; }
.missed { white-space: pre-wrap; }
ol { list-style: none; margin: 0; padding: 0; line-height: 1.75; font-variant-numeric: tabular-nums;
  }
ol li { display: grid; grid-template-columns: 8.5em 1fr 3.6em 1em; gap: 10px; align-items: center; }
.piece { overflow-wrap: anywhere; } .share { text-align: right; }
.bar { display: flex; height: 8px; background: var(--paper); border-radius: 4px; overflow: hidden; }
.bar span { min-width: 2px; background: var(--bar); } .truth .bar span { background: var(--green); }
.truth .piece, .check { color: var(--green); font-weight: 600; } .legend { margin-left: auto; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 8px; margin-bottom: 4px;
  }
.legend span { margin-left: 14px; } .legend .train { border-top: 1.5px solid var(--pale); }
i { display: inline-block; width: 18px; margin-right: 6px; vertical-align: 3px; border-top: 3px
  solid var(--blue); }
.legend .baseline { border-top: 2px dashed var(--amber); } svg { display: block; width: 100%;
  font-size: 11.5px; }
path { fill: none; stroke-linejoin: round; } .grid { stroke: var(--rule); } .axis, .phase { stroke:
  var(--soft); }
.phase { stroke-dasharray: 2 3; } circle { fill: var(--blue); } circle.train { fill: var(--pale); }
.line { stroke: var(--blue); stroke-width: 2.2; } .line.train { stroke: var(--pale); stroke-width:
  1.2; }
.line.baseline { stroke: var(--amber); stroke-width: 1.5; stroke-dasharray: 6 4; } circle.baseline {
  fill: none; }
.tick { fill: var(--soft); text-anchor: middle; } .tick.left { text-anchor: end; }
.value { font-weight: 600; fill: var(--blue); } .value.train { fill: var(--soft); font-weight: 400;
  }
.value.baseline { fill: var(--amber); } .strip { fill: transparent; } .strip:hover { fill: #8884; }
table { border-collapse: collapse; width: 100%; margin-top: 8px; } td table { margin: 0; }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0; border-bottom: 1px solid
  var(--rule); }
tr:last-child > * { border-bottom: 0; } th { font-weight: 400; font-size: 14px; width: 180px; } td
  th { width: 110px; }
.counts { width: auto; } .counts th, .counts td { text-align: right; width: auto; padding: 4px 12px;
  }
.counts th:first-child { text-align: left; } small { color: var(--amber); font-size: 11px; }
td, .prompt, .missed, dd, li { overflow-wrap: anywhere; }
td { font-family: ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
summary { cursor: pointer; margin-top: 40px; } summary h2 { display: inline; } @page { margin: 14mm;
  }
footer { margin-top: 48px; padding-top: 12px; border-top: 1px solid var(--rule); }
@media (max-width: 600px) { main { padding: 28px 14px; } figure { padding: 12px 4px 6px 8px; } th {
  width: 110px; }
  svg { font-size: 14px; overflow: visible; } .headline { grid-template-columns: 1fr 1fr; gap: 14px
  20px; }
  dd { font-size: 21px; } }
@media print { main { padding: 0; } body { background: none; } h2, h3 { break-after: avoid; }
  details::details-content { content-visibility: visible; } .cards, .charts { grid-template-columns:
  1fr 1fr; }
  * { print-color-adjust: exact; } }
"""
