"""The page in a real browser: in frames as wide as a desk's and a phone's window, measured by a script around it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from chanas.files.run import RunDirectory
from chanas.report.page import build_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
WIDTHS = (1200, 400)
SMALLEST_TEXT_PX = 9.5

HARNESS = """<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><body>FRAMES<pre id="found"></pre><script>
addEventListener("load", () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement;
    const figures = {};
    for (const figure of page.querySelectorAll("figure")) {
      const drawing = figure.querySelector("svg"), box = drawing.getBoundingClientRect();
      const texts = [...drawing.querySelectorAll("text")];
      const scale = box.width / drawing.viewBox.baseVal.width;
      const sizes = texts.map(text => scale * parseFloat(frame.contentWindow.getComputedStyle(text).fontSize));
      const inside = texts.filter(text => {
        const place = text.getBoundingClientRect();
        return place.left >= box.left - 1 && place.right <= box.right + 1
          && place.top >= box.top - 1 && place.bottom <= box.bottom + 1;
      });
      figures[figure.id] = {
        width: box.width, height: box.height, text: Math.min(...sizes), clipped: texts.length - inside.length,
        rows: figure.querySelectorAll("details tbody tr").length,
      };
    }
    const background = frame.contentWindow.getComputedStyle(page.body).backgroundColor;
    found[frame.width] = {figures, overflow: root.scrollWidth - root.clientWidth, background};
  }
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script></body>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"there is no browser on this machine (looked for {', '.join(BROWSERS)})")
    return found


Open = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def opened(browser: str, tmp_path: Path, make_run: Callable[..., RunDirectory]) -> Open:
    """Opens the report of a whole run in frames of all widths; gives what was measured, and the browser's log."""

    def open_page(*options: str, stages: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
        page = html.escape(build_report(make_run(*stages)).read_text(encoding="utf-8"))
        frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{page}"></iframe>' for width in WIDTHS)
        harness = tmp_path / "harness.html"
        harness.write_text(HARNESS.replace("FRAMES", frames), encoding="utf-8")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", *options]
        shown = subprocess.run(
            [*command, "--dump-dom", harness.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        found = re.search(r'<pre id="found">(.*?)</pre>', shown.stdout, re.DOTALL)
        assert found is not None, shown.stderr[-2000:]
        return json.loads(html.unescape(found[1])), shown.stderr

    return open_page


@pytest.mark.browser
def test_every_figure_is_drawn_whole_and_readable_at_every_width(opened: Open) -> None:
    found, log = opened()
    assert "CONSOLE" not in log
    for width in WIDTHS:
        figures = found[str(width)]["figures"]
        assert len(figures) == 13
        for name, figure in figures.items():
            assert figure["width"] > 200, (width, name)
            assert figure["height"] > 60, (width, name)
            assert figure["text"] >= SMALLEST_TEXT_PX, (width, name)
            assert figure["clipped"] == 0, (width, name)
            assert figure["rows"] > 0, (width, name)


@pytest.mark.browser
def test_the_networks_of_several_targets_are_drawn_whole_and_to_one_scale(opened: Open) -> None:
    found, log = opened(stages=("luts", "targets"))
    assert "CONSOLE" not in log
    assert {width: page["overflow"] for width, page in found.items()} == {"400": 0, "1200": 0}
    for width in WIDTHS:
        figures = found[str(width)]["figures"]
        drawn = [figures["figure-target-1"], figures["figure-target-2"]]
        assert "figure-target-3" not in figures
        for figure in drawn:
            assert figure["text"] >= SMALLEST_TEXT_PX, width
            assert (figure["clipped"], figure["rows"] > 0) == (0, True), width
        assert drawn[0]["text"] == pytest.approx(drawn[1]["text"], rel=0.15), width


@pytest.mark.browser
def test_nothing_is_wider_than_the_window(opened: Open) -> None:
    found, _ = opened()
    assert {width: page["overflow"] for width, page in found.items()} == {"400": 0, "1200": 0}


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "background"), [(1, "rgb(255, 255, 255)"), (0, "rgb(22, 22, 22)")])
def test_it_follows_the_colour_scheme_of_the_reader(scheme: int, background: str, opened: Open) -> None:
    found, _ = opened(f"--blink-settings=preferredColorScheme={scheme}")
    assert {page["background"] for page in found.values()} == {background}
