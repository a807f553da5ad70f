"""A small upstream with two releases, and a checkout whose series is made for it."""

import hashlib
from pathlib import Path

import pytest

from tests.fakes.upstream_repo import Upstream, lines

DATA = Path(__file__).parents[2] / "data" / "series"


def base_files() -> dict[str, bytes]:
    """The release that the rule fixtures are made for."""
    root = DATA / "upstream"
    return {path.relative_to(root).as_posix().removesuffix(".txt"): path.read_bytes() for path in root.rglob("*.txt")}


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """Release 0.33.0 as the fixtures know it, and 0.34.0 with the lines of one file moved."""
    repo = Upstream(tmp_path)
    repo.release("0.33.0", base_files())
    repo.release("0.34.0", {**base_files(), "vllm/model.py": b"new first line\n" + lines(1, 40, l22="twenty-two")})
    return repo


class Checkout:
    """A checkout with `patches/` and `guards/`, its cache holding the small release in place of the real one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.patches = root / "patches"
        self.patches.mkdir(parents=True)
        self.put({})
        (self.patches / "ledger.toml").write_bytes((DATA / "rules/P001/pass/ledger.toml").read_bytes())

    def put(self, files: dict[str, bytes], series: list[str] | None = None) -> None:
        """Write patch files and the `series` that lists them."""
        for name, data in files.items():
            path = self.patches / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        listed = list(files) if series is None else series
        (self.patches / "series").write_text("".join(f"{name}\n" for name in listed))

    def pin(self, sdist: Path) -> None:
        """Pin an sdist as the base."""
        digest, size = hashlib.sha256(sdist.read_bytes()).hexdigest(), sdist.stat().st_size
        (self.patches / "upstream.toml").write_text(
            '[base]\nproject = "vllm"\nversion = "0.33.0"\nspark = 1\n'
            '[requires]\ntorch = "2.14.0"\ncuda = "13.0"\npython = ">=3.11"\nflashinfer = "1"\n'
            f'[[files]]\nrole = "sdist"\nname = "{sdist.name}"\nsha256 = "{digest}"\nsize = {size}\n'
        )


@pytest.fixture
def checkout(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """The checkout that the command line sees."""
    made = Checkout(tmp_path / "checkout")
    sdist = tmp_path / "vllm-0.33.0.tar.gz"
    made.pin(sdist)
    downloads = tmp_path / "cache" / "downloads"
    downloads.mkdir(parents=True)
    (downloads / sdist.name).write_bytes(sdist.read_bytes())
    monkeypatch.setenv("VLLM_SPARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VLLM_SPARK_ROOT", str(made.root))
    return made
