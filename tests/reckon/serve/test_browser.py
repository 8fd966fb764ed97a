"""The page in a real browser: Debian's Chromium, by Playwright."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import reckon

pytest.importorskip("fastapi", reason="FastAPI is not installed (reckon[serve])")
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here (apt-get install chromium)"
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    import uvicorn

    from reckon.serve import application

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = uvicorn.Config(application("kernels-only"), "127.0.0.1", port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as one:
        found = one.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    found = context.new_page()
    wrong: list[str] = []
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.goto(address)
    found.wait_for_selector(".figure")
    yield found
    context.close()
    assert wrong == []


def test_a_change_predicts_anew_and_the_address_keeps_it(page: Any) -> None:
    before = page.inner_text(".figure .value")
    page.fill("#f-seq_len", "4096")
    page.wait_for_function(
        "t => document.querySelector('.figure .value').innerText !== t", arg=before
    )
    assert "seq_len=4096" in page.url
    assert "--seq-len 4096" in page.inner_text("#same pre")
    after = page.inner_text(".figure .value")
    page.reload()
    page.wait_for_selector(".figure")
    assert page.inner_text(".figure .value") == after
    assert page.input_value("#f-seq_len") == "4096"


def test_bad_input_is_told_and_the_page_goes_on(page: Any) -> None:
    page.fill("#f-model", "llama3-9b")
    page.wait_for_selector("#error:not([hidden])")
    assert "did you mean" in page.inner_text("#error")
    page.fill("#f-model", "meta-llama/Llama-3.1-8B")
    page.wait_for_selector("#error", state="hidden")


def test_a_search_draws_plans_and_one_is_taken_over(page: Any) -> None:
    """Its ticks are numbers (those between the powers of ten were single digits), and the flags of
    lines stay whole (they broke within '--')."""
    page.goto(page.url.split("?")[0] + "?tab=train&model=llama3-8b&system=dgx-h100&gpus=8"
              "&seq_len=4096&global_batch=8&tp=8")  # fmt: skip
    page.wait_for_selector(".figure")
    page.click("#search-button")
    page.wait_for_selector("#plot .main-svg", timeout=60_000)
    assert "Yours takes" in page.inner_text("#better")
    ticks = page.locator("#plot .xtick text").all_text_contents()
    numbers = [float(tick.replace(",", "")) for tick in ticks]
    assert len(numbers) > 1
    assert numbers == sorted(numbers)
    flags = page.locator("#same pre .flag")
    assert flags.count() > 3
    assert all(text.startswith("--") for text in flags.all_inner_texts())
    style = "e => getComputedStyle(e).whiteSpace"
    assert flags.first.evaluate(style) == "nowrap"
    page.click("#better tbody button >> nth=0")
    assert "reckon predict train" in page.inner_text("#plan-line pre")
    page.click("text=Use this plan")
    page.wait_for_selector("#plot", state="detached")
    assert "tp=1" in page.url


def test_how_steps_vary_is_shown_where_it_is_asked_for(page: Any) -> None:
    assert "99% of steps" not in page.inner_text("#figures")
    page.select_option("#f-variation", "cloud")
    page.wait_for_selector("#figures >> text=99% of steps")
    assert "variation=cloud" in page.url


def test_serving_and_compare_by_the_keyboard_alone(page: Any) -> None:
    page.focus("nav button >> nth=1")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=time to first token")
    page.focus("text=Pin to compare")
    page.keyboard.press("Enter")
    page.focus("nav button >> nth=4")
    page.keyboard.press("Enter")
    page.wait_for_selector("#compare table")
    assert "per token" in page.inner_text("#compare")
    assert "pin=" in page.url


def test_power_and_accuracy_of_the_request_that_was_shown(page: Any) -> None:
    page.click("nav button >> nth=2")
    page.wait_for_selector("#figures >> text=energy per token")
    before = page.inner_text("#figures .value >> nth=0")
    page.fill("#f-power_limit", "450")
    page.wait_for_selector("#better >> text=450 W (yours)")
    assert page.inner_text("#figures .value >> nth=0") != before
    assert "--power-limit 450" in page.inner_text("#same pre")
    assert "power_limit=450" in page.url
    page.select_option("#f-of", "infer")
    page.wait_for_selector("#where >> text=prefill")
    page.click("nav button >> nth=3")
    page.wait_for_selector("#where >> text=unseen shapes")
    assert "of=infer" in page.url
    page.reload()
    page.wait_for_selector("#where table")
    assert "H200" in page.inner_text("#where h2")
    page.fill("#f-system", "8xH100")
    page.wait_for_selector("#where h2 >> text=H100")


@pytest.mark.parametrize(
    ("tab", "views"),
    [("train", [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]),
     ("power", [(1280, "dark"), (390, "light")]),
     ("accuracy", [(1280, "light"), (390, "dark")])],
)  # fmt: skip
def test_axe_finds_nothing_serious_and_nothing_overflows(
    browser: Any, address: str, tab: str, views: list[tuple[int, str]]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe here")
    context = browser.new_context(bypass_csp=True)
    page = context.new_page()
    page.goto(f"{address}?tab={tab}")
    page.wait_for_selector(".figure")
    for width, scheme in views:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        found = axe.Axe().run(page).response["violations"]
        serious = [one["id"] for one in found if one["impact"] in ("serious", "critical")]
        assert serious == [], (width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, scheme)
    context.close()


def test_back_returns_to_the_tab_before_with_what_was_typed(page: Any) -> None:
    page.fill("#f-seq_len", "4096")
    page.wait_for_function("() => location.search.includes('seq_len=4096')")
    page.click("nav button >> nth=1")
    page.wait_for_selector("text=time to first token")
    page.go_back()
    page.wait_for_selector("text=tokens/s per GPU")
    assert page.input_value("#f-seq_len") == "4096"
    page.go_forward()
    page.wait_for_selector("text=time to first token")
    page.click("nav button >> nth=0")
    page.wait_for_selector("text=tokens/s per GPU")
    assert page.input_value("#f-seq_len") == "4096"


def test_the_step_time_is_that_of_the_terminal_to_the_digit(page: Any) -> None:
    plan = {"gpus": 1024, "tp": 8, "pp": 4, "global_batch": 1024, "seq_len": 8192}
    own = reckon.predict_train("llama3-70b", "dgx-h100", plan, "kernels-only").step_time
    assert page.inner_text(".figure .value") == f"{own.value:.4g} s"
    assert page.inner_text(".figure .note") == f"{own.low:.4g} s to {own.high:.4g} s"
