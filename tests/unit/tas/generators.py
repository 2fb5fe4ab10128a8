"""Hypothesis strategies for values of the core, for every test that needs many of them."""

from typing import Any

from hypothesis import strategies as st

from tas.policy.manifest import MAX_KEEP_FOR
from tas.policy.policy import (
    ON_STALE,
    LogicalOperator,
    OnStale,
    Operator,
    Policy,
    PolicyKey,
    Rule,
    ScoreMode,
    Strategy,
    StrategyType,
    TaintEffect,
)
from tas.policy.selector import LabelSelector, Requirement, SelectorOperator
from tas.values.quantity import MAX_QUANTITY, NANO, Quantity

LABELLING = (StrategyType.DESCHEDULE, StrategyType.LABELING)

characters = st.characters(exclude_categories=["Cs"])
"""All characters of UTF-8. Given `codec="utf-8"`, Hypothesis tries each one in each process of a new clone: 2 s."""


def matching(pattern: str) -> st.SearchStrategy[str]:
    """Texts that are of this pattern as a whole."""
    return st.from_regex(pattern, fullmatch=True, alphabet=characters)


quantities = st.one_of(
    st.integers(-10, 10).map(lambda number: Quantity(number * NANO)),
    st.integers(-(2**65), 2**65).map(Quantity),
    st.integers(-MAX_QUANTITY, MAX_QUANTITY).map(Quantity),
)
metric_names = matching(r"[a-zA-Z0-9_:-]{1,20}")
source_names = matching(r"[a-z0-9-]{1,12}")
label_names = matching(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,9}[a-zA-Z0-9])?")
label_values = st.just("") | label_names
namespaces = matching(r"[a-z]([a-z0-9-]{0,9}[a-z0-9])?")
policy_names = matching(r"[a-z]([a-z0-9-]{0,9}[a-z0-9])?(\.[a-z0-9]{1,5})?")
policy_keys = st.builds(PolicyKey, namespaces, policy_names)
seconds = st.one_of(
    st.integers(0, 3600).map(float),
    st.integers(0, 3_600_000).map(lambda milliseconds: milliseconds / 1000),
    st.integers(0, 3600 * 10**9).map(lambda nanoseconds: nanoseconds / 1e9),
)

_label_keys = matching(r"([a-z]{1,5}\.[a-z]{2}/)?[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,9}[a-zA-Z0-9])?")
requirements = st.one_of(
    st.builds(
        Requirement,
        key=_label_keys,
        operator=st.sampled_from([SelectorOperator.IN, SelectorOperator.NOT_IN]),
        values=st.frozensets(label_values, min_size=1, max_size=3),
    ),
    st.builds(
        Requirement,
        key=_label_keys,
        operator=st.sampled_from([SelectorOperator.EXISTS, SelectorOperator.DOES_NOT_EXIST]),
    ),
)
selectors = st.builds(LabelSelector, requirements=st.lists(requirements, max_size=3).map(tuple))


@st.composite
def rules(draw: st.DrawFn, kind: StrategyType, *, readable: bool = True) -> Rule:
    """A rule such as a parsed policy holds; of `labeling` its label keys begin with its operator's name."""
    unreadable = False if readable else draw(st.booleans())
    operator = draw(st.sampled_from(Operator) | st.none() if unreadable else st.sampled_from(Operator))
    labels: dict[str, str] = {}
    if kind is StrategyType.LABELING:  # rules with different operators never share a key: the parser leaves it out
        labels = draw(
            st.dictionaries(label_names.map(lambda name: f"{operator or 'X'}{name}"), label_values, max_size=3)
        )
    has_cost = kind is StrategyType.SCHEDULEONMETRIC and operator is not Operator.EQUALS and draw(st.booleans())
    return Rule(
        metric=draw(metric_names | st.just("") if unreadable else metric_names),
        operator=operator,
        target=draw(quantities | st.none() if unreadable else quantities),
        labels=tuple(labels.items()),
        source=draw(st.none() | source_names),
        weight=draw(st.none() | st.integers(1, 100)) if kind is StrategyType.SCHEDULEONMETRIC else None,
        pod_cost=draw(quantities.filter(lambda cost: cost > 0)) if has_cost else None,
    )


@st.composite
def strategies(draw: st.DrawFn, kind: StrategyType, *, readable: bool = True) -> Strategy:
    """A strategy such as a parsed policy holds."""
    several = tuple(draw(st.lists(rules(kind, readable=readable), max_size=4)))
    slow = kind in LABELLING
    on_stale = draw(st.sampled_from(ON_STALE[kind] if all(each.readable for each in several) else ON_STALE[kind][:1]))
    return Strategy(
        type=kind,
        rules=several,
        logical_operator=draw(st.sampled_from(LogicalOperator)),
        on_stale=on_stale,
        keep_for=draw(st.sampled_from([0.5, 90.0, MAX_KEEP_FOR])) if on_stale is OnStale.KEEP else 0.0,
        score_mode=draw(st.sampled_from(ScoreMode)) if kind is StrategyType.SCHEDULEONMETRIC else ScoreMode.RANK,
        for_=draw(seconds) if slow else 0.0,
        clear_for=draw(seconds) if slow else 0.0,
        taint=draw(st.none() | st.sampled_from(TaintEffect)) if kind is StrategyType.DESCHEDULE else None,
        node_condition=draw(st.booleans()) if kind is StrategyType.DESCHEDULE else False,
    )


@st.composite
def policies(draw: st.DrawFn, *, readable: bool = True) -> Policy:
    """A policy such as `parse_policy` gives; with `readable=False` some of its rules cannot be read."""
    kinds = draw(st.sets(st.sampled_from(StrategyType)))
    return Policy(
        key=draw(policy_keys),
        strategies={kind: draw(strategies(kind, readable=readable)) for kind in sorted(kinds)},
        suspend=draw(st.booleans()),
        dry_run=draw(st.booleans()),
        node_selector=draw(st.none() | selectors),
        stale_after=draw(st.none() | seconds.filter(bool)),
    )


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(0, 3).map(lambda power: 10 ** (power * 2000)),
    st.floats(),
    st.text(st.characters(), max_size=8),  # lone surrogates too: JSON can spell them
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(),
)
"""Whatever a decoder of JSON or YAML may give."""


def anything(words: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    """Arbitrary nested values, with `words` often among the keys and texts."""
    texts = st.sampled_from(words) if words else st.nothing()
    keys = texts | st.one_of(
        st.text(characters, max_size=5), st.integers(), st.none(), st.booleans(), st.dates(), st.binary(max_size=3)
    )
    return st.recursive(
        scalars | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5),
        max_leaves=12,
    )
