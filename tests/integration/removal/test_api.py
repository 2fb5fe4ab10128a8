"""Which writes the judge takes for writes of the test, and which for writes of the product."""

from collections.abc import AsyncIterator

import pytest

from lab.sandbox.resources import NODES
from tas.enforcing.managers import FIELD_MANAGER
from tests.integration.removal.api import SandboxApi
from tests.integration.removal.judge import Judge
from tests.integration.removal.observed import Observed
from tests.sandbox import Sandbox

NODE, LABEL = "n", "red"


@pytest.fixture
def judge() -> Judge:
    return Judge(Observed(), 1.5, lambda _: None, lambda: 0.0, lambda _: 0.0)


@pytest.fixture
async def api(judge: Judge) -> AsyncIterator[SandboxApi]:
    """An API server with one node; nothing reports the writes of the product by itself."""
    async with Sandbox.start() as sandbox:
        api = SandboxApi(sandbox, judge, lambda _: None)
        await api.add_node(NODE, {"zone": "a"})
        yield api


def write_as_product(api: SandboxApi, value: str | None) -> None:
    patch = {"metadata": {"labels": {LABEL: value}}}
    api.sandbox.cluster.patch(NODES, "", NODE, patch, manager=FIELD_MANAGER)


def is_of_product(api: SandboxApi, judge: Judge) -> bool:
    return judge.observed.setters[NODE, api.nodes()[NODE].uid, LABEL]


@pytest.mark.parametrize("zone", ["a", "b"], ids=["that changes nothing", "that changes another label"])
async def test_a_label_of_the_product_stays_its_own_after_a_write_by_a_user(
    api: SandboxApi, judge: Judge, zone: str
) -> None:
    write_as_product(api, "violating")
    await api.label_node(NODE, {"zone": zone})
    assert is_of_product(api, judge)


async def test_a_label_set_by_a_user_is_not_of_the_product(api: SandboxApi, judge: Judge) -> None:
    write_as_product(api, "violating")
    await api.label_node(NODE, {LABEL: "other"})
    assert not is_of_product(api, judge)


@pytest.mark.parametrize("zone", ["a", "b"], ids=["that changes nothing", "that changes another label"])
async def test_a_removal_is_checked_although_a_write_by_a_user_follows(
    api: SandboxApi, judge: Judge, zone: str
) -> None:
    write_as_product(api, "violating")
    api.report()
    write_as_product(api, None)
    await api.label_node(NODE, {"zone": zone})
    judge.judge(all_of_them=True)
    assert [fault.partition(" was removed ")[0] for fault in judge.faults] == [f"{LABEL}=violating from {NODE}"]


@pytest.mark.parametrize(
    ("before", "after", "is_fault"),
    [
        ("strange", "violating", True),
        ("violating", "strange", True),
        ("null", "violating", False),
        ("", "violating", False),
    ],
)
async def test_the_product_must_not_replace_a_foreign_value(
    api: SandboxApi, judge: Judge, before: str, after: str, is_fault: bool
) -> None:
    await api.label_node(NODE, {LABEL: before})
    write_as_product(api, after)
    api.report()
    assert judge.faults == ([f"{LABEL} of {NODE} was changed from {before} to {after}"] if is_fault else [])


async def test_a_removal_by_a_user_is_not_checked(api: SandboxApi, judge: Judge) -> None:
    write_as_product(api, "violating")
    await api.label_node(NODE, {LABEL: None})
    judge.judge(all_of_them=True)
    judge.must_have_no_faults()
    assert not judge.verdicts
