"""Hypothesis strategies for nodes, pods and holds, small enough that cards get scarce."""

from hypothesis import strategies as st

from tas.enforcing.pod import PodKey
from tas.gpu.claim import ContainerRequest, DevicePod, Options
from tests.unit.tas.gpu.notation import GPU

MILLICORES, MEMORY, TILES, I915 = (f"{GPU}{name}" for name in ("millicores", "memory.max", "tiles", "i915"))


@st.composite
def node_labels(draw: st.DrawFn, numbers: list[int], tiles: int) -> dict[str, str]:
    """Labels of a node with these cards, with policy facts about some of them."""
    labels = {f"{GPU}gpu-numbers": ".".join(map(str, draw(st.permutations(numbers))))}
    some = st.sampled_from(numbers)
    if draw(st.booleans()):
        half = len(numbers) // 2
        groups = [numbers[:half], numbers[half:]]
        parts = [".".join(map(str, group)) for group in groups if group]
        labels[f"{GPU}numa-gpu-map"] = "_".join(f"{index}-{part}" for index, part in enumerate(parts))
        labels[f"{GPU}pci-groups"] = "_".join(parts)
    if tiles and len(numbers) > 1:
        ends = st.tuples(st.integers(0, len(numbers) - 1), st.integers(0, tiles - 1))
        pairs = draw(st.lists(st.tuples(ends, ends).filter(lambda pair: pair[0][0] != pair[1][0]), max_size=8))
        if pairs:
            labels[f"{GPU}xe-links"] = "_".join(f"{a}.{b}-{c}.{d}" for (a, b), (c, d) in pairs)
    for policy in draw(st.lists(st.sampled_from(["a", "b"]), max_size=2)):
        tile = f"card{draw(some)}_gt{draw(st.integers(0, max(tiles, 1)))}"
        name, value = draw(
            st.sampled_from(
                [
                    (f"gas-disable-card{draw(some)}", "true"),
                    (f"gas-disable-card{draw(some)}", "PCI_GROUP"),
                    (f"gas-deschedule-pods-card{draw(some)}", "true"),
                    ("gas-prefer-gpu", f"card{draw(some)}"),
                    (f"gas-tile-disable-{tile}", "true"),
                    (f"gas-tile-deschedule-{tile}", "true"),
                    (f"gas-tile-preferred-{tile.partition('_')[0]}", tile.partition("_")[2]),
                ]
            )
        )
        labels[f"telemetry.aware.scheduling.{policy}/{name}"] = value
    return labels


@st.composite
def nodes(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, str]]:
    """The labels and the allocatable amounts of a node with 1 to 4 cards."""
    numbers = sorted(draw(st.sets(st.integers(0, 11), min_size=1, max_size=4)))
    count = len(numbers)
    tiles = draw(st.integers(0, 4))
    allocatable = {
        I915: str(count * draw(st.integers(1, 4)) + draw(st.integers(0, count - 1))),
        MILLICORES: str(count * draw(st.integers(0, 10))),
        MEMORY: str(count * draw(st.integers(0, 10))),
        TILES: str(count * tiles),
        f"{GPU}i915_monitoring": "1",
    }
    return draw(node_labels(numbers, tiles)), allocatable


@st.composite
def pods(draw: st.DrawFn, *, plain: bool = False) -> DevicePod:
    """A pod with 1 to 3 containers whose amounts are divisible."""
    linked = not plain and draw(st.booleans())
    containers = []
    for name in "ABC"[: draw(st.integers(1, 3))]:
        cards = draw(st.sampled_from([0, 2]) if linked else st.integers(0, 3))
        requests = {I915: str(cards)}
        if cards:
            requests[MILLICORES] = str(cards * draw(st.integers(0, 6)))
            requests[MEMORY] = str(cards * draw(st.integers(0, 6)))
            if draw(st.booleans()):
                requests[TILES] = str(cards * draw(st.integers(0, 2)))
        containers.append(ContainerRequest(name=name, requests=requests))
    annotations = {}
    if linked:
        annotations["gas-allocate-xelink"] = "true"
    if not plain and draw(st.booleans()):
        annotations["gas-allocate-single-numa"] = draw(st.sampled_from(["true", "pod"]))
    if not plain and draw(st.booleans()):
        annotations["gas-deny"] = f"card{draw(st.integers(0, 11))}"
    uid = f"uid-{draw(st.integers(0, 9))}"
    return DevicePod(key=PodKey("default", uid), uid=uid, containers=tuple(containers), annotations=annotations)


options = st.sampled_from(
    [Options(), Options(denylist=True), Options(balanced=MILLICORES), Options(balanced=TILES, denylist=True)]
)
