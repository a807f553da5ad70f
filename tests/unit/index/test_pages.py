"""Facts go through the pages unharmed: pypi-simple, an independent reader, finds the same in both forms."""

import json
import string

from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name
from packaging.version import Version
from pypi_simple import DistributionPackage, ProjectPage

from vllm_spark.distro.index import simple_html, simple_json
from vllm_spark.distro.index.facts import FileFact, ProjectFact
from vllm_spark.distro.index.state import State, checked, dump, parse

BASE = "https://example.org/cu130/simple/vllm/"
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
# Reasons and specifiers are where markup hides.
texts = st.text(string.printable + "é€<>&\"'", min_size=1).map(str.strip).filter(bool)
names = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+){0,2}", fullmatch=True)
versions = st.from_regex(r"[0-9]{1,2}(\.[0-9]{1,2}){0,3}(rc[0-9]|\.post[0-9])?(\+[a-z]{1,5}\.[0-9])?", fullmatch=True)
urls = st.sampled_from(["https://example.org/v1/a%2Bb.whl", "http://127.0.0.1:1/x?a=1&b=2"])


@st.composite
def file_facts(draw: st.DrawFn, project: str) -> FileFact:
    version = str(Version(draw(versions)))
    return FileFact(
        project=project,
        version=version,
        filename=f"{project.replace('-', '_')}-{version}-py3-none-any.whl",
        sha256=draw(digests),
        size=draw(st.integers(1, 2**50)),
        metadata_sha256=draw(digests),
        requires_python=draw(st.sampled_from([None, ">=3.11", "<3.15,>=3.11", "!=3.12.*,~=3.11"])),
        exact=draw(st.sampled_from([(), (("vllm", "0.33.0+spark.1"),)])),
        uploaded=draw(st.sampled_from([None, "2026-01-31T12:00:00.000000Z"])),
        yanked=draw(st.none() | texts),
        url=draw(st.none() | urls),
        provenance=draw(st.none() | urls),
    )


@st.composite
def states(draw: st.DrawFn) -> State:
    project = canonicalize_name(draw(names))
    files = draw(st.lists(file_facts(project), max_size=6, unique_by=lambda fact: fact.filename))
    known = ProjectFact(
        project,
        tracks=tuple(draw(st.lists(urls, max_size=2, unique=True))),
        status=draw(st.sampled_from(["active", "archived", "deprecated"])),
        status_reason=draw(st.none() | texts),
    )
    return State(projects=(known,), files=tuple(files)).ordered()


def seen(package: DistributionPackage) -> tuple[object, ...]:
    return (
        package.filename,
        package.url,
        package.digests,
        package.requires_python,
        package.metadata_digests,
        package.yanked_reason if package.is_yanked else None,
        package.provenance_url,
    )


def expected(fact: FileFact) -> tuple[object, ...]:
    url = fact.url or f"https://example.org/cu130/files/{fact.filename.replace('+', '%2B').replace('!', '%21')}"
    digest = {"sha256": fact.metadata_sha256}
    hashes = {"sha256": fact.sha256}
    return fact.filename, url, hashes, fact.requires_python, digest, fact.yanked, fact.provenance


@given(states())
def test_html_says_what_the_facts_say(state: State) -> None:
    project = state.projects[0]
    page = ProjectPage.from_html(project.name, simple_html.project_page(project, state.files), base_url=BASE)
    assert page.repository_version == "1.4"
    assert [seen(package) for package in page.packages] == [expected(fact) for fact in state.files]
    assert page.tracks == list(project.tracks)
    if project.status != "active":
        assert page.status is not None
        assert (page.status.value, page.status_reason) == (project.status, project.status_reason)


@given(states())
def test_json_says_what_the_facts_say(state: State) -> None:
    project = state.projects[0]
    data = json.loads(simple_json.project_page(project, state.files))
    page = ProjectPage.from_json_data(data, base_url=BASE)
    assert [seen(package) for package in page.packages] == [expected(fact) for fact in state.files]
    assert [package.size for package in page.packages] == [fact.size for fact in state.files]
    times = [f"{p.upload_time:%Y-%m-%dT%H:%M:%S.%f}Z" if p.upload_time else None for p in page.packages]
    assert times == [fact.uploaded for fact in state.files]
    assert page.versions is not None
    assert len(page.versions) == len({fact.version for fact in state.files})
    assert set(page.versions) == {fact.version for fact in state.files}
    assert page.tracks == list(project.tracks)
    assert page.status is not None
    assert (page.status.value, page.status_reason) == (project.status, project.status_reason)


@given(states())
def test_state_survives_its_file(state: State) -> None:
    assert parse(dump(state), where="x") == state
    assert checked(State(state.site, state.projects, tuple(reversed(state.files)))) == state


def test_versions_sort_as_versions() -> None:
    facts = [
        FileFact("vllm", v, f"vllm-{v}-py3-none-any.whl", "a" * 64, 1, "b" * 64)
        for v in ("0.9.0", "0.10.0", "0.33.0+spark.10", "0.33.0+spark.9", "0.33.0", "0.33.0rc1")
    ]
    order = [fact.version for fact in State(files=tuple(facts)).ordered().files]
    assert order == ["0.9.0", "0.10.0", "0.33.0rc1", "0.33.0", "0.33.0+spark.9", "0.33.0+spark.10"]
