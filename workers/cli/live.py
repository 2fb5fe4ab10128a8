"""The live view: what flows, as a person would rather see it than read it.

It follows the bus like any other reader and reads the last answers over the extender's health port, so it shows a
system wherever that runs. On a terminal it redraws itself; without one it prints a line for each thing that changes.
While it runs, what this process logs is a part of it.
"""

import asyncio
import io
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import aiohttp
import orjson
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from tas.explain import explain_node
from tas.policy import PolicyKey, StrategyType
from tas.quantity import Quantity, format_quantity
from tas.rules import State
from tas.sample import newest
from workers.followed_view import FollowedView
from workers.logs import logging_to

REDRAW_SECONDS = 0.25
ANSWERS_SECONDS = 1.0
SHOWN_ANSWERS = 8
SHOWN_EVENTS = 6
KEPT_EVENTS = 50
ROOMY_HEIGHT = 40
"""From this many lines on there are empty lines between the sections, and all hints."""

GAP = 2
"""Blanks between columns."""

_STYLE = {State.VIOLATED: "bold red", State.MET: "green", State.UNKNOWN: "yellow"}

PROBLEM_STYLES = {"warning": "yellow", "error": "bold red", "critical": "bold red"}
_EVENT = re.compile(r"(\d{4}-\d\d-\d\dT\S+)\s+\[(\w+)\s*\]\s+(\S+)\s*(?:\[[\w.]+\])?\s*(.*)")
_FIELD = re.compile(r"""(\w+)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S+(?:\s+(?!\w+=)\S+)*)""")
_FIRST_FIELDS = ("error", "field", "value", "message")


class LiveView:
    """Shows nodes, metrics and their age, policies, who violates what, and the last answers.

    Args:
        followed: What to show; somebody else runs it.
        answers_url: `/answers` of the extender's health port.
        hints: Lines that say how to poke it.
        console: Where to draw.
        cluster: What else each thing of the cluster is, by what it is called.
    """

    name = "live"

    def __init__(
        self,
        followed: FollowedView,
        *,
        answers_url: str,
        hints: Iterable[str],
        console: Console,
        cluster: Callable[[], Mapping[str, str]],
    ) -> None:
        self._answers_url = answers_url
        self._hints = tuple(hints)
        self._console = console
        self._cluster = cluster
        self._history: deque[Text] = deque(maxlen=KEPT_EVENTS)
        self._followed = followed
        self._view = followed.view
        self._answers: list[Mapping[str, Any]] = []
        self._answers_error: str | None = "not asked yet"

    def unready(self) -> str | None:
        """A view is always as ready as it can be."""
        return None

    async def run(self) -> None:
        """Shows until cancelled."""
        draws = self._console.is_terminal
        with logging_to(_Lines(self.happened if draws else self._print_event)):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_answers())
                tasks.create_task(self._draw() if draws else self._print_changes())

    def happened(self, line: str) -> None:
        """Takes what was logged into the picture."""
        self._history.append(event_line(line))

    # What is shown

    async def _draw(self) -> None:
        with Live(self._render(), console=self._console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(self._render(), refresh=True)
                await asyncio.sleep(REDRAW_SECONDS)

    def _render(self) -> RenderableType:
        now = time.time()
        self._view.advance(now)
        width, height = self._console.size
        # What to do comes first, and all of it only where there is room: every section has its share of the rest.
        hints = fitting_hints(self._hints, width, height)
        sections = [
            self._nodes(now, width),
            self._cluster_lines(width),
            self._policy_lines(now, width),
            self._answer_lines(width),
            self._event_lines(height),
        ]
        gap = [Text()] if height >= ROOMY_HEIGHT else []
        lines = list(hints)
        free = height - len(hints) - len(sections) * (1 + len(gap))
        for (head, *rows), share in zip(sections, shares(free, [len(each) - 1 for each in sections]), strict=True):
            head.stylize("bold blue")
            lines += [*gap, head, *cut(rows, share)]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return Text("\n", no_wrap=True, overflow="crop").join(lines[:height])

    def _nodes(self, now: float, width: int) -> list[Text]:
        if not self._view.sampled_nodes:
            return [Text("nodes"), Text(self._followed.unready() or "no samples yet", style="yellow")]
        rows = []
        for node in sorted(self._view.sampled_nodes):
            standing = [Text(name, style=_STYLE[State.VIOLATED]) for name in self._names(node, State.VIOLATED, now)]
            standing += [
                Text(f"?{name}", style=_STYLE[State.UNKNOWN]) for name in self._names(node, State.UNKNOWN, now)
            ]
            rows.append((Text(node), fit(standing, width * 2 // 5, " "), self._metric_pieces(node, now)))
        left = [Text("nodes"), Text("violates, ?unknown to")]
        widths = [
            max(each.cell_len for each in column) for column in zip(left, *(row[:2] for row in rows), strict=True)
        ]
        room = width - sum(widths) - 2 * GAP
        cells = [(*row[:2], fit(row[2], room, "  ")) for row in rows]
        return aligned([(*left, Text("metrics (value, age)")), *cells], width, flexible=2)

    def _standing(self, node: str, state: State, now: float) -> Text:
        """The strategies of which the node's state is `state`."""
        names = self._names(node, state, now)
        return Text(" ".join(names) or "–", style=_STYLE[state] if names else "dim")

    def _names(self, node: str, state: State, now: float) -> list[str]:
        return [
            f"{policy.policy.removeprefix('default/')}/{strategy.type}"
            for policy in explain_node(self._view, node, now).policies
            for strategy in policy.strategies
            if strategy.state is state and strategy.rules
        ]

    def _metric_pieces(self, node: str, now: float) -> list[Text]:
        """Each metric with its value and age; those that most rules look at come first."""
        used = Counter(
            rule.metric
            for entry in self._view.policies.values()
            for strategy in entry.policy.strategies.values()
            for rule in strategy.rules
        )
        pieces = []
        samples = self._view.samples(node)
        for metric in sorted({name for scrape in samples for name in scrape.metrics}, key=lambda m: (-used[m], m)):
            scrape = newest(samples, metric)
            assert scrape is not None
            age = max(0.0, now - scrape.time)
            fresh = age < self._view.default_stale_after
            text = Text()
            text.append(f"{metric} ", style="dim")
            text.append(readable(scrape.metrics[metric]), style="bold" if fresh else "dim strike")
            text.append(f" {age:.0f}s", style="dim" if fresh else "yellow")
            pieces.append(text)
        return pieces

    def _cluster_lines(self, width: int) -> list[Text]:
        rows = [(Text(name), Text(told)) for name, told in self._cluster().items()]
        return aligned([(Text("cluster"), Text()), *rows], width, flexible=1)

    def _policy_lines(self, now: float, width: int) -> list[Text]:
        if not self._view.policies:
            return [Text("policies"), Text(self._followed.unready() or "no policies", style="yellow")]
        rows: list[tuple[int, tuple[Text, ...]]] = []
        for key, entry in sorted(self._view.policies.items()):
            name = Text(str(key).removeprefix("default/"))
            rows.extend(
                (0, (name, Text("problem", style="yellow"), Text(), Text(str(problem), style="yellow")))
                for problem in self._followed.records[key].problems
            )
            for kind, strategy in sorted(entry.policy.strategies.items()):
                states = self._states(key, kind, now)
                nodes = [Text(n, style="red") for n, state in states.items() if state is State.VIOLATED]
                rank = 1 if nodes else 2
                nodes += [Text(f"?{n}", style="yellow") for n, state in states.items() if state is State.UNKNOWN]
                rows.append((rank, (name, Text(kind.value), fit(nodes, width // 4, " "), Text(str(strategy) or "–"))))
        # Only so much fits: what is not as it should be comes first.
        rows.sort(key=lambda row: row[0])
        titles = (Text("policies"), Text("strategy"), Text("violating, ?unknown"), Text("rules"))
        return aligned([titles, *(cells for _, cells in rows)], width, flexible=3)

    def _states(self, key: PolicyKey, kind: StrategyType, now: float) -> dict[str, State]:
        return {
            node: strategy.state
            for node in sorted(self._view.sampled_nodes)
            for policy in explain_node(self._view, node, now).policies
            if policy.policy == str(key)
            for strategy in policy.strategies
            if strategy.type is kind and strategy.state is not None
        }

    def _answer_lines(self, width: int) -> list[Text]:
        if self._answers_error is not None:
            return [Text("answers"), Text(self._answers_error, style="yellow")]
        if not self._answers:
            return [Text("answers"), Text("nobody has asked yet", style="dim")]
        rows = []
        for answer in reversed(self._answers[-SHOWN_ANSWERS:]):
            when, verb, pod, policy, said, ms = answer_cells(answer)
            rows.append(tuple(map(Text, (when, verb, pod, policy.removeprefix("default/"), ms, said))))
        titles = tuple(map(Text, ("answers", "verb", "pod", "policy", "ms", "answer")))
        return aligned([titles, *rows], width, flexible=5)

    def _event_lines(self, height: int) -> list[Text]:
        newest_first = list(reversed(self._history))[: max(SHOWN_EVENTS, height // 5)]
        # A problem is not pushed out by what is well.
        problem = next((each for each in reversed(self._history) if each.style in PROBLEM_STYLES.values()), None)
        if problem is not None and not any(each is problem for each in newest_first[:2]):
            newest_first = [newest_first[0], problem, *(e for e in newest_first[1:] if e is not problem)]
        return [Text("events"), *(each.copy() for each in newest_first or [Text("none yet", style="dim")])]

    async def _print_changes(self) -> None:
        for hint in self._hints:
            self._line(hint)
        shown: dict[str, str] = {}
        last_answer = 0.0
        while True:
            now = time.time()
            self._view.advance(now)
            for node in sorted(self._view.sampled_nodes):
                violates, unknown = (self._standing(node, state, now) for state in (State.VIOLATED, State.UNKNOWN))
                line = f"node {node}: violates {violates}, unknown to {unknown}"
                if shown.get(node) != line:
                    shown[node] = line
                    self._line(f"{line}; {'  '.join(map(str, self._metric_pieces(node, now)))}")
            for name, told in self._cluster().items():
                if shown.get(f"cluster {name}") != told:
                    shown[f"cluster {name}"] = told
                    self._line(f"cluster: {name}: {told}")
            for answer in self._answers:
                if answer["time"] > last_answer:
                    last_answer = answer["time"]
                    self._line("answer: " + "  ".join(answer_cells(answer)))
            await asyncio.sleep(REDRAW_SECONDS)

    def _print_event(self, line: str) -> None:
        self._line(event_line(line).plain)  # in the clock of all the rest

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    # How it is followed

    async def _read_answers(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWERS_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    async with session.get(self._answers_url) as response:
                        self._answers = orjson.loads(await response.read())
                        self._answers_error = None
                except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                    self._answers_error = f"{self._answers_url}: {error or type(error).__name__}"
                await asyncio.sleep(ANSWERS_SECONDS)


class _Lines(io.StringIO):
    """A stream that hands on each line written to it."""

    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__()
        self._take = take

    def write(self, text: str) -> int:
        """Hands on the lines of `text`."""
        for line in text.splitlines():
            if line.strip():
                self._take(line)
        return len(text)


def readable(value: Quantity) -> str:
    """A value as a person takes it in at a glance: large whole numbers with a binary suffix, fractions cut to three."""
    size = abs(value) / 10**9
    for suffix, factor in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20)):
        if size >= factor:
            return f"{value / 10**9 / factor:.1f}{suffix}"
    text = format_quantity(value)
    return text if "." not in text else f"{value / 10**9:.3g}"


def answer_cells(answer: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    """One answer of the ring as the cells of a row."""
    when = time.strftime("%H:%M:%S", time.localtime(answer["time"]))
    said = f"{answer['outcome']}: {answer['passed']} of {answer['candidates']}"
    if answer["verb"] == "prioritize":
        said = " ".join(f"{host}={score}" for host, score in answer["best"]) or "no opinion"
    elif answer["reasons"]:
        said += "; " + ", ".join(f"{count}× {reason}" for reason, count in answer["reasons"].items())
    if answer["error"]:
        said = answer["error"]
    policy = answer["policy"] or "–"
    return (when, answer["verb"], answer["pod"], policy, said, f"{answer['seconds'] * 1000:.2f}")


def fit(pieces: Sequence[Text], width: int, between: str) -> Text:
    """As many whole pieces as there is room for, and how many more there are; the first is always there."""
    for count in range(len(pieces), 0, -1):
        shown = list(pieces[:count])
        if count < len(pieces):
            shown.append(Text(f"+{len(pieces) - count} more", style="dim"))
        text = Text(between).join(shown)
        if text.cell_len <= width or count == 1:
            return text
    return Text("–", style="dim")


def aligned(rows: Sequence[Sequence[Text]], width: int, *, flexible: int) -> list[Text]:
    """Each row as one line; the column `flexible` has what the others leave, and these at most two fifths each."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    widths = [each if index == flexible else min(each, width * 2 // 5) for index, each in enumerate(widths)]
    widths[flexible] = max(1, width - sum(widths) + widths[flexible] - GAP * (len(widths) - 1))
    lines = []
    for row in rows:
        cells = [cell.copy() for cell in row]
        for cell, room in zip(cells, widths, strict=True):
            cell.truncate(room, overflow="ellipsis", pad=True)
        lines.append(Text(" " * GAP).join(cells))
    return lines


def shares(rows: int, wanted: Sequence[int]) -> list[int]:
    """Divides `rows` among those who want so many each: a row to everyone in turn, as long as there are any."""
    given = [0] * len(wanted)
    while rows > 0 and given != list(wanted):
        for index, want in enumerate(wanted):
            if given[index] < want and rows > 0:
                given[index] += 1
                rows -= 1
    return given


def cut(rows: Sequence[Text], count: int) -> list[Text]:
    """The first `count` of the rows; the last of them tells how many there are beyond."""
    if len(rows) <= count or count < 2:
        return list(rows[:count])
    return [*rows[: count - 1], Text(f"… and {len(rows) - count + 1} more", style="dim")]


def fitting_hints(hints: Sequence[str], width: int, height: int) -> list[Text]:
    """All hints where there is room; else the first few that fit into a line: half a command is of no use."""
    if height >= ROOMY_HEIGHT:
        lines = [line[start : start + width] for line in hints for start in range(0, len(line), width)]
        return [Text(line, style="green") for line in lines]
    short = [each for each in (re.sub(r"\s{2,}", "  ", hint) for hint in hints) if len(each) <= width]
    return [Text(each, style="green") for each in short[: max(1, height // 10)]]


def event_line(line: str) -> Text:
    """A line of the log for the eye: the time of day, the level, the event and its fields, the telling ones first."""
    found = _EVENT.fullmatch(line.strip())
    if found is None:
        return Text(line)
    when, level, event, rest = found.groups()
    fields = dict(_FIELD.findall(rest))
    reason = fields.pop("reason", "")
    first = [reason[1:-1] if reason[:1] in ("'", '"') else reason] if reason else []
    first += [f"{key}={fields.pop(key)}" for key in _FIRST_FIELDS if key in fields]
    told = " ".join([*first, *(f"{key}={value}" for key, value in fields.items())]) or rest
    clock = datetime.fromisoformat(when).astimezone().strftime("%H:%M:%S")
    return Text(f"{clock} {level} {event} {told}".rstrip(), style=PROBLEM_STYLES.get(level, ""))
