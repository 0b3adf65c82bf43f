"""A bar chart as SVG, written without a package: it has only two columns of bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

from bench.targets import LOAD, Report

WIDTH, NAMES, PANEL, GAP = 760, 170, 245, 50
TOP, ROW, BAR = 56, 26, 16
STYLE = """
.paper{fill:#ffffff} .bar{fill:#57606a} .ours{fill:#0b57a4}
text{font-family:"DejaVu Sans",Verdana,Arial,sans-serif;font-size:12px;fill:#1b1f24}
.title{font-weight:bold} .soft{font-size:11px}
@media (prefers-color-scheme: dark){
.paper{fill:#14181d} .bar{fill:#8b949e} .ours{fill:#7db7f5} text{fill:#e8edf2}
}
"""


def chart(report: Report) -> str:
    """Draw requests a second and CPU time of the proxies: 32 clients, new connections."""
    rows = {
        name: loads[LOAD] for name, loads in report["throughput"].items() if "nginx" not in name
    }
    height = TOP + ROW * len(rows) + 14
    title = "32 clients, a connection for each request"
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        "<!-- Made by bench/report.py from the figures of bench/proxy.py. -->",
        f'<title id="title">{title}</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="10" y="20">{title}</text>',
    ]
    for place, name in enumerate(rows):
        parts.append(f'<text x="10" y="{_line(place)}">{escape(name)}</text>')
    rates = {name: cell["rate"] for name, cell in rows.items()}
    costs = {name: cell["cpu"] for name, cell in rows.items()}
    parts += _panel(NAMES, "requests a second", rates, ",.0f")
    parts += _panel(NAMES + PANEL + GAP, "CPU ms for a request", costs, ".2f")
    return "\n".join([*parts, "</svg>", ""])


def _line(place: int) -> int:
    return TOP + ROW * place + BAR - 3


def _panel(left: int, title: str, values: Mapping[str, float], form: str) -> Iterator[str]:
    yield f'<text class="soft" x="{left}" y="42">{title}</text>'
    most = max(values.values()) or 1.0
    for place, (name, value) in enumerate(values.items()):
        # The number stands behind its bar.
        length = max(1, round((PANEL - 50) * value / most))
        kind = "ours" if name.startswith("dfmeta") else "bar"
        top = TOP + ROW * place
        yield f'<rect class="{kind}" x="{left}" y="{top}" width="{length}" height="{BAR}"/>'
        text = format(value, form)
        yield f'<text class="soft" x="{left + length + 5}" y="{_line(place)}">{text}</text>'
