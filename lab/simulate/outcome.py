"""The results of all simulations, put together for people: means over the seeds, and their least and largest."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from xml.sax.saxutils import escape

from lab.simulate.field import DEFAULT
from lab.simulate.model.simulation import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one load and one algorithm, for each seed."""

    load: str
    algorithm: str
    results: Sequence[Result]

    def mean(self, field: str) -> float:
        """The mean of a field over the seeds."""
        values = self.values(field)
        return fsum(values) / len(values)

    def values(self, field: str) -> list[float]:
        """A field for each seed; `cpu` and the other resources mean their overload."""
        return [
            float(each.overload_of[field] if field in each.overload_of else getattr(each, field))
            for each in self.results
        ]


ROW, BAR, NAME, WIDTH, GAP, HEAD = 26, 14, 230, 170, 24, 58
"""Sizes in pixels: the height of a row and of its bar, the widths of names and of a column, gaps, and the title."""

CAPTION = (
    "A bar is the mean over the seeds, its line goes from the least to the most. Each load has a scale of its own."
)

_STYLE = """text{font:13px sans-serif;fill:#222}.t{font-weight:bold}.s{fill:#666;font-size:11px}
.d{fill:#9aa0a6}.b{fill:#3b78c2}.w{stroke:#222;stroke-width:1}"""


def picture(outcomes: Sequence[Outcome], title: str) -> str:
    """The picture: bars are means over the seeds, lines go from the least to the largest."""
    loads = list(dict.fromkeys(each.load for each in outcomes))
    names = list(dict.fromkeys(each.algorithm for each in outcomes))
    width = NAME + len(loads) * (WIDTH + GAP) + GAP
    height = HEAD + len(names) * ROW + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text class="t" x="10" y="20">{escape(title)}</text>',
        *(_text(10, HEAD + at * ROW + 12, name) for at, name in enumerate(names)),
    ]
    for column, load in enumerate(loads):
        left = NAME + column * (WIDTH + GAP)
        of_load = {each.algorithm: each for each in outcomes if each.load == load}
        most = max((max(each.values("overload")) for each in of_load.values()), default=0.0) or 1.0
        lines += [
            _text(left, HEAD - 16, load, "t"),
            _text(left, HEAD - 3, f"full width: {most / 60:.1f} hours", "s"),
        ]
        for row, name in enumerate(names):
            if name in of_load:
                lines += _bar(left, HEAD + row * ROW, of_load[name], (WIDTH - 45) / most)
    return "\n".join([*lines, _text(10, height - 6, CAPTION, "s"), "</svg>"]) + "\n"


def _bar(left: int, top: int, outcome: Outcome, scale: float) -> list[str]:
    values, mean = outcome.values("overload"), outcome.mean("overload")
    kind = "d" if outcome.algorithm == DEFAULT else "b"
    low, high, middle = left + min(values) * scale, left + max(values) * scale, top + BAR / 2
    return [
        f'<rect class="{kind}" x="{left}" y="{top}" width="{mean * scale:.1f}" height="{BAR}"/>',
        f'<line class="w" x1="{low:.1f}" y1="{middle:.1f}" x2="{high:.1f}" y2="{middle:.1f}"/>',
        _text(high + 5, top + 12, f"{mean / 60:.1f}", "s"),
    ]


def _text(left: float, top: float, text: str, kind: str = "") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{left:.1f}" y="{top:.1f}">{escape(text)}</text>'
