"""The rooms keep to the imports that CONTRIBUTING allows them."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = {"vllm_spark", "vllm_spark.errors", "vllm_spark.console", "vllm_spark.proc", "vllm_spark.paths"}
# room -> what it must never import, as prefixes of dotted names
FORBIDDEN = {
    "runtime": ("vllm_spark.distro", "vllm_spark.host", "vllm_spark.cli", "rich", "msgspec", "packaging"),
    "host": ("vllm_spark.distro", "vllm_spark.cli"),
    "distro": ("torch", "vllm", "vllm_spark.runtime", "vllm_spark.host", "vllm_spark.cli"),
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def starts(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


@pytest.mark.parametrize("room", FORBIDDEN)
def test_room_keeps_to_its_imports(room: str) -> None:
    bad = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "vllm_spark" / room).rglob("*.py"))
        for name in imported(path)
        for prefix in FORBIDDEN[room]
        if starts(name, prefix)
    ]
    assert not bad, "\n".join(bad)


def calls(path: Path, *, module: str, name: str) -> bool:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Call):
            func = node.func
            if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
                if (func.value.id, func.attr) == (module, name) or (module == func.value.id and name == "*"):
                    return True
            elif isinstance(func, ast.Name) and not module and func.id == name:
                return True
    return False


@pytest.mark.parametrize(
    ("module", "name", "only"),
    [("", "print", {"console.py", "main.py"}), ("subprocess", "*", {"proc.py"})],
)
def test_one_place_for_each_thing(module: str, name: str, only: set[str]) -> None:
    bad = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "vllm_spark").rglob("*.py"))
        if path.name not in only and calls(path, module=module, name=name)
    ]
    assert not bad


def test_build_holds_data_only() -> None:
    assert not list((ROOT / "build").rglob("*.py"))


def test_extra_and_group_list_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["optional-dependencies"]["distro"] == project["dependency-groups"]["distro"]
