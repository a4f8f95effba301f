"""What a plain installation brings along is all that its modules import when they are loaded."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
OWN = (
    "pbvf_offline",
    "datasets/pbvf_datasets",
    "cli/pbvf_cli",
    "cli/pbvf_experiments",
    "cli/pbvf_report",
    "cli/pbvf_runs",
)


def declared() -> set[str]:
    """Import names of the dependencies without extras; they differ from the names only in case."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[\[>=<~! ;]", line)[0] for line in project["dependencies"]]
    return {
        {"pillow": "PIL", "tensorboardx": "tensorboardX", "lazy-loader": "lazy_loader"}.get(
            name, name
        )
        for name in names
    }


def loaded_with(path: Path) -> set[str]:
    """Packages that a module imports while it is loaded, those for type checkers left out."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


def test_modules_load_in_a_plain_installation() -> None:
    known = declared() | set(sys.stdlib_module_names) | {Path(folder).name for folder in OWN}
    stray = {
        str(path.relative_to(ROOT)): loaded_with(path) - known
        for folder in OWN
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {path: names for path, names in stray.items() if names} == {}


def test_the_script_of_extras_knows_each_of_them_and_its_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "scripts/extras.sh").read_text()
    use, tests = (
        {name for line in re.findall(r"^  ([\w |-]+)\) ", part, re.M) for name in line.split(" | ")}
        for part in text.split("own_tests() {")[:2]
    )
    assert use == tests == set(project["optional-dependencies"])
    assert all((ROOT / path).is_file() for path in re.findall(r"tests/\S+\.py", text))
