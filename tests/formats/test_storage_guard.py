"""Only formats/storage.py changes the disk: the source of all other modules is searched."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support import REPOSITORY

FOLDERS = ("formats", "pipeline", "runtime", "cli", "dataprep")
OF_OS = {
    "chmod", "ftruncate", "link", "makedirs", "mkdir", "pwrite", "remove", "rename", "replace",
    "rmdir", "symlink", "truncate", "unlink", "utime",
}  # fmt: skip
OF_PATHS = {
    "hardlink_to", "mkdir", "rmdir", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
MODULES = {"os": OF_OS, "shutil": {"copy", "copyfile", "copytree", "move", "rmtree"}}


def changes(source: str) -> Iterator[str]:
    """Yield the calls of `source` that create, rename, remove or write files."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(one.name == "tempfile" for one in node.names):
            yield "import tempfile"
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        module = owner.id if isinstance(owner, ast.Name) else ""
        if name == "open" and module != "os":
            mode = node.args[:1]  # of a path
        elif isinstance(node.func, ast.Name) and node.func.id == "open":
            mode = node.args[1:2] if "fileno()" not in ast.unparse(node.args[0]) else []
        else:
            mode = []
        text = mode[0].value if mode and isinstance(mode[0], ast.Constant) else ""
        writes = isinstance(text, str) and bool(set("wxa+") & set(text)) and len(text) < 4
        if name in MODULES.get(module, OF_PATHS) or writes:
            yield ast.unparse(node)


@pytest.mark.parametrize("folder", FOLDERS)
def test_other_modules_leave_the_disk_alone(folder: str) -> None:
    """Files and directories are created, renamed and removed by functions of storage."""
    found = [
        (str(path.relative_to(REPOSITORY)), call)
        for path in sorted((REPOSITORY / folder).glob("**/*.py"))
        if path.resolve() != (REPOSITORY / "formats" / "storage.py").resolve()
        for call in changes(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    ["os.rename(a, b)", "path.mkdir()", "open(path, 'w')", "path.open('xb')", "import tempfile",
     "shutil.rmtree(path)", "Path(a).write_text(b)"],
)  # fmt: skip
def test_a_change_is_seen(source: str) -> None:
    """The search finds what it is for, and no reading."""
    assert len([*changes(source)]) == 1
    assert not [*changes("path.open('rb'); open(path); os.stat(path); archive.open(name, 'r')")]
