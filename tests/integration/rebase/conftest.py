"""A small upstream whose next release differs from the last in one chosen way."""

from pathlib import Path

import pytest

from tests.fakes.upstream_repo import Upstream, lines
from vllm_spark.distro.rebase.history import History, open_clone
from vllm_spark.distro.rebase.ladder import Ladder, Release
from vllm_spark.distro.rebase.merge import Bench
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
    "vllm/latin.py": b"# caf\xe9\n" + lines(601, 640),
    "vllm/blob.bin": bytes(range(256)) * 4,
    "vllm/tool.sh": b"#!/bin/sh\n" + lines(701, 720),
}


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
