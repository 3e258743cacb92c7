"""Guards of the layout: what must hold of the repository as a whole, on every change."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPOSITORY

FOLDERS = ("cli", "formats", "pipeline", "runtime")
HEAVY = ("torch", "datasets", "tokenizers", "pyarrow", "gigatoken", "awkward", "pandas")
MAX_LINES = 600
PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def tracked() -> list[Path]:
    """Files under version control, or to be; without git, those of the source tree."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY, capture_output=True, check=True, text=True,
        ).stdout.split("\0")  # fmt: skip
        found = [REPOSITORY / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        found = list(walk(REPOSITORY))
    return [path for path in found if path.is_file() and not path.is_symlink()]


def walk(folder: Path) -> Iterator[Path]:
    """Files below `folder`, leaving out hidden folders and what building makes."""
    for path in folder.iterdir():
        if path.is_symlink() or path.name in ("build", "dist", "demo", "__pycache__", ".git"):
            continue
        if path.is_dir() and not path.name.startswith(".venv"):
            yield from walk(path)
        elif path.is_file():
            yield path


def modules(*folders: str) -> list[Path]:
    """The Python files of these folders."""
    return sorted(path for folder in folders for path in (REPOSITORY / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    """Return the path of a module below the repository."""
    return path.relative_to(REPOSITORY).as_posix()


def package_of(path: Path) -> str:
    """Return the dotted name of the package that holds the module at `path`."""
    inside = path.relative_to(REPOSITORY).parent.parts
    return ".".join(inside if inside[:1] == ("dataprep",) else ("dataprep", *inside))


def imports(tree: ast.AST, package: str) -> set[str]:
    """Return every name that `tree` imports anywhere, in full: relative ones from `package`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            found.update(f"{base}.{name.name}" for name in node.names)
    return found


def imports_of(path: Path) -> set[str]:
    """Return every name that the module at `path` imports anywhere, in full."""
    return imports(ast.parse(path.read_text()), package_of(path))


def imports_at_run_time(path: Path) -> set[str]:
    """Return the same without what stands under ``if TYPE_CHECKING`` or inside functions."""
    wanted = (ast.Import, ast.ImportFrom)
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, wanted)]
    return imports(ast.Module(list(top), []), package_of(path))


def heavy_after(code: str) -> list[str]:
    """Which heavy libraries are loaded when `code` has run in a fresh process."""
    probe = f"{code}\nimport sys, json\nprint(json.dumps([n for n in {HEAVY} if n in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    heavy: list[str] = json.loads(done.stdout.splitlines()[-1])
    return heavy


def test_declared_packages_are_the_folders_with_code() -> None:
    """A folder that pyproject.toml forgets works from the checkout and is missing in the wheel."""
    marked = {path.parent.relative_to(REPOSITORY) for path in REPOSITORY.glob("*/**/__init__.py")}
    found = {path.as_posix() for path in marked if path.parts[0] in (*FOLDERS, "dataprep")}
    found -= {f"dataprep/{folder}" for folder in FOLDERS}  # the links
    setuptools = PYPROJECT["tool"]["setuptools"]
    assert set(setuptools["package-dir"].values()) == found
    assert set(setuptools["package-dir"]) == set(setuptools["packages"])


@pytest.mark.parametrize("name", FOLDERS)
def test_link_is_relative_and_resolves(name: str) -> None:
    """`dataprep/NAME` leads to the folder of that name, wherever the clone lies."""
    link = REPOSITORY / "dataprep" / name
    assert os.readlink(link) == f"../{name}"
    assert (link / "__init__.py").is_file()


def test_package_data_exists_and_is_declared() -> None:
    """Every file in the packages that is not code is declared, so that the wheel has it."""
    declared: set[Path] = set()
    for package, patterns in PYPROJECT["tool"]["setuptools"]["package-data"].items():
        folder = REPOSITORY / PYPROJECT["tool"]["setuptools"]["package-dir"][package]
        declared.update(path for pattern in patterns for path in folder.glob(pattern))
    present = {
        path for path in tracked()
        if path.relative_to(REPOSITORY).parts[0] in (*FOLDERS, "dataprep") and path.suffix != ".py"
    }  # fmt: skip
    assert declared == present
    assert declared


def test_no_machine_in_tracked_files() -> None:
    """Nothing names a path of the machine it was written on, or the host of a registry."""
    roots = ("home/", "root/", "work/", "Users/", "tmp/v", "opt/")
    hosts = ("py" + "pi.org", "python" + "hosted.org", "local" + "host:")
    machine = re.compile("|".join([*(rf"(?<![\w.~:/\])])/{root}\w" for root in roots), *hosts]))
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()[:100]}"
        for path in tracked() if path.suffix not in (".jsonl", ".bin", ".npy", ".pt", ".zst", ".gz")
        and path.name != "tokenizer.json" and path.stat().st_size < 1 << 20
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if machine.search(line)
    ]  # fmt: skip
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import dataprep",
        "import dataprep; dataprep.open_dataset, dataprep.verify, dataprep.BuildOptions",
        "import dataprep.formats.read.dataset, dataprep.formats.files.index_file",
        "import dataprep.formats.verify.verify",
        "import dataprep.cli.entry",
        "from dataprep.cli.main import run; assert run(['--help']) == 0",
        "from dataprep.cli.main import run; assert run(['build', '--help']) == 0",
        "from dataprep.cli.main import run; assert run(['verify', 'nowhere']) == 7",
        "from dataprep.cli.main import run; assert run(['inspect', 'nowhere']) == 7",
    ],
)
def test_light_imports_stay_light(code: str) -> None:
    """What has to start fast loads none of the heavy libraries."""
    assert heavy_after(code) == []


def test_the_import_probe_can_fail() -> None:
    """The probe sees what is loaded: a probe that always said "none" would prove nothing."""
    assert heavy_after("import tokenizers") == ["tokenizers"]


def test_help_imports_neither_numpy_nor_rich() -> None:
    """`dataprep --help` costs an import of click."""
    code = "from dataprep.cli.main import run; run(['--help'])\nimport sys"
    names = [name for name in ("numpy", "rich", "msgspec") if name in loaded_after(code)]
    assert names == []


def test_text_builds_import_nothing_of_processes_apart() -> None:
    """Only the process that starts a child for foreign files loads what talks to one."""
    loaded = loaded_after("import dataprep.pipeline.execute.processes")
    assert "dataprep.pipeline.read.child_process" in loaded
    assert "multiprocessing" not in loaded


def loaded_after(code: str) -> set[str]:
    """All modules that are loaded when `code` has run in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.splitlines()[-1].split())


OF_ROWS = ("arrays", "collate", "external", "inspect", "mixture", "rows", "stream")
WINDOWS = {"rows.buffer_pool", "rows.segments", "rows.windows"}


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("windows", WINDOWS),
        ("packed", {
            "rows.gather", "rows.packed", "rows.packing", "rows.packing_plan", "rows.plan_cache",
            "rows.segments",
        }),
        ("embeddings", {"arrays.embeddings", "arrays.stored_rows"}),
        ("stream", WINDOWS | {
            "stream.dataset", "stream.deal", "stream.loader", "stream.order", "stream.reader",
            "stream.state",
        }),
    ],
)  # fmt: skip
def test_a_first_batch_imports_the_rows_that_it_serves(kind: str, own: set[str]) -> None:
    """Neither other rows, nor libraries that take longer to import than all of dataprep."""
    code = f"from benchmarks.first_batch import KINDS; next(iter(KINDS[{kind!r}]()))"
    found = loaded_after(code) - loaded_after("import torch")
    runtime = {name.removeprefix("dataprep.runtime.") for name in found}
    rows = {name for name in runtime if name.partition(".")[0] in OF_ROWS and "." in name}
    assert rows - {"arrays.pair_data"} == own  # a type in the signature of `create_loader`
    assert "dataprep.pipeline" not in found
    slow = {
        "ast", "concurrent.futures", "fractions", "importlib.metadata", "numpy.ma",
        "numpy.random", "secrets", "uuid", *HEAVY,
    }  # fmt: skip
    assert sorted(found & slow) == []


def test_formats_needs_numpy_and_msgspec_alone() -> None:
    """What is on disk can be read and verified with two small libraries (others only on demand)."""
    allowed = {*sys.stdlib_module_names, "numpy", "msgspec", "dataprep"}
    found = {
        f"{module_name(path)}: {name}" for path in modules("formats")
        for name in imports_at_run_time(path) if name.partition(".")[0] not in allowed
    }  # fmt: skip
    assert sorted(found) == []


def test_runtime_needs_no_library_of_the_pipeline() -> None:
    """Training needs none of the libraries that building needs, not even inside functions."""
    found = {
        f"{module_name(path)}: {name}" for path in modules("runtime")
        for name in imports_of(path) if name.partition(".")[0] in HEAVY[1:]
    }  # fmt: skip
    assert sorted(found) == []


def test_no_module_is_too_long() -> None:
    """Past this length a module holds more than one idea."""
    found = {
        module_name(path): lines for path in modules(*FOLDERS, "dataprep", "tests")
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
    }  # fmt: skip
    assert found == {}


def test_modules_say_what_is_public() -> None:
    """Every module has an `__all__` (which ruff keeps in order), made of names that it defines."""
    wrong = {
        module_name(path): public for path in modules(*FOLDERS) if path.name != "__init__.py"
        if not (public := public_names(path)) or not public[0] <= public[1]
    }  # fmt: skip
    assert wrong == {}


def public_names(path: Path) -> tuple[set[str], set[str]] | None:
    """Return the names in `__all__` and all names of the module, or None without `__all__`."""
    tree = ast.parse(path.read_text())
    public = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    if len(public) != 1:
        return None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    names |= {name.rpartition(".")[2] for name in imports(tree, package_of(path))}
    return set(public[0]), names


def test_properties_ask_for_their_examples_in_one_place() -> None:
    """`tests.support.examples` has fewer of them in `make test`; `settings` would not."""
    direct = re.compile(r"^from hypothesis import .*\bsettings\b", re.MULTILINE)
    tests = sorted((REPOSITORY / "tests").rglob("*.py"))
    found = [path.name for path in tests if direct.search(path.read_text())]
    assert found == ["support.py"]


def test_lock_file_pins_every_dependency() -> None:
    """What pyproject.toml asks for is pinned exactly, and nothing names an index or a file."""
    lines = (REPOSITORY / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    pinned = {normal(line.partition("==")[0]) for line in pins}
    project = PYPROJECT["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    asked += PYPROJECT["build-system"]["requires"]
    assert {normal(re.split(r"[><=\[;]", name)[0]) for name in asked} <= pinned


def normal(name: str) -> str:
    """The name of a distribution in its canonical spelling."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def test_wheel_holds_the_same_modules_and_data(tmp_path: Path) -> None:
    """A wheel built from a copy of the tree has every module, py.typed, the schema and assets."""
    copy = copy_tree(tmp_path / "source")
    code = f"from setuptools.build_meta import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]) as wheel:
        names = {name for name in wheel.namelist() if name.startswith("dataprep/")}
    code_files = {
        f"dataprep/{path.relative_to(REPOSITORY).as_posix()}" for path in modules(*FOLDERS)
    }
    data = {f"dataprep/{path.name}" for path in (REPOSITORY / "dataprep").glob("*.py")}
    data |= {"dataprep/py.typed"}
    data |= {
        f"dataprep/{path.relative_to(REPOSITORY).as_posix()}" for path in tracked()
        if path.suffix in {".json", ".jinja"} and path.relative_to(REPOSITORY).parts[0] in FOLDERS
    }  # fmt: skip
    assert names == code_files | data


def test_a_clone_called_dataprep_is_not_taken_for_the_package(tmp_path: Path) -> None:
    """Python started beside it finds the package, installed as the Makefile installs it."""
    text = (REPOSITORY / "Makefile").read_text()
    installs = re.findall(r"^.*\s-e \.$", text, re.MULTILINE)
    assert len(installs) == 1
    settings = dict(re.findall(r"--config-settings (\w+)=(\w+)", installs[0]))
    clone, site = tmp_path / "dataprep", tmp_path / "site"
    for folder in (*FOLDERS, "dataprep"):
        shutil.copytree(REPOSITORY / folder, clone / folder, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, clone)
    build = "from setuptools.build_meta import build_editable; import sys; "
    code = f"{build}print(build_editable(sys.argv[1], {settings!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=clone, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    with zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(site)
    code = "import site, sys; site.addsitedir(sys.argv[1]); import dataprep; print(dataprep.verify)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(site)], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "function verify" in done.stdout, done.stderr


def copy_tree(target: Path) -> Path:
    """A copy of the tracked files, links left out: the build must not need them."""
    for path in tracked():
        place = target / path.relative_to(REPOSITORY)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    return target
