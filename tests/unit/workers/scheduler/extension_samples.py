"""What entry points may lead to."""

import sys
from typing import Any, NoReturn

from tas.extension import Hooks, NodeView, Pod


class Good:
    def __init__(self, nodes: NodeView) -> None:
        self.nodes = nodes

    def filter(self, pod: Pod, candidates: Any, now: float) -> dict[str, str]:
        return {}


def functions(nodes: NodeView) -> Hooks:
    return Hooks(score=lambda _pod, candidates, _now: dict.fromkeys(candidates, 1))


class Binds(Good):
    def bind(self, binding: Any, now: float) -> None:
        return None


class NoHooks:
    def __init__(self, nodes: NodeView) -> None:
        pass


class NoFunction(NoHooks):
    filter = 7


def raises(nodes: NodeView) -> NoReturn:
    raise ValueError("no such card")


def leaves(nodes: NodeView) -> NoReturn:
    sys.exit(3)


not_callable = 7
