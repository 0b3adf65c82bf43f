"""Draw the pipeline as an SVG picture; tools/draw-pipeline runs it.

Tables, purposes and priorities come from the declaration (:mod:`dfmeta.flows.pipeline`).
The destinations of a purpose's packets come from the builders of flows, run on a guest with one
address of each version of IP. The program uses only the standard library, and its output is
deterministic.
"""

from __future__ import annotations

import argparse
import ast
import enum
import itertools
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import TypeVar
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dfmeta.flows import pipeline
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.openflow import PORT_IN_PORT, Flow, Output, Reclassify, ToController
from dfmeta.flows.pipeline import BR_INT, TABLES, Layout, Priority, Purpose, Stage
from dfmeta.identity.key import SLOTS, SLOTS6
from dfmeta.model import Binding, Endpoint, GuestAddress, NextHop

P = TypeVar("P", bound=enum.IntEnum)
TARGET = Path(__file__).resolve().parents[1] / "doc" / "source"
PICTURE = "pipeline.svg"
LAYOUT = Layout()

_SERVICE6 = IPv6Address("fe80::a9fe:a9fe")
SAMPLE_TAP = Tap(
    ofport=2,
    mac="02:00:00:00:00:01",
    port=18080,
    ip6="fd00:a9fe:a9fe:a9fe::a9fe",
    guest_ip6=(str(_SERVICE6),),
)
_MAC = "fa:16:3e:00:00:01"
SAMPLE_GUEST = ServedEndpoint(
    Endpoint(1),
    addresses={
        SLOTS[0]: GuestAddress(_MAC, IPv4Address("10.0.0.5")),
        SLOTS6[0]: GuestAddress(_MAC, IPv6Address("fe80::1"), _SERVICE6),
    },
    next_hops=(NextHop("10.0.0.2", "fa:16:3e:00:00:02"),),
)
_SUBPORT = replace(SAMPLE_GUEST, endpoint=Endpoint(1, 100), next_hops=())
_CONTAINER = replace(SAMPLE_GUEST, binding=Binding(_MAC, IPv4Address("10.0.0.5")))
_PORTS = {
    SAMPLE_TAP.ofport: "tap-metadata",
    SAMPLE_GUEST.endpoint.ofport: "the guest's port",
    PORT_IN_PORT: "the ingress port",
}
"""OpenFlow port number → its name."""
CONTROLLER = "dfmeta-agent"
DROPPED = "dropped"
BRIDGE = "the other flows"


@cache
def sample_flows() -> tuple[Flow, ...]:
    """Return all flows of a switch that has one guest with a next hop and an address of each
    version of IP, one behind a VLAN tag, and a container whose source is checked."""
    guests = (SAMPLE_GUEST, _SUBPORT, _CONTAINER)
    return *fixed_flows(SAMPLE_TAP), *(
        flow for guest in guests for flow in guest_flows(guest, SAMPLE_TAP)
    )


def exits(purpose: Purpose) -> list[Stage | str]:
    """Return the destinations of packets of *purpose*: tables, or names of other places."""
    stages: list[Stage | str] = []
    for flow in sample_flows():
        if flow.purpose is not purpose:
            continue
        for action in flow.actions:
            if isinstance(action, Output):
                stages.append(_PORTS[action.port])
            elif isinstance(action, ToController):
                stages.append(CONTROLLER)
            elif isinstance(action, Reclassify):
                stages.append(BRIDGE)
        if isinstance(flow.goto, Stage):
            stages.append(flow.goto)
    return list(dict.fromkeys(stages)) or [DROPPED]


def descriptions(purposes: type[P]) -> dict[P, str]:
    """Return the description of each purpose in the declaration.

    :param purposes: :class:`Purpose`, or that of the second bridge.
    """
    tree = ast.parse(Path(pipeline.__file__).read_text(encoding="utf-8"))
    body = next(
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == purposes.__name__
    )
    result = {}
    for name, text in itertools.pairwise(body):
        if isinstance(name, ast.Assign) and isinstance(text, ast.Expr):
            assert isinstance(name.targets[0], ast.Name)
            assert isinstance(text.value, ast.Constant)
            result[purposes[name.targets[0].id]] = " ".join(str(text.value.value).split())
    return result


def in_order(stage: Stage) -> list[Purpose]:
    """Return the purposes of a table, the highest priority first."""
    purposes = [purpose for purpose in BR_INT.purposes if purpose.stage is stage]
    return sorted(purposes, key=lambda purpose: (-LAYOUT.priority(purpose), purpose.value))


def has_last(stage: Stage) -> bool:
    """Return whether a flow of that table matches all packets that no other flow matches."""
    return any(flow.priority is Priority.DROP for flow in in_order(stage))


def label(purpose: Purpose) -> str:
    """Return the label of the page's section on *purpose*, for links."""
    return f"purpose-{purpose.name.lower().replace('_', '-')}"


# The picture. Sizes are in SVG's user units. The width of a letter is larger than in common fonts.

WIDTH = 760
BOX_LEFT, BOX_WIDTH = 44, 470
BOX_RIGHT = BOX_LEFT + BOX_WIDTH
PILL_LEFT, PILL_WIDTH, PILL_HEIGHT = 546, 182, 24
RIGHT_LANE = WIDTH - 16
LEFT_LANE = 18
LANE_STEP = 8
TEXT_LEFT = BOX_LEFT + 60
LETTER = 6.6
LINE = 16
GAP = 34
STYLE = """
.paper{fill:#ffffff} .box{fill:#f6f8fa;stroke:#57606a} .head{fill:#dbe6f3;stroke:#57606a}
.pill{fill:#ffffff;stroke:#57606a} .drop{stroke-dasharray:4 3} .rule{stroke:#c5ccd3}
.line{fill:none;stroke:#0b57a4;stroke-width:1.6} .tip{fill:#0b57a4}
text{font-family:"DejaVu Sans",Verdana,Arial,sans-serif;font-size:12px;fill:#1b1f24}
.name{font-weight:bold} .soft{fill:#454d56;font-size:11px} .title{font-size:13px;font-weight:bold}
@media (prefers-color-scheme: dark){
.paper{fill:#14181d} .box{fill:#1e242b;stroke:#8b949e} .head{fill:#263a52;stroke:#8b949e}
.pill{fill:#14181d;stroke:#8b949e} .rule{stroke:#39424c}
.line{stroke:#7db7f5} .tip{fill:#7db7f5} text{fill:#e8edf2} .soft{fill:#b9c2cb}
}
"""


@dataclass(frozen=True)
class Row:
    """A row of a table's box: one purpose."""

    purpose: Purpose
    top: int
    text: tuple[str, ...]

    @property
    def height(self) -> int:
        """Return the height of the row."""
        return 28 + (LINE - 2) * len(self.text)

    @property
    def middle(self) -> int:
        """Return the vertical position at which the row's arrow starts."""
        return self.top + self.height // 2


@dataclass(frozen=True)
class Box:
    """The box of a table."""

    stage: Stage
    top: int
    why: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def head(self) -> int:
        """Return the height of the heading."""
        return heading_height(self.why)

    @property
    def entry(self) -> int:
        """Return the vertical position at which arrows to the box end."""
        return self.top + 18

    @property
    def bottom(self) -> int:
        """Return the vertical position of the lower edge."""
        foot = 0 if has_last(self.stage) else 24
        return self.rows[-1].top + self.rows[-1].height + foot


def heading_height(why: tuple[str, ...]) -> int:
    """Return the height of a table's heading: its name and its description."""
    return 34 + (LINE - 2) * len(why)


def boxes() -> list[Box]:
    """Return the boxes of all tables, one below the other."""
    texts, result, top = descriptions(Purpose), [], 74
    for stage, table in TABLES.items():
        why = tuple(textwrap.wrap(table.why, int((BOX_WIDTH - 24) / LETTER)))
        below = top + heading_height(why)
        rows = []
        for purpose in in_order(stage):
            wrapped = textwrap.wrap(texts[purpose], int((BOX_RIGHT - TEXT_LEFT - 10) / LETTER))
            rows.append(Row(purpose, below, tuple(wrapped)))
            below += rows[-1].height
        result.append(Box(stage, top, why, tuple(rows)))
        top = result[-1].bottom + GAP
    return result


def picture() -> str:
    """Return the SVG: boxes for tables, rows for purposes, arrows for destinations."""
    all_boxes = boxes()
    height = all_boxes[-1].bottom + 20
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        "<!-- Made by tools/draw-pipeline from dfmeta/flows: change that, then run it. -->",
        '<title id="title">The tables of dfmeta, the flows in them and where packets go</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        *_entrance(all_boxes[0]),
    ]
    for box in all_boxes:
        parts += _draw_box(box)
    parts += _gotos(all_boxes)
    return "\n".join(parts) + "\n</svg>\n"


def _entrance(first: Box) -> Iterator[str]:
    middle = BOX_LEFT + BOX_WIDTH // 2
    yield _pill(middle - 130, 14, 260, "every packet that enters the bridge", "pill")
    yield _arrow([(middle, 14 + PILL_HEIGHT), (middle, first.top)])


def _draw_box(box: Box) -> Iterator[str]:
    height = box.bottom - box.top
    size = f'x="{BOX_LEFT}" y="{box.top}" width="{BOX_WIDTH}"'
    yield f'<rect class="box" {size} height="{height}"/>'
    yield f'<rect class="head" {size} height="{box.head}"/>'
    title = f"Table {LAYOUT.number(box.stage)}: {TABLES[box.stage].name}"
    yield _text(BOX_LEFT + 12, box.top + 20, title, "title")
    for number, line in enumerate(box.why):
        yield _text(BOX_LEFT + 12, box.top + 37 + number * (LINE - 2), line, "soft")
    for row in box.rows:
        yield from _draw_row(row)
        if (below := row.top + row.height) < box.bottom:
            yield f'<path class="rule" d="M{BOX_LEFT} {below}H{BOX_RIGHT}"/>'
    if not has_last(box.stage):
        text = "all other packets: flows of other programs, as without dfmeta"
        yield _text(BOX_LEFT + 12, box.bottom - 8, text, "soft")


def _draw_row(row: Row) -> Iterator[str]:
    yield _text(BOX_LEFT + 12, row.top + 18, str(LAYOUT.priority(row.purpose)), "")
    yield _text(TEXT_LEFT, row.top + 18, row.purpose.name, "name")
    for number, line in enumerate(row.text):
        yield _text(TEXT_LEFT, row.top + 34 + number * (LINE - 2), line, "soft")
    for place in exits(row.purpose):
        if isinstance(place, str):
            kind = "pill drop" if place == DROPPED else "pill"
            yield _arrow([(BOX_RIGHT, row.middle), (PILL_LEFT, row.middle)])
            yield _pill(PILL_LEFT, row.middle - PILL_HEIGHT // 2, PILL_WIDTH, place, kind)


def _gotos(all_boxes: list[Box]) -> Iterator[str]:
    """Yield arrows to the next table on the left, and to tables further down on the right."""
    at = {box.stage: number for number, box in enumerate(all_boxes)}
    right = 0
    for box in all_boxes:
        # Arrows to the next table share the left side with no arrow of another table.
        left = 0
        for row in box.rows:
            for stage in exits(row.purpose):
                if not isinstance(stage, Stage):
                    continue
                entry = all_boxes[at[stage]].entry
                if at[stage] == at[box.stage] + 1:
                    lane, edge = LEFT_LANE + left * LANE_STEP, BOX_LEFT
                    left += 1
                else:
                    lane, edge = RIGHT_LANE - right * LANE_STEP, BOX_RIGHT
                    right += 1
                yield _arrow([(edge, row.middle), (lane, row.middle), (lane, entry), (edge, entry)])


def _arrow(points: list[tuple[int, int]]) -> str:
    (x0, y0), (x1, y1) = points[-2:]
    dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    back = (x1 - 8 * dx, y1 - 8 * dy)
    wings = [(back[0] + 4 * dy, back[1] + 4 * dx), (back[0] - 4 * dy, back[1] - 4 * dx)]
    way = " ".join(f"{x},{y}" for x, y in [*points[:-1], back])
    tip = " ".join(f"{x},{y}" for x, y in [(x1, y1), *wings])
    return f'<polyline class="line" points="{way}"/><polygon class="tip" points="{tip}"/>'


def _pill(left: int, top: int, width: int, text: str, kind: str) -> str:
    middle = left + width // 2
    return (
        f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{PILL_HEIGHT}" '
        f'rx="{PILL_HEIGHT // 2}"/>'
        f'<text x="{middle}" y="{top + 16}" text-anchor="middle">{escape(text)}</text>'
    )


def _text(left: int, base: int, text: str, kind: str) -> str:
    mark = f' class="{kind}"' if kind else ""
    return f'<text x="{left}" y="{base}"{mark}>{escape(text)}</text>'


def main() -> int:
    """Write the picture, or with ``--check`` report whether it is up to date."""
    parser = argparse.ArgumentParser(description="Draw the pipeline from its declaration.")
    parser.add_argument("--output", type=Path, default=TARGET, help="directory to write to")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with status 1 if the picture is out of date",
    )
    options = parser.parse_args()
    path, content = options.output / PICTURE, picture()
    if path.exists() and path.read_text(encoding="utf-8") == content:
        return 0
    if options.check:
        print(f"{path} is out of date: run tools/draw-pipeline")
        return 1
    path.write_text(content, encoding="utf-8")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
