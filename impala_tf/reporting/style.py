"""The style sheet of the page and of its pictures."""

# Six colours that people with any kind of colour vision can tell apart by lightness and hue. Each
# has a contrast of at least 5 to the background; dash patterns help, too.
_LIGHT = ("#0060a8", "#c2410c", "#00785c", "#9b2c7f", "#7a6000", "#4b4b57")
_DARK = ("#5bb4f5", "#ff9a62", "#3fcfa0", "#f29ad6", "#e2c54a", "#b9bcc8")
COLOURS = len(_LIGHT)
_DASHES = ("none", "7 3", "2 3", "9 3 2 3", "4 4", "12 4")
DASHES = len(_DASHES)

_LIGHT_THEME = "--page:#fff;--text:#16181d;--dim:#5a6270;--rule:#dfe3e8;--panel:#f6f7f9;"
_DARK_THEME = "--page:#15171c;--text:#e9ebef;--dim:#a3abb8;--rule:#333842;--panel:#1d2027;"


def _variables(theme: str, colours: tuple[str, ...]) -> str:
    return theme + "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))


THEMES = (
    f":root{{color-scheme:light dark;{_variables(_LIGHT_THEME, _LIGHT)}}}\n"
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(_DARK_THEME, _DARK)}}}}}\n"
)

CHART = """
.chart text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  fill: var(--dim); font-variant-numeric: tabular-nums; }
.chart .label { fill: var(--text); }
.start { text-anchor: start; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.grid { stroke: var(--rule); fill: none; } .axis { stroke: var(--dim); fill: none; }
.target { stroke: var(--dim); stroke-dasharray: 2 4; fill: none; }
.line { fill: none; stroke-width: 2.25; stroke-linejoin: round; }
.line.pale { opacity: .35; }
.band { stroke: none; opacity: .16; }
""" + "".join(
    f".line.c{number} {{ stroke: var(--c{number}); }}"
    f" .band.c{number} {{ fill: var(--c{number}); }}\n"
    for number in range(COLOURS)
)
CHART += "".join(
    f".line.d{number} {{ stroke-dasharray: {dash}; }}\n" for number, dash in enumerate(_DASHES)
)

PAGE = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main, header, footer { max-width: 68rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 3rem; }
h1 { font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.2; letter-spacing: -.015em;
  margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.5rem; letter-spacing: -.01em; margin: 3.5rem 0 .5rem; overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 2.5rem 0 .75rem; }
p { margin: .5rem 0; max-width: 46rem; }
.lead { font-size: 1.15rem; }
.dim, figcaption, footer { color: var(--dim); font-size: .9rem; }
a { color: var(--c0); }
.key { width: 28px; height: 10px; flex: none; margin-right: .5rem; vertical-align: middle; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; list-style: none; padding: 0;
  margin: 1.5rem 0 .25rem; }
figure { margin: 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  gap: .5rem 2rem; }
.chart { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: right; padding: .5rem .6rem; border-bottom: 1px solid var(--rule);
  font-variant-numeric: tabular-nums; vertical-align: top; }
td { white-space: nowrap; }
th { font-weight: 600; }
thead th { color: var(--dim); font-weight: 500; vertical-align: bottom; line-height: 1.3; }
th:first-child { text-align: left; padding-left: 0; min-width: 11rem; }
.best { font-weight: 600; }
.videos { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr));
  gap: 1.5rem; }
video { width: 100%; height: auto; max-height: 24rem; background: var(--panel); border-radius: 6px;
  border: 1px solid var(--rule); display: block; }
.no-video { min-height: 8rem; background: var(--panel); border-radius: 6px; color: var(--dim);
  display: grid; place-items: center; padding: 1rem; text-align: center; font-size: .9rem;
  overflow-wrap: anywhere; }
.videos figcaption { margin-top: .4rem; }
.videos strong { color: var(--text); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.25rem; margin: 1rem 0;
  font-size: .9rem; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: .25rem 0; }
pre { background: var(--panel); border-radius: 6px; padding: .75rem 1rem; margin: .5rem 0 1rem;
  font: .8rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
footer { padding-top: 3rem; padding-bottom: 3rem; }
@media (max-width: 44rem) {
  header { padding-top: 1.5rem; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table, tbody { display: block; }
  tr { display: grid; grid-template-columns: 1fr 1fr; gap: .1rem 1rem; padding: .75rem 0;
    border-bottom: 1px solid var(--rule); }
  th, td { border: 0; padding: .15rem 0; text-align: left; }
  tr > th { grid-column: 1 / -1; }
  td::before { content: attr(data-label); display: block; color: var(--dim); font-size: .8rem;
    white-space: normal; line-height: 1.3; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
}
@media print { .videos { display: none; } }
"""
