"""Draws a report of `test_under_fire`: `python -m tests.e2e.fire.plots REPORT.json` writes REPORT.svg beside it."""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

MEBIBYTE = 1 << 20


def draw(path: Path) -> Path:
    """Draws pods, labels and memory over time, with the faults as lines. Returns the path of the picture."""
    report = json.loads(path.read_bytes())
    began = min(when for when, _ in report["faults"])
    figure, (pods, labels, memory) = plt.subplots(3, 1, sharex=True, figsize=(16, 14), layout="constrained")
    pods.set_title(f"{report['size']['nodes']} nodes, {len(report['faults'])} faults; answers {report['statuses']}")
    pods.set_ylabel("seconds until a pod is placed")
    pods.plot(*_over_time(report["waits"], began), ".", markersize=3)
    labels.set_ylabel("nodes whose labels are not yet right")
    labels.plot(*_over_time(report["wrong_labels"], began), drawstyle="steps-post")
    memory.set_ylabel("resident memory, MiB")
    memory.set_xlabel("seconds")
    for name, sizes in report["memory"].items():
        seconds, found = _over_time(sizes, began)
        (line,) = memory.plot(seconds, [size / MEBIBYTE for size in found], linewidth=1)
        memory.annotate(name, (seconds[-1], found[-1] / MEBIBYTE), fontsize=7, color=line.get_color())
    for axes in (pods, labels, memory):
        axes.set_ylim(bottom=0)
        _draw_faults(axes, report["faults"], began, named=axes is pods)
    picture = path.with_suffix(".svg")
    figure.savefig(picture)
    return picture


def _over_time(series: list[tuple[float, float]], began: float) -> tuple[list[float], list[float]]:
    return [when - began for when, _ in series], [value for _, value in series]


def _draw_faults(axes: Axes, faults: list[Any], began: float, *, named: bool) -> None:
    for when, kind in faults:
        axes.axvline(when - began, color="0.8", linewidth=0.7, zorder=0)
        if named:
            top = axes.get_ylim()[1]
            axes.annotate(kind, (when - began, top), rotation=90, fontsize=6, color="0.4", va="top")


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
