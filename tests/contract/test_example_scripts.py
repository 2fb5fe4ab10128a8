"""The scripts of `deploy/examples`: what they write, and their errors."""

import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
ARGUMENTS = {
    "gpu/set-temperature.sh": ["40", "90"],
    "health-metric/set-health.sh": ["1"],
    "labeling/set-cards.sh": ["150", "50", "5", "10"],
    "power/package-tdp.sh": [],
}


def run(script: str, *arguments: str | Path) -> tuple[int, str]:
    """The exit code of a script and its messages, run as on the pages: from its standard input."""
    with (EXAMPLES / script).open() as text:
        done = subprocess.run(
            ["sh", "-s", *map(str, arguments)], stdin=text, capture_output=True, text=True, check=False
        )
    return done.returncode, done.stderr


def test_each_script_is_tested() -> None:
    assert {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/*.sh")} == set(ARGUMENTS)


@pytest.mark.parametrize("script", ARGUMENTS)
def test_a_script_names_a_directory_that_does_not_exist(tmp_path: Path, script: str) -> None:
    missing = tmp_path / "missing"
    code, message = run(script, *ARGUMENTS[script], missing)
    assert code == 2
    assert f"there is no directory {missing}" in message


def test_the_cards_of_a_node_are_in_one_file(tmp_path: Path) -> None:
    assert run("labeling/set-cards.sh", "150", "50", "5", "10", tmp_path) == (0, "")
    (file,) = tmp_path.iterdir()
    assert file.name == "cards.prom"
    assert [line for line in file.read_text().splitlines() if not line.startswith("#")] == [
        "node_metric_card0 150",
        "node_metric_card1 50",
        "node_metric_card0_free 5",
        "node_metric_card1_free 10",
    ]


def test_the_temperatures_of_the_cards_of_a_node_are_in_one_file(tmp_path: Path) -> None:
    assert run("gpu/set-temperature.sh", "40", "90", tmp_path) == (0, "")
    (file,) = tmp_path.iterdir()
    assert file.name == "gpu.prom"
    assert [line for line in file.read_text().splitlines() if not line.startswith("#")] == [
        "node_gpu_card0_temperature 40",
        "node_gpu_card1_temperature 90",
    ]


def powercap(sys: Path, zones: dict[str, tuple[str, str]]) -> None:
    """Zones of the kernel by the name of the folder: the name of the zone, and the largest power in microwatts."""
    for folder, (name, power) in zones.items():
        zone = sys / "class" / "powercap" / folder
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "constraint_0_max_power_uw").write_text(f"{power}\n")


def test_the_design_power_of_each_package_is_in_one_file(tmp_path: Path) -> None:
    zones = {
        "intel-rapl:0": ("package-0", "140000000"),
        "intel-rapl:0:0": ("dram", "40000000"),
        "intel-rapl:1": ("package-1", "62500000"),
        "intel-rapl:2": ("package-2", "0"),  # unknown: a percentage of it would be infinite
        "intel-rapl:3": ("psys", "300000000"),
    }
    (directory := tmp_path / "metrics").mkdir()
    powercap(tmp_path / "sys", zones)
    assert run("power/package-tdp.sh", directory, tmp_path / "sys") == (0, "")
    (file,) = directory.iterdir()
    assert file.name == "tdp.prom"
    assert file.read_text().splitlines() == [
        "# TYPE node_package_tdp_watts gauge",
        'node_package_tdp_watts{index="0"} 140000000e-6',
        'node_package_tdp_watts{index="1"} 62500000e-6',
    ]


@pytest.mark.parametrize("zones", [{}, {"intel-rapl:0": ("package-0", "0")}], ids=["no-powercap", "power-unknown"])
def test_without_a_design_power_there_is_no_file(tmp_path: Path, zones: dict[str, tuple[str, str]]) -> None:
    (directory := tmp_path / "metrics").mkdir()
    powercap(tmp_path / "sys", zones)
    code, message = run("power/package-tdp.sh", directory, tmp_path / "sys")
    assert code == 2
    assert f"no package with a largest power in {tmp_path}/sys/class/powercap" in message
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "theirs", "line"),
    [
        ("health-metric/set-health.sh", "text.prom", "node_health_metric 2"),
        ("labeling/set-cards.sh", "metrics.prom", "node_metric_card0 200"),
    ],
)
def test_a_file_of_the_original_with_the_same_metric_is_named(
    tmp_path: Path, script: str, theirs: str, line: str
) -> None:
    """node_exporter serves one of the two without an error, and the other would be written in vain."""
    (tmp_path / theirs).write_text("node_other_metric 1\n")
    assert run(script, *ARGUMENTS[script], tmp_path) == (0, "")
    (tmp_path / theirs).write_text(f"{line}\n")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    code, message = run(script, *ARGUMENTS[script], tmp_path)
    assert code == 2
    assert f"{tmp_path / theirs} has " in message
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
