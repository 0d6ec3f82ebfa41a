"""The page as people have it: a real server, a real browser, a mouse. Slow, and skipped where there is no Chromium."""

import contextlib
import http.client
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import hostile
import numpy as np
import pytest
import traced

import metaprior

SRC = Path(metaprior.__file__).parents[1]
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
PICTURES = os.environ.get("METAPRIOR_SCREENSHOTS")  # a folder to keep screenshots in, to look at

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    """`metaprior demo` in a process of its own: (process, port)."""
    environment = os.environ | {"PYTHONPATH": str(SRC), "XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    command = [sys.executable, "-m", "metaprior", "demo", "--port", "0", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert match, (line, process.stderr and process.stderr.read())
        yield process, int(match[1])
        process.terminate()
        _, errors = process.communicate(timeout=30)
        assert "Traceback" not in errors and "Error" not in errors, errors[-2000:]


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'metaprior[browser]'")
    if CHROMIUM is None:
        pytest.skip("no chromium is installed on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def visit(chromium, port, where="curve", **options):
    """A page of a visitor of its own, without complaints in its console."""
    complaints: list[str] = []
    context = chromium.new_context(**options)
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(f"http://127.0.0.1:{port}/#{where}")
    page.wait_for_selector("body[data-ready=yes]")
    yield page
    context.close()
    assert not complaints, complaints


def keep(page, name):
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)


def settled(page):
    """Until every question has been answered."""
    page.wait_for_selector("body[data-asking='0']")


def click_at(page, method, x, y):
    """Into the chart of a method, at coordinates of the curve."""
    svg = page.locator(f".chart[data-method='{method}'] svg")
    box = svg.bounding_box()
    across, down = 34 + (x + 5) / 10 * (560 - 42), 8 + (6 - y) / 12 * (340 - 32)
    svg.click(position={"x": across / 560 * box["width"], "y": down / 340 * box["height"]}, force=True)


def width_at(page, method, x):
    """Of the 90 % band, in the chart's own units, from the path that is drawn."""
    numbers = re.findall(r"-?[\d.]+", page.get_attribute(f".chart[data-method='{method}'] .band90", "d") or "")
    outline = np.array(numbers, float).reshape(-1, 2)
    upper, lower = outline[:81], outline[81:][::-1]
    place = int(np.argmin(np.abs(upper[:, 0] - (34 + (x + 5) / 10 * (560 - 42)))))
    return lower[place, 1] - upper[place, 1]


def test_points_are_clicked_and_the_band_narrows_there(server, chromium):
    with visit(chromium, server[1], viewport={"width": 1280, "height": 900}) as page:
        settled(page)
        before = {x: width_at(page, "gem-bml+last-layer", x) for x in (-2, 3)}
        keep(page, "curve-prior")
        click_at(page, "gem-bml+last-layer", -2, 0)
        settled(page)
        one = {x: width_at(page, "gem-bml+last-layer", x) for x in (-2, 3)}
        click_at(page, "maml", 3, 0)
        click_at(page, "gem-bml+", 0.5, 0)
        settled(page)
        three = {x: width_at(page, "gem-bml+last-layer", x) for x in (-2, 3)}
        page.check("#reveal")
        settled(page)
        keep(page, "curve-points")
        assert one[-2] < 0.5 * before[-2]
        assert three[3] < 0.7 * one[3] and three[3] < 0.5 * before[3]
        assert page.locator(".chart[data-method='maml'] .point").count() == 3
        coverage = page.inner_text(".chart[data-method='gem-bml+last-layer'] [data-score=coverage]")
        assert re.fullmatch(r"\d+ %", coverage)


def test_points_are_dragged_and_updates_stepped_through(server, chromium):
    with visit(chromium, server[1], viewport={"width": 1280, "height": 900}) as page:
        page.uncheck("#on-curve")
        click_at(page, "maml", 1, 2)
        settled(page)
        mean = lambda: page.get_attribute(".chart[data-method='maml'] .mean", "d")
        before, point = mean(), page.locator(".chart[data-method='maml'] .point").first.bounding_box()
        page.mouse.move(point["x"] + 5, point["y"] + 5)
        page.mouse.down()
        page.mouse.move(point["x"] + 5, point["y"] + 90, steps=8)
        page.mouse.up()
        settled(page)
        dragged = mean()
        page.fill("#steps", "1")
        settled(page)
        one = mean()
        page.click("#step-back")
        settled(page)
        assert len({before, dragged, one, mean()}) == 4 and page.inner_text("#steps-value") == "0"
        page.locator(".chart[data-method='maml'] .point").first.dblclick(force=True)
        assert page.locator(".point").count() == 0


def test_the_keyboard_is_enough(server, chromium):
    with visit(chromium, server[1]) as page:
        page.focus(".chart[data-method='gem-bml+'] svg")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert page.locator(".chart[data-method='gem-bml+'] .point").count() == 1
        page.locator(".chart[data-method='gem-bml+'] .point").first.focus()
        page.keyboard.press("Shift+ArrowRight")
        assert "1.2" in page.locator(".chart[data-method='gem-bml+'] .point").first.get_attribute("aria-label")
        page.keyboard.press("Delete")
        assert page.locator(".point").count() == 0
        page.focus("#tab-curve")
        page.keyboard.press("ArrowRight")
        page.select_option("#classes", "2")
        turns = {"A": ["ArrowDown"], "B": ["ArrowRight"], "Another one": ["ArrowDown"]}
        for name, keys in turns.items():
            page.focus(f".pad[data-name='{name}'] .sheet")
            page.keyboard.press("Space")
            for key in keys * 5:
                page.keyboard.press(f"Shift+{key}")
            page.keyboard.press("Space")
        settled(page)
        assert "A" in page.inner_text("#verdict")


def test_two_browsers_do_not_see_each_other(server, chromium):
    with visit(chromium, server[1]) as one, visit(chromium, server[1]) as other:
        click_at(one, "maml", 1, 2)
        settled(one)
        other.click("#clear-points")
        settled(other)
        assert one.locator(".chart[data-method='maml'] .point").count() == 1
        assert other.locator(".point").count() == 0


def draw(page, name, strokes):
    """With the mouse, as large as on Omniglot's sheet."""
    sheet = page.locator(f".pad[data-name='{name}'] .sheet")
    sheet.scroll_into_view_if_needed()
    box = sheet.bounding_box()
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in [*places[1::2], places[-1]]:
            page.mouse.move(*place)
        page.mouse.up()


SHAPES = {
    "A": [[(0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8), (0.2, 0.2)]],
    "B": [[(0.2, 0.2), (0.8, 0.8)], [(0.8, 0.2), (0.2, 0.8)]],
    "C": [[(0.5, 0.1), (0.5, 0.9)], [(0.3, 0.3), (0.7, 0.3)]],
}


def between(strokes, count=15):
    """More points on the same lines, as a mouse leaves them."""
    steps = np.linspace(0, 1, count)[:, None]
    whole = lambda s: np.concatenate(
        [(1 - steps) * np.array(a) + steps * np.array(b) for a, b in itertools.pairwise(s)]
    )
    return [list(map(tuple, whole(stroke).tolist())) for stroke in strokes]


def test_shapes_are_drawn_and_recognised(server, chromium):
    with visit(chromium, server[1], "draw", viewport={"width": 1280, "height": 900}) as page:
        for name, shape in SHAPES.items():
            draw(page, name, between(shape))
        for name, shape in SHAPES.items():
            page.click(".pad[data-name='Another one'] .clear")
            draw(
                page,
                "Another one",
                between([[(0.48 + 0.85 * (x - 0.5), 0.52 + 0.9 * (y - 0.5)) for x, y in s] for s in shape]),
            )
            settled(page)
            keep(page, f"draw-{name}")
            assert re.search(rf"(This is|Perhaps) {name}", page.inner_text("#verdict")), name


def test_real_characters_are_drawn_again_and_recognised(server, chromium):
    """Three characters that no prior was trained on, by two drawers each, by mouse; guessing would be right one time in three."""
    if (drawn := traced.unseen_characters(9)) is None:
        pytest.skip("METAPRIOR_DATA does not name a folder with Omniglot's bitmaps")
    right = []
    with visit(chromium, server[1], "draw", viewport={"width": 1280, "height": 900}) as page:
        for first in (0, 3, 6):
            page.click("#clear-all")
            for name, character in zip("ABC", drawn[first : first + 3], strict=True):
                draw(page, name, traced.strokes(character[0]))
            for name, character in zip("ABC", drawn[first : first + 3], strict=True):
                page.click(".pad[data-name='Another one'] .clear")
                draw(page, "Another one", traced.strokes(character[7]))
                settled(page)
                right.append(bool(re.search(rf"(This is|Perhaps) {name}", page.inner_text("#verdict"))))
        keep(page, "draw-omniglot")
    assert sum(right) >= 8, right


@pytest.mark.parametrize("where", ["curve", "draw"])
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (1280, "dark")])
def test_nothing_is_wider_than_the_window(server, chromium, where, width, scheme):
    options = {"viewport": {"width": width, "height": 740}, "color_scheme": scheme, "has_touch": width < 500}
    with visit(chromium, server[1], where, **options) as page:
        if where == "curve":
            page.click("#some-points")
            page.check("#reveal")
        else:
            for name, shape in (*SHAPES.items(), ("Another one", SHAPES["B"])):
                draw(page, name, between(shape))
        settled(page)
        page.wait_for_timeout(300)
        keep(page, f"{where}-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


# --- hostile requests to the real server ------------------------------------------------------------------------------


def memory(process):
    """Resident bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
    return 1024 * int(kilobytes)


def send(port, method, path, headers, body):
    """One request; a server that has heard enough may answer and close before all is sent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in headers:
            connection.putheader(name, value)
        if body or method == "POST":
            connection.putheader("content-length", str(len(body)))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, reply.read()
    except (ConnectionResetError, http.client.RemoteDisconnected):
        return None, b""  # closed in the middle of a body that is too large
    finally:
        connection.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_ten_thousand_hostile_requests(server):
    process, port = server
    send(port, "POST", "/api/curve", [("host", "localhost"), ("content-type", "application/json")], b"{}")
    before, statuses, began = memory(process), {}, time.perf_counter()
    for count, (method, path, headers, body) in enumerate(hostile.requests(10_500, seed=1)):
        status, text = send(port, method, path, headers, body)
        assert status is None or status == 200 or 400 <= status < 500, (method, path, headers, body[:200], text[:200])
        assert status is not None or len(body) > 200_000
        assert b"Traceback" not in text
        statuses[status] = statuses.get(status, 0) + 1
        if count % 1000 == 0:
            assert memory(process) - before < 300 * 2**20
    assert sum(statuses.values()) >= 10_000 and statuses.get(200, 0) < 0.1 * sum(statuses.values())
    assert memory(process) - before < 300 * 2**20 and process.poll() is None
    print(statuses, f"{(memory(process) - before) / 2**20:.0f} MiB more, {time.perf_counter() - began:.0f} s")
