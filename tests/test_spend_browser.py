"""`/spend` in a real browser: what it shows, what it asks for, how keys reach it, and how it fits small screens."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright
from running import Running, serving, settings

from proxy.report.shown import cell
from proxy.testing import FakeBackend, answer

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: Debian's package chromium")

NAMES = ("kimi-k3", '<script>alert(1)</script>"><img src=x onerror=alert(1)>', "\u202eevil\u202c", "x" * 5000)
USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 500,
    "total_tokens": 1500,
    "completion_tokens_details": {"reasoning_tokens": 400},
}
SHOTS = os.environ.get("SPEND_SCREENSHOTS")
"""A folder for pictures, for people to look at."""


@contextlib.asynccontextmanager
async def busy() -> AsyncIterator[Running]:
    """A proxy that has served models of hostile names."""
    async with FakeBackend(answer("ok", reasoning="hm", usage=USAGE), style="kimi") as backend:
        local = {"url": backend.url, "engine": "kimi", "slow": False, "models": []}
        models = {"kimi-k3": {"backend": "local", "price": {"input": 3, "output": 10}}}
        async with serving(settings(backend.url, backends={"local": local}, models=models)) as proxy:
            for count, name in enumerate(NAMES, 1):
                await proxy.chat(model=name, max_tokens=10)
                await proxy.rows(count)
            yield proxy


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Chromium, without a screen."""
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield started
        finally:
            await started.close()


@contextlib.asynccontextmanager
async def opened(started: Browser, proxy: Running, path: str = "/spend", **options: Any) -> AsyncIterator[Page]:
    """A page in a window of its own."""
    context = await started.new_context(**options)
    try:
        page = await context.new_page()
        await page.goto(proxy.url.removesuffix("/v1") + path)
        yield page
    finally:
        await context.close()


async def test_the_page_in_a_browser() -> None:
    """Figures equal the JSON; no request leaves the host and nothing is refused; hostile names are text; everything is
    reached by keyboard; a small screen does not scroll sideways; light and dark can be read."""
    async with busy() as proxy, browser() as started:
        origin = proxy.url.removesuffix("/v1")
        found = (await proxy.http.get(f"{origin}/spend.json")).json()
        asked: list[str] = []
        said: list[str] = []
        async with opened(started, proxy) as page:
            page.on("request", lambda request: asked.append(request.url))
            page.on("console", lambda message: said.append(message.text))
            page.on("dialog", lambda dialog: said.append(dialog.message))
            await page.reload()
            await figures(page, found)
            await hostile(page)
            await keyboard(page)
        assert asked
        assert all(url.startswith(origin) for url in asked)
        assert said == []
        for scheme in ("light", "dark"):
            for width in (360, 1280):
                options: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
                async with opened(started, proxy, **options) as page:
                    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (scheme, width)
                    assert await least_contrast(page) >= 4.5, scheme
                    if SHOTS:
                        await page.screenshot(path=Path(SHOTS) / f"{scheme}-{width}.png", full_page=True)


async def figures(page: Page, found: dict[str, Any]) -> None:
    """The four, and each cell of the table by model."""
    shown = await page.locator("dl dd:not(.note)").all_inner_texts()
    total = found["total"]
    assert shown == [
        f"{cell('cost_usd', total['cost_usd'])} USD",
        f"{cell('reasoning_tokens', total['reasoning_tokens'])} tokens",
        f"{cell('visible_tokens', total['visible_tokens'])} tokens",
        cell("answers_lost", total["answers_lost"]),
    ]
    table = page.get_by_role("region", name="By model").locator("tbody tr")
    assert await table.count() == len(found["by_model"])
    for at, row in enumerate(found["by_model"]):
        for column in await table.nth(at).locator("td").all():
            name = await column.get_attribute("data-name") or ""
            assert await column.inner_text() == cell(name, row[name])
    assert await page.locator("svg g").count() == len(found["over_time"])


async def hostile(page: Page) -> None:
    """No name became an element."""
    assert await page.locator("main script, main img").count() == 0
    names = await page.get_by_role("region", name="By model").locator("tbody th bdi").all_inner_texts()
    assert NAMES[1] in names
    assert NAMES[3] in names


async def keyboard(page: Page) -> None:
    """The skip link comes first; each control can be reached, and shows that it has the focus."""
    reached: list[str] = []
    for _ in range(40):
        await page.keyboard.press("Tab")
        reached.append(
            await page.evaluate(
                "(e => e.getAttribute('href') || e.getAttribute('name') || e.getAttribute('aria-label') || e.innerText)"
                "(document.activeElement)"
            )
        )
    assert reached[0] == "#figures"
    wanted = {"since", "until", "by", "Show", "By model", "By backend", "Backends", "Running requests"}
    assert wanted <= set(reached)
    await page.focus("select[name=since]")
    assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


async def least_contrast(page: Page) -> float:
    """Of texts against what is behind them, by WCAG's measure."""
    ratio: float = await page.evaluate(
        """() => {
            const parse = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
            const light = ([r, g, b]) => {
                const [x, y, z] = [r, g, b]
                    .map(v => v / 255)
                    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                return .2126 * x + .7152 * y + .0722 * z;
            };
            const behind = element => {
                for (let e = element; e; e = e.parentElement) {
                    const colour = parse(getComputedStyle(e).backgroundColor);
                    if (colour.length === 3 || colour[3] > 0) return colour;
                }
                return [255, 255, 255];
            };
            const texts = 'h1,h2,p,a,dt,dd,th,td,caption,label,figcaption,button,option';
            const ratios = [...document.querySelectorAll(texts)]
                .filter(e => e.innerText && e.innerText.trim())
                .map(e => [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((a, b) => b - a))
                .map(([high, low]) => (high + .05) / (low + .05));
            return Math.min(...ratios);
        }"""
    )
    return ratio


async def test_an_empty_ledger_has_a_page_too() -> None:
    """Before the first request."""
    async with FakeBackend(answer("ok"), style="kimi") as backend, serving(settings(backend.url)) as proxy:
        async with browser() as started, opened(started, proxy) as page:
            assert await page.locator("dl dd:not(.note)").all_inner_texts() == ["- USD", "- tokens", "- tokens", "0"]
            if SHOTS:
                await page.screenshot(path=Path(SHOTS) / "empty.png", full_page=True)
