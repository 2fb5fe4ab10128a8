"""What a pod asks for, and what no node can give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.pod import PodKey
from tas.gpu.claim import (
    MAX_ANNOTATION,
    MAX_GPU_CONTAINERS,
    Claim,
    ContainerRequest,
    DevicePod,
    Options,
    SingleNuma,
    Slot,
    Unit,
    read_claim,
)
from tas.gpu.names import MAX_RESOURCES
from tas.gpu.refusal import Cause, Refusal
from tests.unit.growth import grows_linearly
from tests.unit.tas.gpu.notation import GPU, claim, pod

I915, MILLICORES, TILES, MONITORING = (f"{GPU}{name}" for name in ("i915", "millicores", "tiles", "i915_monitoring"))
LISTS = Options(allowlist=True, denylist=True)


def refusal(text: str, options: Options = LISTS) -> Refusal:
    found = read_claim(pod(text), options)
    assert isinstance(found, Refusal), found
    assert found.permanent
    assert found.cards == {}
    return found


def test_amounts_are_divided_by_the_cards() -> None:
    found = claim("A{i2 mc300 t4} B{} C{i1 mon1} D{mon2 i0}")
    assert found.slots == (
        Slot(container="A", cards=2, amounts={I915: 1, MILLICORES: 150, TILES: 2}),
        Slot(container="B"),
        Slot(container="C", cards=1, amounts={I915: 1}),
        Slot(container="D"),
    )
    assert found.node_amounts == {MONITORING: 3}
    assert found.resources == (I915, MILLICORES, TILES)
    assert found.units == (Unit(slots=(0,), cards=2, needs=(1, 150, 2)), Unit(slots=(2,), cards=1, needs=(1, 0, 0)))


def test_containers_of_one_card_are_one_unit_before_all_others() -> None:
    found = claim("A{i1 mc1} B{i1 mc10} C{i1} D{i1 mc100} same=D,_B")
    assert found.same_gpu == (1, 3)
    assert [(unit.slots, unit.cards, unit.needs) for unit in found.units] == [
        ((1, 3), 1, (2, 110)),
        ((0,), 1, (1, 1)),
        ((2,), 1, (1, 0)),
    ]


def test_an_amount_may_be_given_as_a_limit_only() -> None:
    container = ContainerRequest(name="A", requests={MILLICORES: "5", "cpu": "1"}, limits={I915: "1", MILLICORES: "9"})
    found = read_claim(DevicePod(key=PodKey("d", "p"), uid="u", containers=(container,)), Options())
    assert isinstance(found, Claim)
    assert found.slots == (Slot(container="A", cards=1, amounts={I915: 1, MILLICORES: 5}),)


def test_a_pod_without_gpu_resources_asks_for_nothing() -> None:
    found = claim("A{} B{i0 mc0 foo0} init{i0} xelink numa=true")
    assert found.units == ()
    assert found.node_amounts == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A{i-1}", "container A: gpu.intel.com/i915 = '-1': must not be negative"),
        ("A{i1 mc0.5}", "container A: gpu.intel.com/millicores = '0.5': must be a whole number"),
        ("A{i1 mc500m}", "container A: gpu.intel.com/millicores = '500m': must be a whole number"),
        ("A{i1 mc1e30}", "container A: gpu.intel.com/millicores = '1e30': must be at most 9223372036854775807"),
        ("A{i1} B{i1e30}", "container B: gpu.intel.com/i915 = '1e30': must be at most 9223372036854775807"),
        ("A{i1 mc1e99}", "container A: gpu.intel.com/millicores = '1e99': "),
        ("A{i1 mc1x}", "container A: gpu.intel.com/millicores = '1x': '1x' is no Kubernetes quantity"),
        ("A{i2 mc101}", "container A: gpu.intel.com/millicores = 101: must be divisible by 2, the number of cards"),
        ("A{i3 xelink2} xelink", "container A: gpu.intel.com/i915 = 3: must be even, as gas-allocate-xelink gives"),
        ("A{i1} B{i1} same=A,B xelink", "pod: annotation gas-same-gpu = 'A,B': must not be given with gas-allocate"),
    ],
)  # fmt: skip
def test_requests_that_no_node_can_fulfil(text: str, reason: str) -> None:
    found = refusal(text)
    assert found.cause is Cause.BAD_ARGS
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A{i1 xe1}", "container A: gpu.intel.com/i915 = 1: must not be requested with gpu.intel.com/xe"),
        ("A{mc100}", "container A: gpu.intel.com/millicores = 100: is an amount of a card, so gpu.intel.com/i915 or"),
        ("A{i0 t1}", "container A: gpu.intel.com/tiles = 1: is an amount of a card"),
        ("A{} init{mc5}", "container init: gpu.intel.com/millicores = 5: an init container cannot have GPU resources"),
        ("A{i1} B{i2} same=A,B", "container B: gpu.intel.com/i915 or gpu.intel.com/xe = 2: a container of gas-same"),
        ("A{i1} B{i1 t0} same=A,B", "container B: gpu.intel.com/tiles = 0: must not be requested by a container of"),
    ],
)  # fmt: skip
def test_resources_that_exclude_each_other(text: str, reason: str) -> None:
    found = refusal(text)
    assert found.cause is Cause.RESOURCES_CONFLICT
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A{i1} same=", "annotation gas-same-gpu = '': must name at least two containers, separated by commas"),
        ("A{i1} same=A", "annotation gas-same-gpu = 'A': must name at least two containers"),
        ("A{i1} same=A,Z", "annotation gas-same-gpu = 'A,Z': the pod has no container 'Z'"),
        ("A{i1} B{i1} same=A,B,B", "annotation gas-same-gpu = 'A,B,B': must name each container once"),
        ("A{i1} B{i1} same=[A;B]", "annotation gas-same-gpu = '[A;B]': must name at least two containers"),
        ("A{i1} allow=0", "annotation gas-allow = '0': must list cards such as card0,card1"),
        ("A{i1} deny=card0,crad1", "annotation gas-deny = 'crad1': must list cards such as card0,card1"),
    ],
)  # fmt: skip
def test_annotations_that_cannot_be_read(text: str, reason: str) -> None:
    found = refusal(text)
    assert found.cause is Cause.MALFORMED_ANNOTATION
    assert found.reason.startswith(f"pod: {reason}")


@pytest.mark.parametrize("name", ["same", "allow", "deny"])
def test_an_annotation_of_a_megabyte_is_refused(name: str) -> None:
    found = refusal(f"A{{i1}} {name}={'card0,' * 170_000}")
    assert found.reason.endswith(f"is longer than {MAX_ANNOTATION} characters")
    assert len(found.reason) < 300


@pytest.mark.parametrize("name", ["allow", "deny"])
def test_the_lists_count_only_if_they_are_switched_on(name: str) -> None:
    assert claim(f"A{{i1}} {name}=x", Options(), uid="u") == claim("A{i1}", Options(), uid="u")
    found = claim(f"A{{i1}} {name}=_card1_,card0,", LISTS)
    assert (found.allow if name == "allow" else found.deny) == frozenset({0, 1})


def test_an_empty_list_allows_nothing_and_denies_nothing() -> None:
    found = claim("A{i1} allow= deny=", LISTS)
    assert (found.allow, found.deny) == (frozenset(), frozenset())
    assert claim("A{i1}", LISTS).allow is None


def test_wishes_by_presence() -> None:
    found = claim("A{i2} xelink numa=false")
    assert found.linked
    assert found.single_numa is SingleNuma.CONTAINER
    assert claim("A{i1} numa=pod").single_numa is SingleNuma.POD
    assert claim("A{i1}").single_numa is SingleNuma.NOTHING


def test_the_size_of_a_claim_is_limited() -> None:
    def containers(count: int) -> str:
        return " ".join(f"c{number}{{i1}}" for number in range(count))

    assert len(claim(containers(MAX_GPU_CONTAINERS) + " z{}").units) == MAX_GPU_CONTAINERS
    assert "at most 100 containers" in refusal(containers(MAX_GPU_CONTAINERS + 1)).reason

    def resources(count: int) -> str:
        return "A{i1 " + " ".join(f"{'x' * number}1" for number in range(5, 4 + count)) + "}"

    assert len(claim(resources(MAX_RESOURCES)).resources) == MAX_RESOURCES
    assert "at most 32 different GPU resources" in refusal(resources(MAX_RESOURCES + 1)).reason


texts = st.text("0123456789-.emKGi", max_size=6) | st.sampled_from(["1", "2", "0"])
names = st.sampled_from([I915, f"{GPU}xe", MILLICORES, TILES, MONITORING, "cpu"])
containers = st.lists(st.dictionaries(names, texts, max_size=4), min_size=1, max_size=3)


@given(
    containers,
    st.dictionaries(
        st.sampled_from(["gas-same-gpu", "gas-allow", "gas-deny", "gas-allocate-xelink", "gas-allocate-single-numa"]),
        st.text("c0c1,ard ", max_size=12),
    ),
)
def test_any_pod_has_a_claim_or_a_reason(several: list[dict[str, str]], annotations: dict[str, str]) -> None:
    asked = tuple(ContainerRequest(name=f"c{number}", requests=each) for number, each in enumerate(several))
    found = read_claim(DevicePod(key=PodKey("d", "p"), uid="u", containers=asked, annotations=annotations), LISTS)
    if isinstance(found, Refusal):
        assert found.permanent
        assert found.reason
        return
    for container, slot in zip(asked, found.slots, strict=True):
        for name, amount in slot.amounts.items():
            assert amount > 0
            assert slot.cards > 0
            if container.requests[name].isdigit():
                assert amount * slot.cards == int(container.requests[name])


def test_the_time_grows_with_the_number_of_containers() -> None:
    def prepare(size: int) -> object:
        asked = tuple(ContainerRequest(name=f"c{number}", requests={"cpu": "1"}) for number in range(size))
        annotations = {"gas-same-gpu": ",".join(f"c{number}" for number in range(size))[:MAX_ANNOTATION]}
        each = DevicePod(key=PodKey("d", "p"), uid="u", containers=asked, annotations=annotations)
        return lambda: read_claim(each, LISTS)

    assert grows_linearly(prepare, 8000)  # type: ignore[arg-type]
