"""The page for people, as text: what it says, and that nothing given to it can become markup or script."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec

from tests.unit.index import wheels
from vllm_spark.distro.index import landing, releases, tree
from vllm_spark.distro.index.facts import PatchNote, ReleaseFact, Verdict
from vllm_spark.distro.index.state import State, load

EVIL = "<script>alert(1)</script>\"'&"


class Reader(HTMLParser):
    """Collects text, tags and attribute values; fails on tags that do not nest."""

    VOID = ("meta", "br")

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.feed(page.decode())
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text[self.open[-1] if self.open else ""] = self.text.get(self.open[-1] if self.open else "", "") + data


def state(tmp_path: Path) -> State:
    tree.build(tmp_path / "index", wheels.release(tmp_path / "in", 1))
    return load(tmp_path / "index")


def release(text: str) -> ReleaseFact:
    return ReleaseFact(
        "vllm-spark",
        "0.33.0.1",
        vllm=text,
        cuda=text,
        torch=text,
        python=text,
        device=text,
        patches=(PatchNote(text, text, upstream="https://example.org/?a=1&b=2", applied=False, remark=text),),
        verdicts=(Verdict(text, "native", text, remark=text),),
    )


def test_nothing_given_becomes_markup(tmp_path: Path) -> None:
    good = Reader(landing.page(msgspec.structs.replace(state(tmp_path), releases=(release("plain"),))))
    evil = Reader(landing.page(msgspec.structs.replace(state(tmp_path), releases=(release(EVIL),))))
    shape = [[(tag, sorted(attrs)) for tag, attrs in page.tags] for page in (good, evil)]
    assert shape[0] == shape[1]
    assert EVIL in evil.text["td"]


def test_policy_allows_exactly_the_blocks_inside(tmp_path: Path) -> None:
    page = landing.page(state(tmp_path)).decode()
    for tag in ("style", "script"):
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks]
        assert re.findall(rf"{tag}-src '(.*?)'", page) == [f"sha256-{digest}" for digest in digests]
    assert "default-src 'none'" in page
    assert not re.search(r"\son[a-z]+=|style=|src=", page)


def test_without_a_release_it_says_so() -> None:
    assert b"No release can be installed" in landing.page(State())


def test_a_yanked_newest_release_is_not_offered(tmp_path: Path) -> None:
    out = tmp_path / "index"
    for count in (1, 2):
        tree.build(out, wheels.release(tmp_path / "in", count), base_url="https://example.org/x")
    releases.yank(out, "0.33.0.2", "wedges <the> host")
    page = (out / "index.html").read_text()
    assert "Install 0.33.0.1" in page
    assert "vllm-spark==0.33.0.2" not in page
    assert "yanked: wedges &lt;the&gt; host" in page
    assert page.index(">0.33.0.2<") < page.index(">0.33.0.1<")


def test_links_to_files_hosted_elsewhere(tmp_path: Path) -> None:
    tree.build(tmp_path / "index", wheels.release(tmp_path / "in", 1), files_url="https://example.org/v1")
    links = [attrs["href"] for tag, attrs in Reader((tmp_path / "index/index.html").read_bytes()).tags if tag == "a"]
    assert "https://example.org/v1/vllm-0.33.0%2Bspark.1-cp38-abi3-manylinux_2_28_aarch64.whl" in links
