"""The house rules: who imports whom, the README's map, what CI runs."""

import ast
import re
import subprocess
import sys
import tomllib

import pytest
from conftest import PROJECT

SHARED = {
    "engine.cache",
    "engine.errors",
    "engine.toml",
    "engine.lesson",
    "engine.explainer",
    "engine.expressions",
    "engine.runs",
}
SOURCES = sorted((PROJECT / "engine").rglob("*.py"))


def imports_of(path) -> set[str]:
    """Every module that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PROJECT).as_posix())
def test_a_room_imports_only_itself_and_what_all_rooms_share(path):
    room = path.parent.name
    ours = {name for name in imports_of(path) if name.startswith("engine.")}
    allowed = tuple(SHARED) + ((f"engine.{room}",) if room != "engine" else ())
    assert not {name for name in ours if not name.startswith(allowed)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PROJECT).as_posix())
def test_torch_lives_in_the_training_room_alone(path):
    uses_torch = any(name.split(".")[0] == "torch" for name in imports_of(path))
    assert not uses_torch or path.parent.name == "training"
    assert not (path.name in ("supervise.py", "corpus.py", "hub.py", "data.py", "tokens.py", "plan.py") and uses_torch)


def test_building_the_site_never_imports_torch(recorded):
    program = f"import sys, build; assert build.main({['--site-only', *recorded.options]}) == 0; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_readmes_map_names_every_file_and_nothing_else():
    rows = re.findall(r"^\| `([^`]+)` \|", (PROJECT / "README.md").read_text().split("## To change X")[0], re.MULTILINE)
    for row in rows:
        assert (PROJECT / row).exists() or row == "runs/", f"the map names {row}, which is not there"
    on_disk = {path.relative_to(PROJECT).as_posix() for path in SOURCES if path.name != "__init__.py"}
    assert on_disk <= set(rows), "files that the map does not name"


def test_ci_runs_the_readmes_test_command_word_for_word():
    command = "pip install -c constraints.txt -e '.[train,test]' && pytest"
    assert f"    {command}\n" in (PROJECT / "README.md").read_text()
    assert f"  {command}\n" in (PROJECT / ".ci" / "run").read_text()
    assert f"- run: {command}\n" in (PROJECT / ".github" / "workflows" / "tests.yml").read_text()


def test_every_dependency_is_pinned_in_constraints():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    pinned = {
        line.split("==")[0].lower().replace("_", "-") for line in (PROJECT / "constraints.txt").read_text().splitlines()
    }
    assert {re.split(r"[=>\[]", name)[0].lower() for name in named} <= pinned
    assert "torch==2.13.0" in (PROJECT / "constraints.txt").read_text().splitlines()


def test_no_function_of_the_engine_is_longer_than_60_lines():
    long = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in [*SOURCES, PROJECT / "build.py"]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60
    ]
    assert not long


def test_pages_are_deployed_with_the_permissions_that_they_need_and_no_more():
    workflow = (PROJECT / ".github" / "workflows" / "pages.yml").read_text()
    assert "permissions:\n  contents: read\n  pages: write\n  id-token: write\n" in workflow
    assert "concurrency:\n  group: pages\n  cancel-in-progress: false\n" in workflow
    assert "python build.py --site-only" in workflow
    for action in ("configure-pages", "upload-pages-artifact", "deploy-pages"):
        assert f"uses: actions/{action}@" in workflow
