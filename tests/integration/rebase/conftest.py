"""A small upstream whose next release differs from the last in one chosen way, and a project that follows it."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.package_index import PackageIndex
from tests.fakes.upstream_repo import Upstream, lines, sdist
from vllm_spark.distro.rebase.history import History, open_clone
from vllm_spark.distro.rebase.ladder import Ladder
from vllm_spark.distro.rebase.merge import Bench
from vllm_spark.distro.rebase.origin import Release
from vllm_spark.distro.rebase.state import Decision
from vllm_spark.distro.rebase.verdict import Result
from vllm_spark.distro.series import store
from vllm_spark.distro.upstream.git import Repository

MODEL = "vllm/model.py"
TEST = "tests/test_model.py"
BASE: dict[str, bytes] = {
    MODEL: lines(1, 60),
    "vllm/loader.py": lines(101, 160),
    "vllm/layers/linear.py": lines(201, 240),
    "csrc/old/kernel.cuh": lines(301, 380),
    TEST: lines(401, 440),
    "vllm/crlf.py": lines(501, 540).replace(b"\n", b"\r\n"),
    "vllm/latin.py": b"# \xe9t\xe9\n" + lines(601, 640),
    "vllm/blob.bin": bytes(range(256)) * 4,
    "vllm/tool.sh": b"#!/bin/sh\n" + lines(701, 720),
    "vllm/__init__.py": b"",
    "vllm/envs.py": b'VLLM_MAIN_CUDA_VERSION: str = "13.0"\n',
    "pyproject.toml": b'[project]\nname = "vllm"\nrequires-python = ">=3.11,<3.15"\n',
    "requirements/cuda.txt": b"torch==2.14.0\ntorchaudio==2.11.0\nflashinfer-python==0.7.2\n",
}
GUARD = """\
import os, pathlib
TREE = pathlib.Path(os.environ["VLLM_SPARK_TREE"])
def test_model(): assert "line" not in (TREE / "vllm/model.py").read_text()
def test_seven(): assert "seven" in (TREE / "vllm/model.py").read_text()
def test_ten(): assert "ten" in (TREE / "vllm/loader.py").read_text()
def test_linear(): assert "LINEAR" in (TREE / "vllm/layers/linear.py").read_text()
"""


class Bed:
    """Release 0.33.0, patches made on it, and whatever 0.34.0 is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.upstream = Upstream(root)
        self.upstream.release("0.33.0", BASE)
        self.folder = root / "patches"
        self.patches: dict[str, bytes] = {}

    def patch(self, text: str, edits: dict[str, bytes | None], *, executable: tuple[str, ...] = ()) -> bytes:
        """Add a patch on top of those that are there."""
        after = tuple(self.patches.values())
        data = self.upstream.patch(text, edits, after=after, executable=executable)
        name = next(line for line in text.splitlines() if line.startswith("Spark-Patch: ")).removeprefix(
            "Spark-Patch: "
        )
        self.patches[f"{name}.patch"] = data
        return data

    def put(self) -> store.Folder:
        """Write the series."""
        for name, data in self.patches.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (self.folder / "series").write_text("".join(f"{name}\n" for name in self.patches))
        return store.survey(self.folder)

    def next(self, changes: dict[str, bytes | None], *, version: str = "0.34.0") -> None:
        """Publish the next release: the last one with changes; None deletes."""
        files = {name: data for name, data in {**BASE, **changes}.items() if data is not None}
        self.upstream.release(version, files)

    def ladder(
        self, *, to: str = "0.34.0", clone: Path | None = None, decisions: dict[str, Decision] | None = None
    ) -> Ladder:
        """Everything set up for the verdicts."""
        path = self.root / "bench.git"
        Repository.create(path, borrow=self.upstream.mirror.path)
        commits = [self.upstream.mirror.repository.resolve(f"refs/tags/v{version}") for version in ("0.33.0", to)]
        old, new = (Release(v, str(commit)) for v, commit in zip(("0.33.0", to), commits, strict=True))
        history = History(open_clone(clone), "v0.33.0", f"v{to}") if clone else None
        return Ladder(Bench(path), self.put(), old, new, history, decisions or {})

    def verdicts(self, *, to: str = "0.34.0", clone: Path | None = None) -> list[Result]:
        """The verdict on each patch."""
        return self.ladder(to=to, clone=clone).climb()

    def one(self, *, clone: Path | None = None) -> Result:
        """The verdict on the only patch."""
        (result,) = self.verdicts(clone=clone)
        return result


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


class Project:
    """A git clone of a project like ours, whose package index and cache are its own."""

    def __init__(self, bed: Bed, index: PackageIndex) -> None:
        self.bed = bed
        self.index = index
        self.root = bed.root / "project"
        bed.folder = self.root / "patches"
        self.out = self.root / "out" / "rebase"
        self.tree = self.out / "tree"

    def git(self, *words: str) -> str:
        return self.bed.upstream.git(self.root, *words).text.strip()

    def commit(self) -> None:
        """Write the series and everything around it, and commit it."""
        base = self.bed.root / "vllm-0.33.0.tar.gz"
        digest, size = hashlib.sha256(base.read_bytes()).hexdigest(), base.stat().st_size
        wheel = "vllm-0.33.0-cp38-abi3-manylinux_2_28_aarch64.whl"
        texts = {
            "patches/upstream.toml": (
                '# The base.\n[base]\nproject = "vllm"\nversion = "0.33.0"\n# Counts.\nspark = 3\n\n'
                '[requires]\ntorch = "2.14.0"  # exactly\ncuda = "13.0"\npython = ">=3.11,<3.15"\n'
                'flashinfer = "0.7.2"\n\n# The source.\n[[files]]\nrole = "sdist"\n'
                f'name = "{base.name}"\nsha256 = "{digest}"\nsize = {size}\n\n'
                f'[[files]]\nrole = "wheel"\nmachine = "aarch64"\nname = "{wheel}"\nsha256 = "{"a" * 64}"\nsize = 9\n'
            ),
            "patches/ledger.toml": "# Dropped.\n\n[[budget]]\ndate = 2026-11-01\npatches = 300\n"
            'lines = 9000\nwhy = "test"\n',
            "guards/guard_model.py": GUARD,
            "pyproject.toml": '[project]\nname = "vllm-spark"\nversion = "0.33.0.3"\n'
            'dependencies = [\n  # ours\n  "vllm==0.33.0+spark.3",\n  "x",\n]\n',
            ".gitignore": "/out/\n__pycache__/\n",
        }
        for name, text in texts.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.bed.put()
        if not (self.root / ".git").exists():
            self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "series")

    def next(self, changes: dict[str, bytes | None], *, version: str = "0.34.0") -> Path:
        """Publish a release on the index alone."""
        files = {name: data for name, data in {**BASE, **changes}.items() if data is not None}
        path = sdist(self.bed.root, "vllm", version, files)
        self.index.files[path.name] = path.read_bytes()
        self.index.files[f"vllm-{version}-cp38-abi3-manylinux_2_28_aarch64.whl"] = b"wheel"
        return path

    def snapshot(self) -> dict[str, bytes | str]:
        """All that a failed or undone rebase must leave as it was."""
        files = [
            path for path in self.root.rglob("*") if path.is_file() and "out" not in path.relative_to(self.root).parts
        ]
        seen = {str(path): path.read_bytes() for path in files if "objects" not in path.parts}
        return {**seen, "status": self.git("status", "--porcelain"), "refs": self.git("for-each-ref")}


@pytest.fixture
def project(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project without patches; its test adds some and calls `commit`."""
    with PackageIndex("vllm", {}) as index:
        made = Project(bed, index)
        downloads = bed.root / "cache" / "downloads"
        downloads.mkdir(parents=True)
        first = bed.root / "vllm-0.33.0.tar.gz"
        (downloads / first.name).write_bytes(first.read_bytes())
        for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "GITHUB_ACTIONS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("VLLM_SPARK_INDEX_URL", index.url)
        monkeypatch.setenv("VLLM_SPARK_CACHE", str(bed.root / "cache"))
        monkeypatch.setenv("VLLM_SPARK_ROOT", str(made.root))
        yield made
