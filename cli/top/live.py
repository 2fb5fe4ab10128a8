"""The live view of `tas up` and `tas top`: nodes, cluster, policies, the extender's answers, and log events.

The view follows the bus, and reads the last answers from the extender's health port. On a terminal the view is redrawn;
otherwise a line is printed for each change. The log of this process is a section of the view.
"""

import asyncio
import io
import textwrap
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from tas.enforcing.labels import is_in_our_form
from tas.errors import line_of, printable
from tas.explain.explain import NodeExplanation, explain_node
from tas.policy.directory import FileProblems
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.samples.freshness import is_fresh
from tas.samples.sample import newest
from tas.values.nouns import counted
from tas.values.quantity import short_text
from workers.following.followed_view import FollowedView
from workers.following.freezes import Freezes
from workers.process.errors import WorkerError
from workers.process.logs import logging_to
from workers.process.tasks import together

REDRAW_INTERVAL_SECONDS = 0.25
ANSWERS_SECONDS = 1.0
SHOWN_ANSWERS = 8
SHOWN_EVENTS = 6
KEPT_EVENTS = 50
ROOMY_HEIGHT = 40
"""From this many lines on, empty lines separate the sections, and all hints are shown."""

MOST_LINES = 3
"""For one problem of a policy or a file."""

MOST_METRICS = 50
"""So many metrics of a node are shown; no terminal has room for more."""

MOST_CHARACTERS = 4000
"""Of one line without a terminal, and of one cell: a text of a record may have any length."""

MOST_OF_COLUMN = 4
"""So many characters of a line are shown for each column of the terminal, such as letters with their accents."""

EXPLAINED_AT_ONCE = 20
"""After so many nodes the loop runs: the connection to the bus must answer within seconds."""

POLICIES_SECTION = 2
POLICY_ROWS = 2
"""How many lines remain for policies below many problems: a row, and the number of the others."""

GAP = 2
"""Spaces between columns."""

_STYLE = {State.VIOLATED: "bold red", State.MET: "green", State.UNKNOWN: "yellow"}

PROBLEM_STYLES = {"warning": "yellow", "error": "bold red", "critical": "bold red"}
_FIRST_FIELDS = ("file", "in_force", "reason", "error", "field", "value", "message")
_HIDDEN_FIELDS = ("time", "level", "event", "logger", "exception", "stack")


States = Mapping[tuple[str, StrategyType], tuple[State | None, str]]
"""Of one node, the state of each strategy by policy, and its name on the screen; without a name it is not shown."""


class LiveView:
    """Shows nodes with metrics and their age, policies with the nodes that violate them, and the last answers.

    Another worker keeps `followed` up to date. `answers_url` is `/answers` of the extender's health port. `hints` are
    commands that the user can try; the last one is always shown. `cluster` returns the rows of the section `cluster`:
    text by name. `file_problems` returns what is wrong with the files of policies. `freezes` follows why labels are
    frozen; another worker runs it. `cards` returns the rows of the section `cards`; without rows it is not
    shown. `no_events` is shown without events. Only nodes whose names match `pattern` are shown, as of a shell.
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
        file_problems: Callable[[], FileProblems],
        freezes: Freezes,
        cards: Callable[[], Mapping[str, str]],
        no_events: str = "none yet",
        pattern: str = "*",
    ) -> None:
        self._answers_url = answers_url
        self._hints = tuple(hints)
        self._console = console
        self._cluster = cluster
        self._file_problems = file_problems
        self._freezes = freezes
        self._cards = cards
        self._no_events = no_events
        self._pattern = pattern
        self._explained: dict[str, States] = {}
        self._used: Counter[str] = Counter()
        self._history: deque[Text] = deque(maxlen=KEPT_EVENTS)
        self._followed = followed
        self._view = followed.view
        self._answers: Sequence[Mapping[str, Any]] = []
        self._answers_error: str | None = "not requested yet"

    def unready(self) -> str | None:
        """Always ready."""
        return None

    async def run(self) -> None:
        """Shows until cancelled."""
        draws = can_draw(self._console)
        with logging_to(_Lines(self.add_event if draws else self._print_event)):
            await together(self._draw() if draws else self._print_changes(), self._read_answers())

    def add_event(self, line: str) -> None:
        """Adds a line of the log to the section `events`."""
        self._history.append(event_line(line))

    async def _draw(self) -> None:
        await self.explain()
        with (
            suppress(OSError),  # from the terminal
            Live(self._render(), console=self._console, auto_refresh=False, screen=True) as live,
        ):
            while self._console.file.isatty():
                await self.explain()
                live.update(self._render(), refresh=True)
                await asyncio.sleep(REDRAW_INTERVAL_SECONDS)
        # A closed terminal need not send a signal here: make and ssh may keep it from us.
        raise WorkerError("the terminal is closed")

    def _render(self) -> RenderableType:
        now = time.time()
        width, height = self._console.size
        # Hints come first. The sections share the other lines.
        hints = fitting_hints(self._hints, width, height)
        sections = [
            self._nodes(now, width, height),
            named_lines("cluster", self._cluster() or {"none": ""}, width, height),
            self._policy_lines(width, height),
            *(named_lines("cards", cards, width, height) for cards in (self._cards(),) if cards),
            self._answer_lines(width),
            self._event_lines(height),
        ]
        gap = [Text()] if height >= ROOMY_HEIGHT else []
        lines = list(hints)
        free = height - len(hints) - len(sections) * (1 + len(gap))
        wanted = [len(section) - 1 for section in sections]
        below = min(POLICY_ROWS, wanted[POLICIES_SECTION])
        problems, others = self._problems(), self._file_problems().others
        first = min(len(problems) + (others > 0), max(1, free // 3))
        wanted[POLICIES_SECTION] += sum(len(wrapped(problem, width, MOST_LINES)) for problem in problems[:height])
        given = shares(free, wanted, {POLICIES_SECTION: first + below if first else 0})
        sections[POLICIES_SECTION][1:1] = problem_lines(
            problems, others, width, max(first, given[POLICIES_SECTION] - below)
        )
        for (head, *rows), share in zip(sections, given, strict=True):
            head.stylize("bold blue")
            lines += [*gap, head, *cut(rows, share)]
        for line in lines:
            # A line may have any number of characters without a width.
            if (excess := len(line) - MOST_OF_COLUMN * width) > 0:
                line.right_crop(excess)
                line.append("…")
            if not line.plain.isprintable():
                line.plain = printable(line.plain)  # a name with a line end is one row, too
            line.truncate(width, overflow="ellipsis")
        return Text("\n", no_wrap=True, overflow="crop").join(lines[:height])

    async def explain(self) -> None:
        """Computes the state of each strategy of each node that is shown: once, for all sections."""
        now = time.time()
        self._view.advance(now)
        explained: dict[str, States] = {}
        for node in sorted(self._view.sampled_nodes):
            if fnmatchcase(node, self._pattern):
                explained[node] = _states_of(explain_node(self._view, node, now))
                if len(explained) % EXPLAINED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        self._explained = {node: states for node, states in explained.items() if node in self._view.sampled_nodes}
        self._used = Counter(
            rule.metric
            for entry in self._view.policies.values()
            for strategy in entry.policy.strategies.values()
            for rule in strategy.rules
        )

    def _nodes(self, now: float, width: int, height: int) -> list[Text]:
        """The nodes that violate most come first: with many nodes, only those that fit are shown."""
        if not self._explained:
            none = "no samples yet" if self._pattern == "*" else f"no node with samples matches {self._pattern}"
            return [Text("nodes"), Text(self._followed.unready() or none, style="yellow")]
        found = {
            node: (self._names(node, State.VIOLATED), self._names(node, State.UNKNOWN)) for node in self._explained
        }
        worst = sorted(found, key=lambda node: (-len(found[node][0]), -len(found[node][1]), node))
        rows = []
        for node in worst[:height]:
            violated, unknown = found[node]
            strategies = [Text(name, style=_STYLE[State.VIOLATED]) for name in violated]
            strategies += [Text(f"?{name}", style=_STYLE[State.UNKNOWN]) for name in unknown]
            rows.append((Text(node), fit(strategies, width * 2 // 5, " "), self._metric_pieces(node, now)))
        sums = [sum(bool(names[at]) for names in found.values()) for at in (0, 1)]
        left = [Text(f"nodes {len(found)}"), Text(f"violate {sums[0]}, ?unknown {sums[1]}")]
        widths = [
            max(cell.cell_len for cell in column) for column in zip(left, *(row[:2] for row in rows), strict=True)
        ]
        free = width - sum(widths) - 2 * GAP
        cells = [(*row[:2], fit(row[2][0], free, "  ", more=row[2][1])) for row in rows]
        lines = aligned([(*left, Text("metrics (value, age)")), *cells], width, flexible=2)
        return [*lines, *[Text()] * (len(worst) - len(rows))]  # the section says how many are not shown

    def _strategies(self, node: str, state: State) -> Text:
        names = self._names(node, state)
        return Text(" ".join(names) or "–", style=_STYLE[state] if names else "dim")

    def _names(self, node: str, state: State) -> list[str]:
        return [name for found, name in self._explained[node].values() if found is state and name]

    def _metric_pieces(self, node: str, now: float) -> tuple[list[Text], int]:
        """Metrics with their values and ages, those that most rules use first; and how many others there are."""
        pieces = []
        samples = self._view.samples(node)
        metrics = {name for scrape in samples for name in scrape.metrics}
        for metric in nsmallest(MOST_METRICS, metrics, key=lambda name: (-self._used[name], name)):
            scrape = newest(samples, metric)
            assert scrape is not None
            age = max(0.0, now - scrape.time)
            fresh = is_fresh(scrape, self._view.default_stale_after, now)
            text = Text()
            text.append(f"{metric} ", style="dim")
            text.append(short_text(scrape.metrics[metric]), style="bold" if fresh else "dim strike")
            text.append(f" {age:.0f}s", style="dim" if fresh else "yellow")
            pieces.append(text)
        return pieces, len(metrics) - len(pieces)

    def _policy_lines(self, width: int, height: int) -> list[Text]:
        if not self._view.policies:
            return [Text("policies"), Text(self._followed.unready() or "no policies", style="yellow")]
        rows: list[tuple[Text, ...]] = []
        others = 0
        for key, entry in sorted(self._view.policies.items()):
            if len(rows) >= height:  # the section says how many are not shown
                others += max(1, len(entry.policy.strategies))
                continue
            name = Text(str(key).removeprefix("default/"))
            if self._file_problems().leave_last_good(key, self._followed.records[key].origin):
                name.append(" (last good version)", style="yellow")
            for kind, strategy in sorted(entry.policy.strategies.items()):
                states = self._states(key, kind)
                nodes = [Text(n, style="red") for n, state in states.items() if state is State.VIOLATED]
                nodes += [Text(f"?{n}", style="yellow") for n, state in states.items() if state is State.UNKNOWN]
                rows.append((name, Text(kind.value), fit(nodes, width // 4, " "), Text(str(strategy) or "–")))
            if not entry.policy.strategies:
                rows.append((name, Text("–"), Text(), Text("–")))
        titles = (Text("policies"), Text("strategy"), Text("violating, ?unknown"), Text("rules"))
        return [*aligned([titles, *rows], width, flexible=3), *[Text()] * others]

    def _problems(self) -> list[str]:
        """Frozen labels, and what is wrong with files and policies, the reason before the value: that may be long."""
        frozen = self._freezes.texts(entry.policy for _, entry in sorted(self._view.policies.items()))
        of_files = [
            f"{each.origin}: in force: {each.in_force}; {each.reason}"
            + ("" if each.subject == "file" else f"; {each.subject}: {each.field} = {each.value}")
            for each in self._file_problems().listed
        ]
        return [*frozen, *of_files] + [
            f"{str(key).removeprefix('default/')}: {each.field}: {each.reason}; value: {each.value}"
            for key in sorted(self._view.policies)
            for each in self._followed.records[key].problems
        ]

    def _states(self, key: PolicyKey, kind: StrategyType) -> dict[str, State]:
        found = ((node, states.get((str(key), kind))) for node, states in self._explained.items())
        return {node: state for node, each in found if each is not None and (state := each[0]) is not None}

    def _answer_lines(self, width: int) -> list[Text]:
        if self._answers_error is not None:
            return [Text("answers"), Text(self._answers_error, style="yellow")]
        if not self._answers:
            return [Text("answers"), Text("no requests yet", style="dim")]
        rows = []
        for answer in reversed(self._answers[-SHOWN_ANSWERS:]):
            when, verb, pod, policy, result, ms = answer_cells(answer)
            rows.append(tuple(map(Text, (when, verb, pod, policy.removeprefix("default/"), ms, result))))
        titles = tuple(map(Text, ("answers", "verb", "pod", "policy", "ms", "answer")))
        return aligned([titles, *rows], width, flexible=5)

    def _event_lines(self, height: int) -> list[Text]:
        newest_first = list(reversed(self._history))[: max(SHOWN_EVENTS, height // 5)]
        # The newest warning or error stays visible.
        problem = next((event for event in reversed(self._history) if event.style in PROBLEM_STYLES.values()), None)
        if problem is not None and not any(event is problem for event in newest_first[:2]):
            newest_first = [newest_first[0], problem, *(event for event in newest_first[1:] if event is not problem)]
        return [Text("events"), *(event.copy() for event in newest_first or [Text(self._no_events, style="dim")])]

    async def _print_changes(self) -> None:
        for hint in self._hints:
            self._line(hint)
        shown: dict[str, str] = {}
        last_answer = 0.0
        while True:
            await self.explain()
            before, shown = shown, {}  # what has ended is a change when it comes again
            for name, line, rest in self._changing_lines(time.time()):
                shown[name] = line
                if before.get(name) != line:
                    self._line(line + rest())
            for answer in self._answers:
                if answer["time"] > last_answer:
                    last_answer = answer["time"]
                    self._line("answer: " + "  ".join(answer_cells(answer)))
            await asyncio.sleep(REDRAW_INTERVAL_SECONDS)

    def _changing_lines(self, now: float) -> Iterator[tuple[str, str, Callable[[], str]]]:
        """A name, the line that is printed when it changes, and what gives the rest of the line."""
        for node in self._explained:
            violates, unknown = (self._strategies(node, state) for state in (State.VIOLATED, State.UNKNOWN))
            line = f"node {node}: violates {violates}, unknown {unknown}"
            yield f"node {node}", line, partial(self._metrics_text, node, now)
        for problem in self._problems():
            yield problem, f"policies: {problem}", str
        if others := self._file_problems().others:
            yield "others", f"policies: {counted(others, 'more problem')} of files", str
        for name, text in self._cluster().items():
            yield f"cluster {name}", f"cluster: {name}: {text}", str
        for name, text in self._cards().items():
            yield f"cards {name}", f"cards: {name}: {text}", str

    def _metrics_text(self, node: str, now: float) -> str:
        pieces, others = self._metric_pieces(node, now)
        return "; " + "  ".join([*map(str, pieces), *([f"+{others} more"] if others else [])])

    def _print_event(self, line: str) -> None:
        self._line(event_line(line).plain)  # with local time, as in all other lines
        for each in traceback_lines(line):
            self._line(each)

    def _line(self, text: str) -> None:
        more = f"… and {len(text) - MOST_CHARACTERS} more characters" if len(text) > MOST_CHARACTERS else ""
        shown = printable(text[:MOST_CHARACTERS]) + more
        self._console.print(shown, markup=False, highlight=False, soft_wrap=True)

    async def _read_answers(self) -> None:
        # Here: the client for HTTP is much to load, and the first view is drawn before.
        from tas.extender.verbs import Answer
        from workers.http.body import READ_ERRORS, failed_request, read_json

        while True:
            try:
                # Something else may listen there.
                answers = await read_json(self._answers_url, list[Answer], seconds=ANSWERS_SECONDS)
                self._answers = msgspec.to_builtins(answers)
                self._answers_error = None
            except READ_ERRORS as error:
                self._answers_error = f"{self._answers_url}: {failed_request(error)}"
            await asyncio.sleep(ANSWERS_SECONDS)


class _Lines(io.StringIO):
    def __init__(self, add: Callable[[str], None]) -> None:
        super().__init__()
        self._add = add

    def write(self, text: str) -> int:
        """Passes on the lines of `text` that are not empty."""
        for line in text.splitlines():
            if line.strip():
                self._add(line)
        return len(text)


def cluster_rows(nodes: Mapping[str, Mapping[str, str]], pods: Iterable[tuple[str, str, str | None]]) -> dict[str, str]:
    """The waiting pods, then the labels of TAS on each node, and its pods: each as text, by the name of the row.

    Nodes with labels come first, since not all may be seen. `nodes` has the labels of each node. A pod is its name, its
    policy, and its node if it has one.
    """
    placed: defaultdict[str, list[str]] = defaultdict(list)
    for pod, policy, node in pods:
        placed[node or ""].append(f"{pod} ({policy})")
    labelled: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, labels in nodes.items():
        ours = [f"{key}={value}" for key, value in sorted(labels.items()) if is_in_our_form(key, value)]
        text = f"labels: {' '.join(ours) or '–'}; pods: {', '.join(placed.pop(name, [])) or '–'}"
        (labelled if ours else others)[name] = text
    waiting = [pod for node in sorted(placed) for pod in placed[node]]
    return {"waiting": ", ".join(waiting) or "–", **labelled, **others}


def _states_of(explained: NodeExplanation) -> States:
    return {
        (policy.policy, strategy.type): (
            strategy.state,
            f"{policy.policy.removeprefix('default/')}/{strategy.type}"
            + (" (rejected)" if strategy.rejects_by_kept else "")
            if strategy.rules
            else "",
        )
        for policy in explained.policies
        for strategy in policy.strategies
    }


def can_draw(console: Console) -> bool:
    """Whether the console is a terminal with a screen. FORCE_COLOR makes rich take each file for one."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def named_lines(title: str, rows: Mapping[str, str], width: int, height: int) -> list[Text]:
    """A section with a row for each name and text; those that no terminal of this height shows are empty."""
    shown = [[Text(line_of(each, MOST_CHARACTERS)) for each in row] for row in islice(rows.items(), height)]
    lines = aligned([(Text(title), Text()), *shown], width, flexible=1)
    return [*lines, *[Text()] * (len(rows) - len(shown))]


def answer_cells(answer: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    """One of the extender's answers as the cells of a row."""
    when = time.strftime("%H:%M:%S", time.localtime(answer["time"]))
    result = f"{answer['outcome']}: {answer['passed']} of {answer['candidates']}"
    if answer["verb"] == "prioritize":
        result = " ".join(f"{host}={score}" for host, score in answer["best"]) or "no scores"
    elif answer["reasons"]:
        result += "; " + ", ".join(f"{count}× {reason}" for reason, count in answer["reasons"].items())
    if answer["error"]:
        result = answer["error"]
    policy = answer["policy"] or "–"
    return (when, answer["verb"], answer["pod"], policy, result, f"{answer['seconds'] * 1000:.2f}")


def fit(pieces: Sequence[Text], width: int, between: str, *, more: int = 0) -> Text:
    """As many whole pieces as fit into `width`, and the number of the others; at least the first piece.

    `more` others are not among the pieces. `between` is not empty: so the work is limited by `width`, however many
    pieces there are.
    """
    if not pieces:
        return Text("–", style="dim")
    gap, used, fitting = cell_len(between), 0, 1
    for count, piece in enumerate(pieces, start=1):
        used += piece.cell_len + (gap if count > 1 else 0)
        if used > width:
            break
        rest = len(pieces) - count + more
        if used + (gap + len(f"+{rest} more") if rest else 0) <= width:
            fitting = count
    shown = list(pieces[:fitting])
    if rest := len(pieces) - fitting + more:
        shown.append(Text(f"+{rest} more", style="dim"))
    return Text(between).join(shown)


def aligned(rows: Sequence[Sequence[Text]], width: int, *, flexible: int) -> list[Text]:
    """Each row as one line. The column `flexible` gets the remaining width; other columns at most two fifths each."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    widths = [cell if index == flexible else min(cell, width * 2 // 5) for index, cell in enumerate(widths)]
    widths[flexible] = max(1, width - sum(widths) + widths[flexible] - GAP * (len(widths) - 1))
    lines = []
    for row in rows:
        cells = [cell.copy() for cell in row]
        for cell, available in zip(cells, widths, strict=True):
            cell.truncate(available, overflow="ellipsis", pad=True)
        lines.append(Text(" " * GAP).join(cells))
    return lines


def shares(rows: int, wanted: Sequence[int], at_least: Mapping[int, int]) -> list[int]:
    """Divides `rows` among sections that need `wanted` rows each: one row in turn to each that has fewest.

    Before this, sections get their rows of `at_least`, by their index.
    """
    given = [0] * len(wanted)
    for index, needed in at_least.items():
        given[index] = max(0, min(needed, rows))
        rows -= given[index]
    level = 1
    while rows > 0 and any(has < needed for has, needed in zip(given, wanted, strict=True)):
        for index, needed in enumerate(wanted):
            if given[index] < min(needed, level) and rows > 0:
                given[index] += 1
                rows -= 1
        level += 1
    return given


def cut(rows: Sequence[Text], count: int) -> list[Text]:
    """The first `count` rows; if there are more, the last row is their number."""
    if len(rows) <= count or count < 2:
        return list(rows[:count])
    return [*rows[: count - 1], Text(f"… and {len(rows) - count + 1} more", style="dim")]


def problem_lines(problems: Sequence[str], others: int, width: int, most: int) -> list[Text]:
    """The problems in at most `most` lines: first one line for each, then the rest of them; or the number of others."""
    shown = problems if len(problems) <= most and not others else problems[: most - 1]
    hidden = others + len(problems) - len(shown)
    needed = [len(wrapped(problem, width, MOST_LINES)) for problem in shown]
    given = shares(most - (hidden > 0), needed, {})
    lines = [line for problem, share in zip(shown, given, strict=True) for line in wrapped(problem, width, share)]
    if hidden:
        lines.append(f"… and {counted(hidden, 'more problem')}: tas get policies")
    return [Text(line, style="yellow") for line in lines]


def wrapped(text: str, width: int, most: int) -> list[str]:
    """The text in as many lines as it needs, at most `most`; those after the first are indented."""
    lines = textwrap.wrap(line_of(text, MOST_CHARACTERS), width, subsequent_indent="  ", break_on_hyphens=False)
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: width - 1] + "…"]


def fitting_hints(hints: Sequence[str], width: int, height: int) -> list[Text]:
    """The hints that fit into one line each, without their comments where these do not fit.

    A command is never broken, so that it can be copied. A low window has only the first hints, and the last one.
    """
    lines = [hint if len(hint) <= width else hint.partition("  #")[0].rstrip() for hint in hints]
    lines = [line for line in lines if len(line) <= width]
    most = max(2, height // 5)
    shown = lines if height >= ROOMY_HEIGHT or len(lines) <= most else [*lines[: most - 1], lines[-1]]
    return [Text(line, style="green") for line in shown]


def event_line(line: str) -> Text:
    """A line of the log in short form: time of day, level, event, and the fields, the most important first."""
    try:
        event = msgspec.json.decode(line)
        clock = datetime.fromisoformat(event["time"]).astimezone().strftime("%H:%M:%S")
        head = f"{clock} {event['level']} {event['event']}"
    except (ValueError, KeyError, TypeError):
        return Text(line)
    fields = {name: field_text(value) for name, value in event.items() if name not in _HIDDEN_FIELDS}
    fields |= {"error": traceback[-1]} if (traceback := traceback_lines(line)) else {}
    names = [name for name in _FIRST_FIELDS if name in fields]
    names += [name for name in fields if name not in names]
    text = " ".join(f"{name}={fields[name]}" for name in names if fields[name])
    return Text(f"{head} {text}".rstrip(), style=PROBLEM_STYLES.get(event["level"], ""))


def traceback_lines(line: str) -> list[str]:
    """The traceback in a line of the log."""
    try:
        return str(msgspec.json.decode(line).get("exception") or "").splitlines()
    except (ValueError, AttributeError):
        return []


def field_text(value: object) -> str:
    """A field of an event for people; empty if there is nothing to show."""
    if isinstance(value, dict):
        return ",".join(f"{name}:{field_text(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ",".join(map(field_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
