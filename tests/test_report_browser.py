"""The page of a report as a browser has it: its keys, its tips, light, dark and print."""

import dataclasses

import pytest

from specdec_jax import findings
from specdec_jax.findings import Table
from specdec_jax.report import report
from tests.chromium import Chromium, find
from tests.report_samples import ALL, NASTY, WALK

pytest.importorskip("matplotlib", reason="needs specdec_jax[report]")

SHOWN = """[...document.querySelectorAll("#figure1 .round")]
  .map((round, i) => round.checkVisibility() ? i + 1 : 0).filter(Boolean)"""
STATUS = 'document.querySelector("#figure1 [role=status]").textContent'
TIPS = """[...document.querySelectorAll("#figure1 .tip")]
  .filter((tip) => tip.checkVisibility()).map((tip) => tip.textContent)"""
SOFAR = """[...document.querySelectorAll("#figure1 .sofar")]
  .find((line) => line.checkVisibility()).textContent"""
FOCUS = "document.activeElement.className || document.activeElement.tagName"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("run")
    for finding in ALL:
        findings.save(run_dir, finding)
    return report(run_dir)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find()
    if program is None:
        pytest.skip("Chromium is not installed: the page is not tried in a browser.")
    chromium = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    yield browser
    wrong = [
        e for e in browser.events if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
    ]
    assert not wrong


def test_arrows_home_and_end_step_through_the_rounds(opened):
    assert opened.ask(SHOWN) == [1]
    opened.ask('document.querySelector("#figure1").scrollIntoView({behavior: "instant"})')
    opened.press("ArrowRight")
    assert (opened.ask(SHOWN), opened.ask(STATUS)) == ([2], "Round 2 of 4")
    opened.press("ArrowLeft", "ArrowLeft")
    assert opened.ask(SHOWN) == [1]
    opened.press("End")  # moves the page: nothing of the walk has the focus
    assert opened.ask(SHOWN) == [1]
    opened.ask('document.querySelector("#figure1 .viewer").focus()')
    opened.press("End")
    assert opened.ask(SHOWN) == [4]
    opened.press("ArrowRight")
    assert (opened.ask(SHOWN), opened.ask(STATUS)) == ([4], "Round 4 of 4")
    opened.press("Home")
    assert opened.ask(SHOWN) == [1]


def test_buttons_step_too(opened):
    opened.ask('document.querySelectorAll("#figure1 .controls button")[1].click()')
    assert opened.ask(SHOWN) == [2]
    opened.ask('document.querySelectorAll("#figure1 .strip button")[3].click()')
    assert opened.ask(SHOWN) == [4]
    current = 'document.querySelector("#figure1 [aria-current=step]").getAttribute("aria-label")'
    assert opened.ask(current) == "Round 4 of 4: 1 of 2 guesses stands; the text ends there"


def test_the_text_grows_with_the_rounds(opened):
    opened.ask('document.querySelector("#figure1 .viewer").focus()')
    texts = []
    for _ in range(4):
        texts.append(opened.ask(SOFAR).removeprefix("Text so far: "))
        opened.press("ArrowRight")
    nasty = NASTY.replace("▁", " ")
    assert texts == [
        "Thely", f"Thely fox{nasty}", f"Thely fox{nasty} jumps", f"Thely fox{nasty} jumps</s>",
    ]  # fmt: skip


def test_tokens_are_reached_by_tab_and_show_their_chances(opened):
    [default] = opened.ask(TIPS)
    assert "ly corrected: p = 0.750" in default
    opened.ask('document.querySelector("#figure1 .viewer").focus()')
    opened.press("Tab", "Tab", "Tab")  # the two buttons, and the current one of all rounds
    assert opened.ask("document.activeElement.getAttribute('aria-current')") == "step"
    opened.press("Tab")
    [tip] = opened.ask(TIPS)
    assert "␣The accepted: p = 0.500, q = 0.250" in tip
    opened.press("ArrowRight")  # the focus goes along
    [tip] = opened.ask(TIPS)
    assert (opened.ask(SHOWN), opened.ask(FOCUS)) == ([2], "token")
    assert "␣fox accepted: p = 1.000" in tip
    opened.press("Escape")
    assert opened.ask(FOCUS) == "BODY"


def test_it_asks_for_nothing_else(opened):
    assert opened.ask('performance.getEntriesByType("resource").length') == 0
    assert opened.ask('document.querySelectorAll("script").length') == 1


def test_it_is_light_dark_and_on_paper(opened):
    def colours(scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        opened.call("Emulation.setEmulatedMedia", media="", features=[feature])
        page, line = "document.body", 'document.querySelector("#figure2 svg [style*=series-1]")'
        return [
            opened.ask(f"getComputedStyle({page}).backgroundColor"),
            opened.ask(f"getComputedStyle({page}).color"),
            opened.ask(f"getComputedStyle({line}).fill"),
        ]

    light, dark = colours("light"), colours("dark")
    assert light[0] == "rgb(255, 255, 255)"
    assert all(a != b for a, b in zip(light, dark, strict=True))
    opened.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert opened.ask(SHOWN) == [1, 2, 3, 4]
    assert opened.ask('document.querySelector("#figure1 .controls").checkVisibility()') is False
    opened.call("Emulation.setEmulatedMedia", media="", features=[])


def test_without_scripts_all_rounds_are_there(browser, page):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(page)
    assert browser.ask(SHOWN) == [1, 2, 3, 4]
    assert browser.ask('document.querySelector("#figure1 .controls").checkVisibility()') is False
    browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_long_decode_keeps_its_round_in_sight(browser, tmp_path):
    findings.save(tmp_path, dataclasses.replace(WALK, rounds=WALK.rounds * 100))
    findings.save(tmp_path, dataclasses.replace(WALK, name="empty", rounds=()))
    browser.open(report(tmp_path))
    browser.ask('document.querySelector("#figure1 .viewer").focus()')
    browser.press("End", "ArrowLeft")
    assert (browser.ask(SHOWN), browser.ask(STATUS)) == ([399], "Round 399 of 400")
    place = """(() => {
      const list = document.querySelector("#figure1 .strip").getBoundingClientRect();
      const at = document.querySelector("#figure1 [aria-current]").getBoundingClientRect();
      return at.top >= list.top && at.bottom <= list.bottom && list.height < 200;
    })()"""
    assert browser.ask(place)


def test_no_part_is_wider_than_the_page(browser, tmp_path):
    opened, columns = browser, tuple(f"a column {i}" for i in range(30))
    wide = Table("wide", "", columns, ("",) * 30, (columns,))
    for finding in (*ALL, wide):
        findings.save(tmp_path, finding)
    opened.open(report(tmp_path))
    for width in (360, 1200, 2000):
        opened.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        assert opened.ask("document.documentElement.scrollWidth") <= width
    opened.call("Emulation.clearDeviceMetricsOverride")
