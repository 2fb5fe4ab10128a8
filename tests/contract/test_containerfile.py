"""Each step of `deploy/Containerfile` uses what an earlier one has made; the steps themselves run in `make nightly`."""

import re
import tomllib

from tests.installed import ROOT

FILE = (ROOT / "deploy" / "Containerfile").read_text()


def the(pattern: str) -> str:
    """What the pattern finds in the file, however often: always the same."""
    (found,) = set(re.findall(pattern, FILE, re.MULTILINE))
    return str(found)


def test_all_is_installed_into_one_environment_which_the_image_gets() -> None:
    home = the(r"^RUN python -m venv .*--without-pip (\S+)$")
    assert the(r"^RUN pip --python (\S+) install ") == home
    assert the(r"^RUN python -m compileall .* (\S+)/lib$") == home
    assert re.findall(r"^COPY --from=build (\S+) (\S+)$", FILE, re.MULTILINE) == [(home, home)]
    assert the(r"^ENV PATH=(\S+)/bin:\$PATH ") == home


def test_the_wheel_of_this_package_is_found_where_it_is_made() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert the(r"^RUN pip wheel --no-deps --wheel-dir (\S+) \.$") == the(r" --find-links (\S+) ")
    assert the(r" --no-deps --no-index --find-links \S+ (\S+)$") == project["name"]


def test_the_packages_are_those_of_the_lock_file_which_is_copied_before() -> None:
    lock = the(r" --require-hashes --only-binary :all: --requirement (\S+)$")
    assert (ROOT / lock).is_file()
    assert FILE.index(f"\nCOPY {lock} ./\n") < FILE.index(f"--requirement {lock}")
    assert FILE.index("\nCOPY . .\n") < FILE.index("\nRUN pip wheel ")


def test_a_folder_with_keys_that_the_page_makes_in_a_clone_gets_neither_into_git_nor_into_a_build() -> None:
    """`COPY . .` takes the whole clone; docker reads only .dockerignore, and podman reads it, too."""
    page = (ROOT / "docs" / "start" / "install.md").read_text()
    made = set(re.findall(r"\btas (?:bus|certs) init (\w+)", page))
    assert made == {"operator", "certs"}
    for name in (".gitignore", ".dockerignore"):
        assert made <= {line.strip("/") for line in (ROOT / name).read_text().splitlines()}, name
