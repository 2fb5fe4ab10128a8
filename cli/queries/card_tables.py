"""Prints the cards of nodes as a table with bars."""

from collections.abc import Iterable, Iterator, Sequence

from cli.output import echo, echo_line
from cli.queries.query import age_text
from cli.queries.tables import cell_of, new_table, print_table
from tas.gpu.explanation import UNKNOWN_HOLD, AmountUse, CardExplanation, CardPod, CardsExplanation, PodCards
from tas.gpu.hold import Phase
from tas.gpu.names import ALLOW, RESOURCE_PREFIX
from tas.values.nouns import counted
from tas.values.quantity import NANO, Quantity, short_text
from workers.settings import flag

BAR = 10
"""The characters of a bar."""

SHOWN_PODS = 8
"""How many pods the table has for each card; JSON has all of them."""

SHOWN_NODES = 30
"""How many nodes the table of a pod has; JSON has all of them."""

USED, FREE, BLOCKED = "█", "░", "-"
"""Parts of a bar: in use; free for new pods; neither, since a policy or a full card of it prevents it."""


def print_cards(nodes: Sequence[CardsExplanation], now: float, *, empty: str = "") -> None:
    """Prints a row for each card, and below the table what cannot be read of each node.

    `empty` is printed to standard error if no node has cards.
    """
    table = new_table("NODE", "CARD", "RESOURCE", "IN USE", "", "FREE", "PODS", "STATE")
    for node in nodes:
        for card in node.cards:
            uses = list(card.resources.values())
            table.add_row(
                node.node,
                card.card,
                cell_of(resource.removeprefix(RESOURCE_PREFIX) for resource in card.resources),
                cell_of(f"{amount_text(use.used)} of {amount_text(use.capacity)}" for use in uses),
                cell_of(map(bar, uses)),
                cell_of(amount_text(use.free) for use in uses),
                cell_of(_pods(card, now)),
                cell_of(state_texts(card), style=_style(card)),
            )
        for resource, use in node.resources.items():
            used = f"{amount_text(use.used)} of {amount_text(use.capacity)}"
            name = resource.removeprefix(RESOURCE_PREFIX)
            table.add_row(node.node, "(node)", name, used, bar(use), amount_text(use.free), "-", "-")
    print_table(table, empty=empty)
    # Below the table, where they have the whole width.
    for node in nodes:
        if not node.hold_known:
            echo_line(f"{node.node}: {UNKNOWN_HOLD}, so no pod gets one (tas run inventory)")
        for problem in node.problems:
            echo_line(f"{node.node}: {problem}")


def card_rows(nodes: Iterable[CardsExplanation]) -> dict[str, str]:
    """Each card in one line, by node and name: what is in use of each resource, the state, and the pods."""
    rows = {}
    for node in nodes:
        for card in node.cards:
            uses = []
            for resource, use in card.resources.items():
                name = resource.removeprefix(RESOURCE_PREFIX)
                uses.append(f"{name} {amount_text(use.used)}/{amount_text(use.capacity)} {bar(use)}")
            pods = ", ".join(dict.fromkeys(each.pod.removeprefix("default/") for each in card.pods))
            state = [*state_texts(card), *([] if node.hold_known else [UNKNOWN_HOLD])]
            rows[f"{node.node} {card.card}"] = "; ".join(["  ".join(uses), *state, f"pods: {pods or '–'}"])
    return rows


def print_pod_cards(cards: PodCards) -> None:
    """Prints which cards of each node a pod has or would get, and why the others do not serve."""
    if cards.asks is False:
        echo("GPU cards: the pod requests none")
        return
    for name in cards.ignored:
        off = flag("allowlist" if name == ALLOW else "denylist")
        echo(f"the annotation {name} does not count: {off} is off; give {off} on if tas run gpu has it")
    if cards.refusal:
        echo_line(f"GPU cards: no node can ever fulfil what the pod asks: {cards.refusal}")
        return
    table = new_table("NODE", "GPU CARDS", "TILES", "WHY NOT")
    for node in cards.nodes[:SHOWN_NODES]:
        found = ("has " if node.held else "") + (node.cards or ("none needed" if not node.reason else "-"))
        reasons = [node.reason, *(f"{card}: {reason}" for card, reason in node.refused.items())]
        table.add_row(node.node, found, node.tiles or "-", cell_of(filter(None, reasons)))
    print_table(table, empty="no node has GPU cards")
    if len(cards.nodes) > SHOWN_NODES:
        echo(f"{counted(len(cards.nodes) - SHOWN_NODES, 'more node')}: --json has them all")


def bar(use: AmountUse) -> str:
    """How much of an amount is in use, free, and neither, as a bar. Any use and any rest is visible."""
    if not use.capacity:
        return "-"
    used = _part(use.used, use.capacity)
    free = min(_part(use.free, use.capacity), BAR - used)
    return USED * used + FREE * free + BLOCKED * (BAR - used - free)


def amount_text(amount: int) -> str:
    """An amount for people, rounded to four digits where it is large: `500`, `8Gi`, `4.657Gi`."""
    return short_text(Quantity(amount * NANO))


def _part(amount: int, capacity: int) -> int:
    """How much of a bar an amount fills: all only if nothing is left, nothing only if it is 0."""
    if amount <= 0 or amount >= capacity:
        return BAR if amount > 0 else 0
    return min(max(round(BAR * amount / capacity), 1), BAR - 1)


def state_texts(card: CardExplanation) -> Iterator[str]:
    """What is special about a card and its tiles."""
    if card.problem:
        yield card.problem
    if card.evicted:
        yield f"emptied by {', '.join(card.evicted)}"
    if others := [policy for policy in card.disabled if policy not in card.evicted]:
        yield f"disabled by {', '.join(others)}"
    if card.preferred:
        yield "preferred"
    for tile in card.tiles:
        if tile.disabled:
            yield f"{tile.tile} {'emptied' if tile.evicted else 'disabled'} by {', '.join(tile.disabled)}"
        elif tile.preferred:
            yield f"{tile.tile} preferred"


def _style(card: CardExplanation) -> str:
    if card.problem:
        return "bold red"
    return "yellow" if card.disabled else "green" if card.preferred else ""


def _pods(card: CardExplanation, now: float) -> Iterator[str]:
    for each in card.pods[:SHOWN_PODS]:
        yield pod_text(each, now)
    if len(card.pods) > SHOWN_PODS:
        yield f"and {counted(len(card.pods) - SHOWN_PODS, 'more container')}: --json has them all"


def pod_text(pod: CardPod, now: float) -> str:
    """A pod with its container and tiles, and what is special about it."""
    notes = []
    if pod.phase is Phase.RESERVED:
        left = "" if pod.until is None else f" for {age_text(max(pod.until - now, 0.0))}"
        notes.append(f"reserved{left}")
    if not pod.verified:
        notes.append("adopted")
    tiles = f" {'+'.join(pod.tiles)}" if pod.tiles else ""
    return f"{pod.pod} {pod.container}{tiles}" + (f" ({', '.join(notes)})" if notes else "")
