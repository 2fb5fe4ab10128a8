"""`tas get`: prints what is stored on the bus."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click
import msgspec
from rich.text import Text

from bus.buckets import PAUSED, POLICIES, SOURCES, SYNCED, VERDICTS
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import (
    NODE_FACTS,
    NODE_VERDICTS,
    PAUSE_RECORDS,
    POLICY_RECORDS,
    REFUSED_LABELS,
    REFUSED_MARKS,
    synced_of,
)
from bus.records.policies import PolicyRecord
from cli.as_json import JSON_OPTION, print_json
from cli.options import settings_command
from cli.output import echo, echo_line
from cli.queries.cards import gpus
from cli.queries.query import (
    StoredNodes,
    StoredSources,
    age_text,
    ask,
    readable,
    stored_breakers,
    stored_nodes,
    stored_sources,
    time_of_bus,
    value_text,
)
from cli.queries.tables import cell_of, new_table, print_table
from tas.policy.directory import FileProblem, FileProblems
from tas.policy.manifest import policy_spec
from tas.policy.policy import PolicyKey, Problem, StrategyType
from tas.processes.process import RefusedSamples, late_metrics, refused_samples, waiting_labels
from tas.samples.contradictions import Contradiction, contradictions
from tas.samples.sample import NodeSamples
from tas.sources.state import RefusedValues, SourceState, health, tolerances_of
from tas.values.nouns import counted
from tas.values.quantity import format_quantity
from tas.verdict.freeze import UNREADABLE_PAUSE, Freeze, freeze_of
from tas.verdict.ownership import LABEL_STRATEGIES, Claim, claim_of, owner_of
from tas.verdict.refused import RefusedLabel, refused_problems
from tas.verdict.status import UNSET_SECONDS, any_source_limits, unset_labels, waiting_problem
from tas.verdict.verdict import DesiredKind, DesiredLabel, NodeVerdict, PolicyVerdict
from workers.following.processes import running_processes
from workers.settings import Settings

PUBLISHES = "publishes"
"""In place of the state of a source that is none of `collect`."""

MAX_VALUES = 2000
"""So many values of a node are shown: more of one cannot be stored by `materialize`."""

MAX_CONTRADICTIONS = 20
"""So many contradictions between sources are shown."""


@click.group("get", no_args_is_help=True)
def get() -> None:
    """Show nodes, policies, verdicts, sources or GPU cards."""


@settings_command("nodes", settings_as="get", params=[JSON_OPTION])
def nodes(settings: Settings, *, as_json: bool) -> int:
    """Each node's newest samples, by source."""
    return ask(settings, lambda bus, _: _nodes(bus, as_json=as_json))


@settings_command("policies", settings_as="get", params=[JSON_OPTION])
def policies(settings: Settings, *, as_json: bool) -> int:
    """Each policy, with its strategies and problems.

    Also shows each policy file of which a part is not in force: the reason, and what is in force instead.
    """
    return ask(settings, lambda bus, _: _policies(bus, as_json=as_json))


@settings_command("verdicts", settings_as="get", params=[JSON_OPTION])
def verdicts(settings: Settings, *, as_json: bool) -> int:
    """Each node's verdict, with the desired labels."""
    return ask(settings, lambda bus, _: _verdicts(bus, as_json=as_json))


@settings_command("sources", settings_as="get", params=[JSON_OPTION])
def sources(settings: Settings, *, as_json: bool) -> int:
    """Each source of `collect`, with its state.

    Also shows the lease holder, the metrics and the problems of each source, and the programs that publish by
    themselves and of which samples were refused in the last hour.
    """
    return ask(settings, lambda bus, _: _sources(bus, settings.stale_after, as_json=as_json))


for _command in (nodes, policies, verdicts, sources, gpus):
    get.add_command(_command)


async def _nodes(bus: Bus, *, as_json: bool) -> int:
    now = await time_of_bus(bus)
    stored = await stored_nodes(bus)
    samples, labels = stored.samples, {node: facts.labels for node, facts in stored.facts.items()}
    names = sorted(samples.keys() | labels.keys())
    if as_json:
        print_json(
            [
                {"node": name, "labels": labels.get(name), "samples": _sample_rows(samples.get(name, ()), now)}
                for name in names
            ]
        )
        return 0
    table = new_table("NODE", "METRIC", "VALUE", "AGE", "SOURCE")
    for name in names:
        rows = _sample_rows(samples.get(name, ()), now)
        for sample in rows[:MAX_VALUES]:
            table.add_row(
                name, sample["metric"], value_text(sample["value"]), age_text(sample["age_seconds"]), sample["source"]
            )
        if len(rows) > MAX_VALUES:
            table.add_row(name, f"and {counted(len(rows) - MAX_VALUES, 'more value')}: --json has them all")
        if not rows:
            table.add_row(name, "-", "-", "-", "-")
    print_table(table, empty="no nodes: no source has published a sample (tas publish), and no cluster is watched")
    return 0


async def _verdicts(bus: Bus, *, as_json: bool) -> int:
    now = await time_of_bus(bus, VERDICTS)
    table = new_table("NODE", "POLICY", "STRATEGY", "STATE", "SINCE", "VALUE AT CHANGE", "DESIRED")
    documents: list[dict[str, Any]] = []
    for entry in sorted(await NODE_VERDICTS.entries(bus), key=lambda each: each.key):
        verdict = entry.readable()
        if verdict is None:
            continue
        documents.append({"node": entry.key} | entry.document())
        for policy, of_policy in sorted(verdict.policies.items()):
            for kind, strategy in sorted(of_policy.strategies.items()):
                desired_labels = cell_of(
                    f"{label}: {_desired(of_label.desired)}" for label, of_label in strategy.labels.items()
                )
                since = age_text(now - strategy.changed)
                state = strategy.state.value
                if strategy.kept_since is not None:
                    state += f" (rejected by a value of {age_text(now - strategy.kept_since)} ago)"
                table.add_row(
                    entry.key,
                    str(policy),
                    kind.value,
                    state,
                    since,
                    value_text(strategy.value),
                    desired_labels,
                )
    if as_json:
        print_json(documents)
    else:
        print_table(table, empty="no verdicts: there is no node or no policy, or evaluate does not run")
    return 0


def _desired(desired: DesiredLabel) -> str:
    """The desired label as text: `set VALUE`, `hold`, `absent`."""
    if desired.kind is DesiredKind.SET:
        return f"set {desired.value}"
    return f"set {desired.value} if absent" if desired.kind is DesiredKind.SET_IF_ABSENT else desired.kind.value


def _sample_rows(samples: NodeSamples, now: float) -> list[dict[str, Any]]:
    """Each source's value of each metric, by metric and source."""
    rows = [
        {
            "metric": metric,
            "value": format_quantity(value),
            "source": scrape.source,
            "measured": scrape.measured,
            "arrived": scrape.arrived,
            "age_seconds": round(max(0.0, now - scrape.time), 3),  # it may have come after `now`
        }
        for scrape in samples
        for metric, value in scrape.metrics.items()
    ]
    return sorted(rows, key=lambda sample: (sample["metric"], sample["source"]))


async def _policies(bus: Bus, *, as_json: bool) -> int:
    records = [record for _, record in sorted((await readable(bus, POLICY_RECORDS)).items())]
    breakers = await stored_breakers(bus)
    pause = (await PAUSE_RECORDS.get(bus, PAUSED)).read_or(UNREADABLE_PAUSE)
    freezes = {
        record.policy.key: freeze
        for record in records
        if set(LABEL_STRATEGIES) & record.policy.strategies.keys()
        if (freeze := freeze_of(record.policy.key, breakers, pause)) is not None
    }
    refused = _Refused(await readable(bus, REFUSED_LABELS), await readable(bus, REFUSED_MARKS))
    labelling = await _labelling(bus, records)
    of_policies = _policy_problems(records, freezes, refused, labelling, await time_of_bus(bus, POLICIES))
    synced = (await synced_of(POLICIES).get(bus, SYNCED)).readable()
    problems = FileProblems() if synced is None else synced.file_problems
    if as_json:
        _print_policies_json(records, of_policies, problems)
    else:
        _print_policies(records, of_policies, problems)
    if problems.others:
        more = counted(problems.others, "more problem")
        echo(f"{more} of policy files: GET /problems of tas run policies, or /problems/files of tas up", err=True)
    return 0


_Problems = Mapping[PolicyKey, Collection[Problem]]


def _print_policies_json(records: Sequence[PolicyRecord], of_policies: _Problems, problems: FileProblems) -> None:
    """Prints the policies, then the files: with a name of null."""
    files: dict[str, list[FileProblem]] = {}
    for problem in problems.listed:
        files.setdefault(problem.origin, []).append(problem)
    print_json(
        [
            {
                "namespace": record.policy.key.namespace,
                "name": record.policy.key.name,
                "uid": record.uid,
                "generation": record.generation,
                "origin": record.origin,
                "last_good_version": problems.leave_last_good(record.policy.key, record.origin),
                "problems": [msgspec.to_builtins(problem) for problem in of_policies[record.policy.key]],
                "spec": policy_spec(record.policy),
            }
            for record in records
        ]
        + [
            dict.fromkeys(("namespace", "name", "uid", "generation"))
            | {"origin": origin, "problems": [msgspec.to_builtins(each) for each in of_file], "spec": None}
            for origin, of_file in files.items()
        ]
    )


def _print_policies(records: Sequence[PolicyRecord], of_policies: _Problems, problems: FileProblems) -> None:
    # Only policies from a directory have a file.
    columns = ["POLICY", "STRATEGY", "RULES", "OPTIONS", "FILE", "PROBLEMS"]
    if not any(record.origin for record in records):
        columns.remove("FILE")
    table = new_table(*columns)
    for record in records:
        key = record.policy.key
        last_good = problems.leave_last_good(key, record.origin)
        for row in _policy_rows(record, of_policies[key], last_good=last_good):
            table.add_row(*(row.get(column, Text("-")) for column in columns))
    print_table(table, empty="no policies: none in --policies DIR, or none in the cluster")
    # Below the table, where they have the whole width.
    for problem in problems.listed:
        subject = "" if problem.subject == "file" else f"{problem.subject}: "
        echo_line(
            f"{problem.origin}: {subject}{problem.field} = {problem.value}: {problem.reason}; "
            f"in force: {problem.in_force}"
        )


class _Labelling(NamedTuple):
    """What is known of labels: the verdict and the labels of each node, and by name of policies how many nodes wait.

    Nothing if no policy labels nodes.
    """

    verdicts: Mapping[str, NodeVerdict] = {}
    labels: Mapping[str, Mapping[str, str] | None] = {}
    waiting: Mapping[str, int] = {}


async def _labelling(bus: Bus, records: Sequence[PolicyRecord]) -> _Labelling:
    if not any(record.policy.strategies.keys() & set(LABEL_STRATEGIES) for record in records):
        return _Labelling()
    labels = {node: facts.complete_labels for node, facts in (await readable(bus, NODE_FACTS)).items()}
    return _Labelling(await readable(bus, NODE_VERDICTS), labels, waiting_labels(await running_processes(bus)))


class _Refused(NamedTuple):
    """What the API server refuses, by name of the policies."""

    labels: Mapping[str, tuple[RefusedLabel, ...]]
    marks: Mapping[str, tuple[RefusedLabel, ...]]


def _policy_problems(
    records: Sequence[PolicyRecord],
    freezes: Mapping[PolicyKey, Freeze],
    refused: _Refused,
    labelling: _Labelling,
    now: float,
) -> dict[PolicyKey, tuple[Problem, ...]]:
    """The problems of each policy, with those of its labels and marks.

    They may be frozen, refused, or written by no worker, or wait.
    """
    claims: dict[str, dict[PolicyKey, Claim]] = {}
    for record in records:
        key = record.policy.key
        claims.setdefault(key.name, {})[key] = claim_of(record.policy, uid=record.uid, created=record.created)
    of_policies: dict[tuple[PolicyKey, str], dict[str, PolicyVerdict]] = {}
    for node, verdict in labelling.verdicts.items():
        for key, of_policy in verdict.policies.items():
            of_policies.setdefault((key, of_policy.uid), {})[node] = of_policy
    found: dict[PolicyKey, tuple[Problem, ...]] = {}
    for record in records:
        key = record.policy.key
        of_name = refused.labels.get(key.name, ())
        unset = unset_labels(
            record.policy,
            of_policies.get((key, record.uid), {}),
            labelling.labels,
            owned=[kind for kind in LABEL_STRATEGIES if owner_of(kind, claims[key.name]) == key],
            refused={(each.label, each.value) for each in of_name},
            seconds=UNSET_SECONDS,
            now=now,
        )
        frozen = [freezes[key].problem()] if key in freezes else []
        of_marks = refused_problems(key, claims[key.name], refused.marks.get(key.name, ()))
        if key.name in labelling.waiting and set(LABEL_STRATEGIES) & record.policy.strategies.keys():
            unset = (waiting_problem(labelling.waiting[key.name]), *unset)
        of_labels = frozen or (*refused_problems(key, claims[key.name], of_name), *unset, *of_marks)
        found[key] = (*of_labels, *record.problems)
    return found


def _policy_rows(record: PolicyRecord, problems: Collection[Problem], *, last_good: bool) -> Iterator[dict[str, Text]]:
    """A row for each strategy of a policy, at least one; options and problems of the policy are in the first."""
    texts = [f"last good version: the edit of {record.origin} is not in force, see below"] if last_good else []
    texts += map(str, problems)
    spec = policy_spec(record.policy)
    strategies = spec.pop("strategies") or {"": {"rules": []}}
    if record.policy.node_selector is not None:
        spec["nodeSelector"] = str(record.policy.node_selector) or "every node"
    if "breaker" in spec:
        spec["breaker"] = ", ".join(f"{name} {limit}" for name, limit in spec["breaker"].items())
    whole = _options(spec)
    for number, (kind, written) in enumerate(sorted(strategies.items())):
        options = {name: value for name, value in written.items() if name not in ("rules", "logicalOperator")}
        row = {"POLICY": str(record.policy.key)}
        if kind:
            row |= {"STRATEGY": kind, "RULES": str(record.policy.strategies[StrategyType(kind)])}
        row["FILE"] = record.origin
        listed = {"OPTIONS": [*(whole if number == 0 else []), *_options(options)], "PROBLEMS": texts}
        if number > 0:
            listed["PROBLEMS"] = [" "]
        yield {column: Text(text) for column, text in row.items() if text} | {
            column: cell_of(lines) for column, lines in listed.items() if lines
        }


def _options(fields: Mapping[str, Any]) -> list[str]:
    """Each field as text, with the names of the CRD: `suspend`, `staleAfter 30s`."""
    return [name if value is True else f"{name} {value}" for name, value in fields.items()]


async def _sources(bus: Bus, default_stale_after: float, *, as_json: bool) -> int:
    from tas.diagnosis.metrics import health_with, late_sources  # only this command needs it

    stored = await stored_sources(bus)
    now = await time_of_bus(bus, SOURCES)
    nodes = await _nodes_of_sources(bus)
    found = [] if nodes is None else await _contradictions(bus, stored, nodes, default_stale_after, now)
    refused: dict[str, list[RefusedSamples]] = {}
    running = await running_processes(bus)
    for one in refused_samples(running):
        refused.setdefault(one.source, []).append(one)
    samples = {} if nodes is None else nodes.samples
    late = late_sources(stored.states, stored.held, samples, late_metrics(running), now=now)
    table = new_table("SOURCE", "STATE", "HOLDER", "PERIOD", "LAST SUCCESS", "METRICS", "PROBLEMS")
    documents: list[dict[str, Any]] = []
    for entry in sorted(stored.entries, key=lambda each: each.key):
        state = entry.readable()
        if state is None:
            continue
        state_name = health_with(late, entry.key, health(state, is_held=entry.key in stored.held, now=now)).value
        late_here = [late[entry.key]] if entry.key in late else []
        others = [each for each in found if entry.key in (each.source, each.other_source)]
        document = {"source": entry.key, "state": state_name} | entry.document()
        of_samples = refused.get(entry.key, [])
        document |= {"refusedSamples": msgspec.to_builtins(of_samples)} if of_samples else {}
        document |= {"late": late_here[0]} if late_here else {}
        documents.append(document | ({"contradictions": list(map(str, others))} if others else {}))
        table.add_row(
            entry.key,
            state_name,
            state.holder,
            "-" if state.period is None else f"{state.period:g}s",
            "never" if state.last_success is None else f"{age_text(now - state.last_success)} ago",
            cell_of(_metrics(state)),
            cell_of([*late_here, *_problems(state, now), *(_refused_text(one, now) for one in of_samples)]),
        )
    known = {entry.key for entry in stored.entries}
    for source in sorted((refused.keys() | late.keys()) - known):
        of_samples, late_here = refused.get(source, []), [late[source]] if source in late else []
        document = {"source": source, "state": PUBLISHES}
        document |= {"refusedSamples": msgspec.to_builtins(of_samples)} if of_samples else {}
        documents.append(document | ({"late": late_here[0]} if late_here else {}))
        problems = cell_of([*late_here, *(_refused_text(one, now) for one in of_samples)])
        table.add_row(source, PUBLISHES, "-", "-", "-", "-", problems)
    if as_json:
        print_json(documents)
    else:
        print_table(
            table,
            empty="no sources: no replica of collect has a source. Programs that publish samples: tas get nodes",
        )
        for each in found[:MAX_CONTRADICTIONS]:
            echo_line(f"contradiction: {each}")
        if len(found) > MAX_CONTRADICTIONS:
            echo(f"and {counted(len(found) - MAX_CONTRADICTIONS, 'more contradiction')}")
    return 0


async def _nodes_of_sources(bus: Bus) -> StoredNodes | None:
    """What sources have given of nodes; None without an answer, and then it says so."""
    try:
        return await stored_nodes(bus)
    except BusError as error:
        echo(f"whether sources contradict each other, or are late, is not known: {error}", err=True)
        return None


async def _contradictions(
    bus: Bus, sources: StoredSources, nodes: StoredNodes, default_stale_after: float, now: float
) -> list[Contradiction]:
    """Those between all sources on the bus. Without an answer it says so, and has none."""
    try:
        policies = [record.policy for record in (await readable(bus, POLICY_RECORDS)).values()]
    except BusError as error:
        echo(f"whether sources contradict each other is not known: {error}", err=True)
        return []
    limits = any_source_limits(policies, default_stale_after)
    return contradictions(nodes.samples, limits, now=now, bounds=tolerances_of(sources.states.values()))


def _metrics(state: SourceState) -> list[str]:
    metrics = [
        f"{metric}: {counted(each.nodes, 'node')}" + (f", {each.ended} ended" if each.ended else "")
        for metric, each in state.metrics.items()
    ]
    return metrics + ([f"and {state.metrics_left_out} more"] if state.metrics_left_out else [])


def _problems(state: SourceState, now: float) -> list[str]:
    problems = [state.problem] if state.problem else []
    if state.is_behind:
        problems.append(f"{state.behind:g} s behind: its values come later than every {state.period:g} s")
    problems += [f"{metric}: {each.missing}" for metric, each in state.metrics.items() if each.missing]
    if state.missing_left_out:
        problems.append(f"and {state.missing_left_out} more without a fresh sample")
    if state.without_tables:
        problems.append(f"published by node: {state.without_tables}")
    return [
        *problems,
        *(f"{each.count} refused, {_last(each, now)}" for each in state.refused.values()),
        *(f"{each.count} suspect ({why}), {_last(each, now)}" for why, each in state.suspect.items()),
    ]


def _refused_text(refused: RefusedSamples, now: float) -> str:
    return (
        f"{refused.count} refused when they came ({refused.reason}), "
        f"the last {age_text(now - refused.time)} ago: {refused.example}"
    )


def _last(values: RefusedValues, now: float) -> str:
    return f"the last {age_text(now - values.time)} ago, as {values.example}"
