"""The behaviour of the original by its test vectors, with the corrections that are required of ours."""

import pytest

from tas.gpu.claim import Options, read_claim
from tas.gpu.refusal import Refusal
from tests.unit.tas.gpu.notation import GPU, Node, placed, pod, result

NOFIT = "will not fit"
LINKS = "links=0.0-1.0_2.1-3.2"
MAP = "numa=0-0.1_1-2.3"
LISTS = "lists"
TILES = "balanced tiles"

OPTIONS = {
    "": Options(),
    LISTS: Options(allowlist=True, denylist=True),
    TILES: Options(balanced=f"{GPU}tiles"),
    "balanced millicores": Options(balanced=f"{GPU}millicores"),
}

FIT_01, FIT_08, FIT_11 = "N(0,1) i20 mem16", "N(0,1) i2 mc999", "cards=card0.card1 i2"
TIL_03 = "N(0,1) i2 t8"
SAM_01 = "N(0,1) i16 mc2000 ; card0: i5 mc500 ; card1: i5 mc500"
LNK_01, LNK_03 = f"N(0..3) i16 t16 {LINKS}", f"N(0..3) i4 t16 {LINKS}"
NUM_01 = f"N(0..3) i4 {MAP} ; card0: i1"
PCI = "N(0..4) i5 groups=0.1_2.3.4 disable-card3=PCI_GROUP"

VECTORS = [
    # id, node, pod, settings, result
    ("FIT-01", FIT_01, "A{i1 mem5}", "", "card0 ; -"),
    ("FIT-02", f"{FIT_01} ; card0: i1 mem5 ; card1: i1 mem5", "A{i1 mem5}", "", NOFIT),
    ("FIT-03", "N(0) i10 mc1000", "A{i2 mc200}", "", NOFIT),
    ("FIT-04", "N(0,1) i20 mc2000", "A{i1 mc100} B{} C{i1 mc100}", "", "card0//card0 ; -"),
    ("FIT-05", "N(2,10) i2", "A{i1}", "", "card2 ; -"),
    ("FIT-06", "N(0,1) i2 ; card0: i1 ; card1: i1", "A{i1}", "", NOFIT),
    ("FIT-07-one", "N(0) i1", "A{i1 foo1}", "", NOFIT),
    ("FIT-07-zero", "N(0) i1", "A{i1 foo0}", "", "card0 ; -"),
    ("FIT-08-more", FIT_08, "A{i1 mc500}", "", NOFIT),
    ("FIT-08", FIT_08, "A{i1 mc499}", "", "card0 ; -"),
    ("FIT-10-zero", "N(0) i1", "A{i0}", "", " ; -"),
    ("FIT-10-init", "N(0) i1", "A{} init{i1}", "", "resources conflict!"),
    ("FIT-11", FIT_11, "A{i2}", "", "card0,card1 ; -"),
    ("FIT-12", "N(0,1) i2 gpu-numbers2=.5", "A{i1}", "", NOFIT),
    ("FIT-13", "N(0,1) i2 mon1", "A{i1 mon1}", "", "card0 ; -"),
    ("FIT-14", "N(0,1) i2 ; card0: i1 ; card7: i1", "A{i1}", "", "card1 ; -"),
    ("TIL-01", "N(0) i4 t4", "A{i1 t3} B{i1 t1}", TILES, "card0/card0 ; card0:gt0+gt1+gt2/card0:gt3"),
    ("TIL-02", "N(0) i4 t4 ; card0: gt0+gt1", "A{i1 t2}", "", "card0 ; card0:gt2+gt3"),
    ("TIL-03", TIL_03, "A{i2 t4}", "", "card0,card1 ; card0:gt0+gt1,card1:gt0+gt1"),
    ("TIL-04-three", TIL_03, "A{i2 t3}", "", "bad args!"),
    ("TIL-04-one", TIL_03, "A{i2 t1}", "", "bad args!"),
    ("TIL-05", "N(0) i1 t1 tile-disable-card0_gt0", "A{i1 t1}", "", NOFIT),
    ("TIL-05-deschedule", "N(0) i1 t1 tile-deschedule-card0_gt0", "A{i1 t1}", "", NOFIT),
    ("TIL-06", "N(0,1) i2 t2 tile-disable-card0_gt0", "A{i1 t1}", "", "card1 ; card1:gt0"),
    ("TIL-07", "N(0) i1 t1 tile-disable-card0_gt6", "A{i1 t1}", "", "card0 ; card0:gt0"),
    ("TIL-08", "N(0) i1 t4 tile-preferred-card0=gt3", "A{i1 t2}", "", "card0 ; card0:gt3+gt0"),
    ("TIL-09", "N(0) i1 t2 tile-disable-card0_gt0@a tile-disable-card0_gt0@b", "A{i1 t1}", "", "card0 ; card0:gt1"),
    ("TIL-09-both", "N(0) i1 t2 tile-disable-card0_gt0 tile-deschedule-card0_gt0", "A{i1 t1}", "", "card0 ; card0:gt1"),
    ("TIL-10", "N(0) i1 t1 tile-disable-card0_gt0", "A{i1}", "", "card0 ; -"),
    ("TIL-11", "N(0) i2 t2", "A{i1} B{i1 t1}", "", "card0/card0 ; /card0:gt0"),
    ("SEL-01-this", "N(0) i1", "A{i1} allow=card0", LISTS, "card0 ; -"),
    ("SEL-01-other", "N(0) i1", "A{i1} allow=card1", LISTS, NOFIT),
    ("SEL-02", "N(0) i1", "A{i1} allow=card1", "", "card0 ; -"),
    ("SEL-03-this", "N(0) i1", "A{i1} deny=card0", LISTS, NOFIT),
    ("SEL-03-other", "N(0) i1", "A{i1} deny=card1", LISTS, "card0 ; -"),
    ("SEL-04", "N(0,1) i2", "A{i2} allow=card0,_card1", LISTS, "card0,card1 ; -"),
    ("SEL-05-empty", "N(0) i1", "A{i1} allow=", LISTS, NOFIT),
    ("SEL-05-both", "N(0) i1", "A{i1} allow=card0 deny=card0", LISTS, NOFIT),
    ("SEL-06", "N(0) i1 disable-card0=true", "A{i1}", "", NOFIT),
    ("SEL-06-group", "N(0) i1 groups=0 disable-card0=PCI_GROUP", "A{i1}", "", NOFIT),
    ("SEL-07-two", PCI, "A{i2}", "", "card0,card1 ; -"),
    ("SEL-07-three", PCI, "A{i3}", "", NOFIT),
    ("SEL-08", "N(0) i1 gas-disable-card0=true", "A{i1}", "", "card0 ; -"),
    ("SEL-09", "N(0,1,2) i3 prefer-gpu=card2", "A{i1}", "", "card2 ; -"),
    ("SEL-11", "N(0,1) i2 prefer-gpu=card9", "A{i1}", "", "card0 ; -"),
    ("SEL-12", "N(0,1) i2 mc2000 prefer-gpu=card1", "A{i1 mc100}", "balanced millicores", "card1 ; -"),
    ("SEL-13", "N(0,1) i2 deschedule-pods-card0", "A{i1}", "", "card1 ; -"),
    ("BAL-01", "N(0,1,2) i3 t9 ; card0: gt0+gt1 ; card2: gt0", "A{i3}", TILES, "card1,card2,card0 ; -"),
    ("BAL-01-unknown", "N(0,1,2) i3", "A{i3}", TILES, "card0,card1,card2 ; -"),
    ("BAL-02", "N(0,1) i8 t4", "A{i1 t1} B{i1 t1} C{i1 t1}", TILES,
     "card0/card1/card0 ; card0:gt0/card1:gt0/card0:gt1"),
    ("BAL-03", "N(0,1) i8 t8 tile-disable-card0_gt0", "A{i1 t1}", TILES, "card1 ; card1:gt0"),
    ("SAM-01", SAM_01, "A{i1 mc100} B{i1 mc100} C{i1 mc100} D{i1 mc100} E{i1 mc100} same=A,B,C,D,E", "", NOFIT),
    ("SAM-01-three", SAM_01, "A{i1 mc100} B{i1 mc100} C{i1 mc100} same=A,B,C", "", "card0/card0/card0 ; -"),
    ("SAM-02-one", FIT_01, "A{i1} B{i1} same=A", "", "malformed annotation!"),
    ("SAM-02-unknown", FIT_01, "A{i1} B{i1} same=A,Z", "", "malformed annotation!"),
    ("SAM-02-empty", FIT_01, "A{i1} B{i1} same=", "", "malformed annotation!"),
    ("SAM-02-twice", FIT_01, "A{i1} B{i1} same=A,B,B", "", "malformed annotation!"),
    ("SAM-03-tiles", FIT_01, "A{i1 t1} B{i1} same=A,B", "", "resources conflict!"),
    ("SAM-03-no-tiles", FIT_01, "A{i1} B{i1 t0} same=A,B", "", "resources conflict!"),
    ("SAM-03-monitoring", FIT_01, "A{i1} B{i1 mon1} same=A,B", "", "resources conflict!"),
    ("SAM-03-two", FIT_01, "A{i2} B{i1} same=A,B", "", "resources conflict!"),
    ("SAM-03-none", FIT_01, "A{i1} B{} same=A,B", "", "resources conflict!"),
    ("SAM-04", LNK_01, "A{i1} B{i1} same=A,B xelink", "", "bad args!"),
    ("SAM-05", "N(0,1) i4 mc2000", "A{i1 mc900} B{i1 mc500} C{i1 mc500} same=B,C", "", "card1/card0/card0 ; -"),
    ("SAM-06", "N(0,1) i4 mc2000 numa=0-0_1-1 ; card0: i2", "A{i1 mc1} B{i1 mc1} same=A,B numa=true", "",
     "card1/card1 ; -"),
    ("LNK-01", LNK_01, "A{i2 t2} B{i2 t2} xelink", "",
     "card0,card1/card2,card3 ; card0:gt0,card1:gt0/card2:gt1,card3:gt2"),
    ("LNK-01-split", "N(0..3) i16 t16 links=0.0-1. links2=Z0_2.1-3.2", "A{i2 t2} B{i2 t2} xelink", "",
     "card0,card1/card2,card3 ; card0:gt0,card1:gt0/card2:gt1,card3:gt2"),
    ("LNK-02", f"N(0..3) i16 t16 links=0.0-2.0_2.1-3.2 {MAP}", "A{i2 t2} B{i2 t2} xelink numa=true", "", NOFIT),
    ("LNK-03-one", f"{LNK_03} tile-disable-card0_gt0", "A{i2 t2} xelink", "", "card2,card3 ; card2:gt1,card3:gt2"),
    ("LNK-03-both", f"{LNK_03} tile-disable-card0_gt0 tile-disable-card2_gt1", "A{i2 t2} xelink", "", NOFIT),
    ("LNK-04", LNK_01, "A{i1 t1} xelink", "", "bad args!"),
    ("LNK-05", "numbers=1.10.2.3 i4 t8 links=1.0-2.1", "A{i2 t2} xelink", "", "card2,card3 ; card2:gt0,card3:gt1"),
    ("LNK-06", "N(0,1) i2 t2 links=0.0-1.0 prefer-gpu=card1", "A{i2 t2} xelink", "",
     "card1,card0 ; card0:gt0,card1:gt0"),
    ("LNK-07", "N(0,1,2) i3 t3 links=0.0-1.0_0.0-2.0 ; card1: i1", "A{i2 t2} xelink", "",
     "card0,card2 ; card0:gt0,card2:gt0"),
    ("LNK-08-cards", "cards=card0.card1 i2 t2 links=0.0-1.0", "A{i2 t2} xelink", "", NOFIT),
    ("LNK-08-first", "N(0,1) i2 t2 links=foobar_0.0-1.0", "A{i2 t2} xelink", "", NOFIT),
    ("LNK-08-last", "N(0,1) i2 t2 links=0.0-1.0_foobar", "A{i2 t2} xelink", "", NOFIT),
    ("LNK-09", "N(0,1) i2 t8 links=0.3-1.3", "A{i2 t4} xelink", "", "card0,card1 ; card0:gt3+gt0,card1:gt3+gt0"),
    ("NUM-01-numa", NUM_01, "A{i2} numa=true", "", "card2,card3 ; -"),
    ("NUM-01-any", NUM_01, "A{i2}", "", "card1,card2 ; -"),
    ("NUM-02", "N(0..3) i4 ; card0: i1", "A{i2} numa=true", "", NOFIT),
    ("NUM-03", "N(0,1) i2 numa=0-0.1_1", "A{i1} numa=true", "", NOFIT),
    ("NUM-04", f"N(0..3) i4 {MAP} disable-card1", "A{i2} B{i1} numa=true", "", "card2,card3/card0 ; -"),
]  # fmt: skip


@pytest.mark.parametrize("driver", ["i915", "xe"])
@pytest.mark.parametrize(
    ("node", "asked", "settings", "expected"),
    [vector[1:] for vector in VECTORS],
    ids=[vector[0] for vector in VECTORS],
)
def test_vector(node: str, asked: str, settings: str, expected: str, driver: str) -> None:
    if driver == "xe":
        node, asked = (
            text.replace(" i", " xe").replace("{i", "{xe").replace("} xenit", "} init").replace("mon", "xe_monitoring")
            for text in (node, asked)
        )
    assert result(placed(Node(node), asked, OPTIONS[settings])) == expected


def test_vectors_are_all_there_and_none_twice() -> None:
    names = [vector[0] for vector in VECTORS]
    assert len(set(names)) == len(names)
    found = {name[:6] for name in names}
    elsewhere = {"FIT-09", "TIL-12", "SEL-10"}  # below, and where annotations and scores are tested
    assert found | elsewhere == {
        f"{group}-{number:02}"
        for group, last in (("FIT", 14), ("TIL", 12), ("SEL", 13), ("BAL", 3), ("SAM", 6), ("LNK", 9), ("NUM", 4))
        for number in range(1, last + 1)
    }


def test_FIT_09_both_drivers_in_one_container_are_refused_for_ever() -> None:
    refusal = read_claim(pod("A{i1 xe1}"), Options())
    assert isinstance(refusal, Refusal)
    assert refusal.permanent
    assert result(placed(Node("N(0) i1"), "A{i1 xe1}")) == "resources conflict!"
    assert "container A: gpu.intel.com/i915 = 1: must not be requested with gpu.intel.com/xe" in refusal.reason


def test_NUM_02_the_reason_is_the_missing_map() -> None:
    refusal = placed(Node("N(0..3) i4"), "A{i2} numa=true")
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "no numa map: label gpu.intel.com/numa-gpu-map is missing or cannot be read"


@pytest.mark.parametrize(
    ("node", "field", "value"),
    [
        ("N(0,1) i2 gpu-numbers2=.5", "gpu.intel.com/gpu-numbers2", "'.5'"),  # FIT-12
        ("cards=card0.card1 i2 t2 links=0.0-1.0", "gpu.intel.com/xe-links", "'0.0-1.0'"),  # LNK-08
        ("N(0,1) i2 t2 links=foobar_0.0-1.0", "gpu.intel.com/xe-links", "'foobar_0.0-1.0'"),
        ("N(0,1) i2 numa=0-0.1_1", "gpu.intel.com/numa-gpu-map", "'0-0.1_1'"),  # NUM-03
    ],
)
def test_a_label_that_cannot_be_read_is_reported_once(node: str, field: str, value: str) -> None:
    (problem,) = Node(node).inventory.problems
    assert (problem.field, problem.value) == (field, value)
