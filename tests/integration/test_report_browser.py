"""The report page in a real browser: its script runs, its controls work, no text becomes markup."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium_pipe
import pytest

from scalerl.experiments.report import write_report

EXECUTABLE = chromium_pipe.find()
pytestmark = pytest.mark.skipif(
    EXECUTABLE is None, reason="no Chromium is installed (apt-get install chromium)"
)
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><script>owned()</script>"


def make_run(path: Path, ceiling: float, lr: float) -> Path:
    """A run folder with a planted curve and only the fields that the page draws."""
    (path / "completions").mkdir(parents=True)
    (path / "config.toml").write_text(f"steps = 60\n\n[optimizer]\nlr = {lr}\n")
    steps = [step_row(s) for s in range(1, 61)]
    curve = [curve_row(s, ceiling) for s in range(0, 61, 4)]
    for name, rows in (("steps", steps), ("curve", curve)):
        write_rows(path / f"{name}.jsonl", rows)
    for row in curve:
        texts = [text_row(row["step"], j) for j in range(8)]
        write_rows(path / "completions" / f"step-{row['step']:06d}.jsonl", texts)
    return path


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps({"attempt": 0, **row}) + "\n" for row in rows))


def spent(step: int) -> dict[str, Any]:
    hours = {f"{s}device_hours": 0.1 * step for s in ("", "generator_", "trainer_")}
    tokens = {"tokens_generated": 1000 * step, "tokens_trained": 900 * step, "flops": 1e9 * step}
    return {"step": step, **hours, **tokens, "generator_idle_share": 0.2, "trainer_idle_share": 0.1}


def curve_row(step: int, ceiling: float) -> dict[str, Any]:
    reached = 1 / (1 + (15 / step) ** 2) if step else 0.0
    rate = 0.3 + (ceiling - 0.3) * reached + 0.004 * math.sin(2.4 * step)
    more = {"pass_rate_se": 0.005, "pass_at_k": {"1": rate, "8": 0.95}, "n_prompts": 8}
    return {**spent(step), "pass_rate": rate, "n_samples": 8, "truncation_rate": 0.0, **more}


def step_row(step: int) -> dict[str, Any]:
    rates = {"pass_rate": 0.5, "entropy": 0.3, "length_mean": 20.0 + step % 3, "length_max": 40}
    ledger = {"generated": 1000 * step, "trained": 900 * step, "filtered": 100 * step}
    groups = {"groups": 8, "groups_trained": 7, "staleness_mean": 1.0, "staleness_max": 2}
    return {**spent(step), **rates, **groups, "ledger": ledger}


def text_row(step: int, j: int) -> dict[str, Any]:
    outcome = "correct" if 8 * j < step else "wrong"
    said = {"prompt": f"{HOSTILE}{j}", "answer": "1", "completion": HOSTILE, "outcome": outcome}
    return {"step": step, **said, "truncated": j == 7, "interrupted": False, "tokens": 5}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    one = make_run(folder / "study" / "one", 0.8, 0.001)
    make_run(folder / "study" / "two", 0.7, 0.002)
    for name in ("a/seed0", "a/seed1", "b/seed0"):
        make_run(folder / "seeds" / name, 0.8, 0.001)
    begun = folder / "begun"
    begun.mkdir()
    write_rows(begun / "curve.jsonl", [curve_row(0, 0.8)])
    sources = {"one": one, "begun": begun}
    sources |= {name: folder / name for name in ("study", "seeds")}
    return {name: write_report([p], folder / f"{name}.html") for name, p in sources.items()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium_pipe.Browser]:
    assert EXECUTABLE is not None
    with chromium_pipe.Browser(EXECUTABLE, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(shared: chromium_pipe.Browser) -> Iterator[chromium_pipe.Browser]:
    """The browser; whatever a test did with it, the page's script may not have failed."""
    shared.faults.clear()
    yield shared
    assert shared.faults == []
    assert shared.js("document.documentElement.dataset.faults") is None


Browser = chromium_pipe.Browser


def shows(browser: Browser) -> str:
    return browser.js("document.documentElement.dataset.shows")


def count(browser: Browser, selector: str) -> int:
    return browser.js(f"document.querySelectorAll({json.dumps(selector)}).length")


def text(browser: Browser, selector: str) -> str:
    return browser.js(f"document.querySelector({json.dumps(selector)}).textContent")


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["one", "study", "begun"])
def test_page_draws_without_fault(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.open(pages[name], width=width, dark=dark)
    assert browser.js("document.documentElement.dataset.ready") == "yes"
    assert browser.js("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert count(browser, "#chart svg path") >= 1
    assert count(browser, "#panels figure") == (0 if name == "begun" else 8)
    assert "NaN" not in browser.js("document.body.innerHTML")


def test_hostile_text_is_shown_and_does_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    assert text(browser, "#pairs pre") == HOSTILE
    assert count(browser, "img") == 0
    assert "owned" not in browser.js("document.title")


def test_controls_change_what_is_drawn(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    assert shows(browser) == "device_hours log rate first band 0"
    assert count(browser, "#chart .band") == count(browser, "#chart .forecast") == 1
    browser.click("#band")
    assert count(browser, "#chart .band") == 0
    browser.click("[name=axis][value=linear]")
    browser.choose("#x", "tokens_trained")
    assert shows(browser) == "tokens_trained linear rate first line 0"
    assert "tokens trained" in text(browser, "#chart")
    assert "tokens trained" in text(browser, "#fit-table")
    browser.click("[name=fit][value=off]")
    assert count(browser, "#chart .fit") == 0
    browser.click("[name=fit][value=whole]")
    browser.click("[name=view][value=F]")
    assert shows(browser) == "tokens_trained linear F whole line 0"
    assert "F(R)" in text(browser, "#chart")
    assert browser.js("document.querySelector('[name=axis]').disabled") is True


def test_later_evaluations_look_different(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    marks = "[...document.querySelectorAll('#chart .mark')].map(p => p.style.fill)"
    fills = browser.js(marks)
    assert len(fills) == 16
    assert fills.count("var(--paper)") == 8  # those beyond half of the compute
    assert fills[-8:] == ["var(--paper)"] * 8


def test_keyboard_walks_along_the_evaluations(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["study"])
    browser.js("document.querySelector('#chart svg').focus()")
    browser.key("ArrowRight")
    assert text(browser, "#chart .tip").startswith("onestep 0")
    browser.key("ArrowRight")
    assert "step 4" in text(browser, "#chart .tip")
    browser.send(
        "Input.dispatchKeyEvent", type="rawKeyDown", key="ArrowUp", windowsVirtualKeyCode=38
    )
    assert text(browser, "#chart .tip").startswith("twostep 4")
    browser.key("Escape")
    assert browser.js("document.querySelector('#chart .tip').hidden") is True


def test_mouse_finds_the_point_below_it(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    browser.js("[...document.querySelectorAll('#chart .mark')].at(-1).id = 'last'")
    x, y = browser.middle("#last")
    browser.hover(x, y)
    tip = text(browser, "#chart .tip")
    assert "step 60" in tip
    assert "the 90 % band" in tip


def test_runs_can_be_chosen_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["study"])
    assert count(browser, "#chart .fit") == 2
    browser.js("document.querySelector('.runs input').focus()")
    browser.key(" ")
    assert shows(browser).endswith(" 1")
    assert count(browser, "#chart .fit") == 1
    browser.click("#runs button:nth-of-type(2)")
    assert "No run selected" in text(browser, "#chart")
    browser.click("#runs button:nth-of-type(1)")
    assert count(browser, "#chart .fit") == 2
    assert "optimizer.lr" in text(browser, "#config")


def test_reader_filters_and_turns_pages(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    assert count(browser, ".pair") == 5
    browser.click("#pairs button:nth-of-type(2)")
    assert count(browser, ".pair") == 3
    browser.choose("#read-outcome-0", "wrong")
    browser.choose("#read-outcome-1", "correct")
    assert "1 to 5 of 7 prompts" in text(browser, "#pairs")
    browser.choose("#read-outcome-1", "truncated")
    assert "1 to 1 of 1 prompts" in text(browser, "#pairs")
    browser.choose("#read-outcome-1", "any")
    browser.choose("#read-at-1", "1")
    assert text(browser, ".pair:nth-of-type(2) .said + .said h3").startswith("✔ correct")
    assert text(browser, ".pair:nth-of-type(3) .said + .said h3").startswith("✖ wrong")
    browser.choose("#read-outcome-1", "interrupted")
    assert "No prompt has both outcomes" in text(browser, "#pairs")


def test_theme_button(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    browser.click("#theme")
    assert browser.js("document.documentElement.dataset.theme") == "dark"
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"


def test_seeds_of_a_variant_look_alike(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["seeds"])
    look = "m => m.style.stroke + m.getAttribute('d')"
    first, second, other = browser.js(f"[...document.querySelectorAll('.runs .mark')].map({look})")
    assert first == second != other
    assert [count(browser, ".runs input"), count(browser, "#chart .fit")] == [3, 3]
