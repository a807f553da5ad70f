"""The landing page in a real Chromium: on a phone, on a desk, with a keyboard, without a clipboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.index.browser import open_browser
from tests.integration.index.server import Server, serve
from tests.unit.index import wheels
from vllm_spark.distro.index import lines, releases, tree
from vllm_spark.distro.index.facts import PatchNote, ReleaseFact, Verdict
from vllm_spark.distro.index.state import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = "kernel/a-patch-whose-name-is-longer-than-any-phone-is-wide-and-cannot-be-broken-at-a-blank"


def described(count: int) -> ReleaseFact:
    patches = (
        PatchNote(
            "model/expert-keys", "Load every published layout of the expert weights", "https://example.org/pull/1"
        ),
        PatchNote(LONG, "Compile for targets that lack the convert", applied=False, remark="the audit shows no need"),
    )
    verdicts = (
        Verdict("vllm/_C_stable_libtorch.abi3.so", "native", "sm_120 cubin; 80 90 100 blanked"),
        Verdict("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "absent", "sm_90a only", "not used on this device"),
        Verdict("vllm/_moe_C_stable_libtorch.abi3.so", "jit", "compute_120 PTX"),
    )
    return ReleaseFact(
        "vllm-spark",
        f"0.33.0.{count}",
        vllm="0.33.0",
        cuda="13.0",
        torch="2.14.0",
        python=">=3.11,<3.15",
        date=f"2026-01-0{count}",
        patches=patches,
        verdicts=verdicts,
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    out = tmp_path / "index"
    for count in (1, 2, 3, 4):
        tree.build(out, wheels.release(tmp_path / "in", count), releases=[described(count)])
    releases.yank(out, "0.33.0.3", "wedges the host when two requests end at once")
    with serve(out) as running:
        yield running


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)], ids=["phone", "desk"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_the_window(server: Server, tmp_path: Path, width: int, height: int, dark: bool) -> None:
    with open_browser(width, height, dark=dark) as browser:
        browser.go(f"{server.url}/index.html")
        browser.screenshot(tmp_path / "page.png")
        assert browser.js("return document.documentElement.scrollWidth") <= width
        narrow = "return [...document.querySelectorAll('caption, p:not(.hidden)')].map(e => e.offsetWidth)"
        assert all(found > width / 2 for found in browser.js(narrow))
        small = (
            "return [...document.querySelectorAll('p, td, th, pre')].filter("
            "e => e.offsetParent && parseFloat(getComputedStyle(e).fontSize) < 14 && !e.closest('.hidden')).length"
        )
        assert browser.js(small) == 0
        buttons = browser.js(
            "return [...document.querySelectorAll('button')].map(b => {"
            "const r = b.getBoundingClientRect(); return [r.width, r.height, r.right]})"
        )
        assert len(buttons) == 2
        assert all(w >= 44 and h >= 44 and right <= width for w, h, right in buttons)
        assert browser.js("return matchMedia('(prefers-color-scheme: dark)').matches") is dark
        assert browser.console() == []
    assert {path for path, _status, _type in server.asked} <= {"/index.html", "/favicon.ico"}


def test_buttons_copy_exactly_the_lines(server: Server, tmp_path: Path) -> None:
    files = lines.members(load(tmp_path / "index"), "0.33.0.4")
    wanted = lines.install(server.url, files)
    with open_browser(390, 844) as browser:
        browser.go(f"{server.url}/")
        browser.allow("clipboard-read", "clipboard-write")
        for button, text in zip(browser.find("button"), (wanted.uv, wanted.pip), strict=True):
            browser.click(button)
            assert browser.js("return navigator.clipboard.readText()") == text
            assert browser.js("return document.getElementById('said').textContent") == "Copied"
        assert browser.console() == []


def test_without_a_clipboard_the_lines_are_selected(server: Server) -> None:
    with open_browser(390, 844) as browser:
        browser.go(f"{server.url}/")
        browser.js("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        browser.click(browser.find("button")[1])
        selected = browser.js("return getSelection().toString().trim()")
        assert selected.startswith("python -m pip install --index-url http://127.0.0.1:")
        assert browser.js("return document.getElementById('said').textContent") == "Selected: press Ctrl+C"


def test_a_keyboard_reaches_everything_and_sees_where_it_is(server: Server) -> None:
    focused = (
        "const e = document.activeElement, s = getComputedStyle(e);"
        "return [e.getAttribute('href') || e.getAttribute('aria-label') || e.textContent, s.outlineStyle]"
    )
    with open_browser(1280, 900) as browser:
        browser.go(f"{server.url}/")
        seen = []
        for _ in range(5):
            browser.press("\ue004")
            seen.append(browser.js(focused))
        names = ["#main", "Copy the lines for uv", "Lines for uv", "Copy the lines for pip", "Lines for pip"]
        assert [name for name, _outline in seen] == names
        assert all(outline == "solid" for _name, outline in seen)


def test_its_structure_is_what_screen_readers_need(server: Server) -> None:
    with open_browser(1280, 900) as browser:
        browser.go(f"{server.url}/")
        heads = browser.js("return [...document.querySelectorAll('h1, h2')].map(h => h.tagName + ' ' + h.textContent)")
        assert heads == [
            "H1 vllm-spark",
            "H2 Install 0.33.0.4",
            "H2 What a GB10 (compute capability 12.1) can load",
            "H2 Patches",
            "H2 All releases",
        ]
        assert browser.js("return document.documentElement.lang") == "en"
        assert browser.js("return document.querySelectorAll('main').length") == 1
        unnamed = (
            "return [...document.querySelectorAll('table')].filter(t => !t.caption || !t.querySelector('th[scope]'))"
        )
        assert browser.js(unnamed) == []
        empty = "return [...document.querySelectorAll('a, button')].filter(e => !e.textContent.trim()).length"
        assert browser.js(empty) == 0
        assert "yanked: wedges the host" in browser.js("return document.querySelector('#versions + div').innerText")


CONTRAST = """
const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const over = (top, below) => {
  canvas.fillStyle = below; canvas.fillRect(0, 0, 1, 1); canvas.fillStyle = top; canvas.fillRect(0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data;
};
const page = matchMedia('(prefers-color-scheme: dark)').matches ? '#121212' : '#fff';
return [...document.querySelectorAll('a, p, td, th, span, pre, button, h1, h2, code, caption')].map(e => {
  const back = over(getComputedStyle(e).backgroundColor, page);
  const text = over(getComputedStyle(e).color, `rgb(${back[0]},${back[1]},${back[2]})`);
  const [a, b] = [light(text), light(back)].sort((x, y) => y - x);
  return [(a + 0.05) / (b + 0.05), e.tagName + ' ' + e.textContent.slice(0, 30)];
}).filter(([ratio]) => ratio < 4.5)
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(server: Server, dark: bool) -> None:
    """WCAG 2.2 success criterion 1.4.3: a contrast of at least 4.5 to 1."""
    with open_browser(1280, 900, dark=dark) as browser:
        browser.go(f"{server.url}/")
        assert browser.js(CONTRAST) == []
