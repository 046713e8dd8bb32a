"""The live page in a real browser, under load: numbers move, a stream is chosen by keyboard, its picture changes; on a
phone and on a desk, light and dark. PAGE_SHOTS=FOLDER keeps what was seen."""
import os
import shutil
import threading
import time

import numpy as np
import pytest

from conftest import SLOW
from http_tools import HTTP, port_of

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium (Debian: python3-selenium)")
if not shutil.which("chromedriver"):
    pytest.skip("no browser (Debian: chromium chromium-driver)", allow_module_level=True)
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

STREAMS = 1000
WAIT_S = 60
pytestmark = pytest.mark.xdist_group("browser")  # one of them is enough


@pytest.fixture(scope="module")
def browser():
    options = Options()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-proxy-server"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    b = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    yield b
    b.quit()


def look(b, width, height, scheme):
    b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
    b.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})


def wait(b, true, what):
    WebDriverWait(b, WAIT_S * SLOW, 0.2, ignored_exceptions=()).until(lambda _: true(), what)


def text(b, name):
    return b.execute_script("return document.getElementById(arguments[0]).textContent", name)


def picture(b):
    """The heat map's pixels."""
    return b.execute_script("return document.getElementById('heat').toDataURL()")


def keep(b, name, width):
    folder = os.environ.get("PAGE_SHOTS")
    if not folder:
        return
    b.execute_script("scrollTo(0, 0)")
    look(b, width, b.execute_script("return document.documentElement.scrollHeight"), "dark" if "dark" in name else "light")
    time.sleep(1.2)
    b.save_screenshot(os.path.join(folder, name + ".png"))


@pytest.fixture
def busy(start, small_model):
    """A daemon with 1000 streams; two of them get frames all the time."""
    d = start({**HTTP, "model m": {"file": small_model}, "limits": {"max_streams_client": 2000}})
    over, failures = threading.Event(), []

    def run():
        try:
            rng = np.random.default_rng(1)
            with d.client() as c:
                for i in range(STREAMS - 2):
                    assert c.ask(f"m/idle{i}", np.zeros((2, 8), np.float32)).h.status == 0
                seq = 0
                while not over.is_set():
                    seq += 1 if seq % 10 else 3  # two are missing, every so often
                    for name in ("m/busy-a", "m/busy-b"):
                        t = np.arange(120) / 120
                        x = np.stack([np.sin(40 * t + seq), np.cos(25 * t * (1 + seq % 5))]) + 0.1 * rng.standard_normal((2, 120))
                        assert c.ask(name, x.astype(np.float32), seq=seq).h.status == 0
                    time.sleep(0.02)
        except Exception as e:
            failures.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    yield d
    over.set()
    thread.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("width, height, scheme", [(1400, 900, "light"), (400, 850, "dark")])
def test_the_page_lives(browser, busy, width, height, scheme):
    b = browser
    look(b, width, height, scheme)
    b.get(f"http://127.0.0.1:{port_of(busy)}/")
    wait(b, lambda: text(b, "pill") == "ready", "the daemon's state")
    wait(b, lambda: text(b, "streams-count") == f"{STREAMS} open", "all streams")
    ground = b.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(", "))) > 600) == (scheme == "light"), ground

    # Numbers move.
    wait(b, lambda: float(text(b, "rate").split(" ")[0].replace("–", "0")) > 0, "a rate")
    b.execute_script("document.getElementById('ledger').open = true")
    seen = text(b, "identity")
    wait(b, lambda: text(b, "identity") != seen, "the ledger moves")
    assert "does not add up" not in text(b, "identity")

    # A stream is found and chosen with the keyboard alone.
    search = b.find_element(By.ID, "search")
    search.send_keys("busy-b")
    box = b.find_element(By.ID, "streams")
    wait(b, lambda: len(box.find_elements(By.CSS_SELECTOR, ".row")) == 1, "the search")
    search.send_keys(Keys.TAB * 5)  # over the four columns' buttons
    assert b.switch_to.active_element.get_attribute("id") == "streams"
    b.switch_to.active_element.send_keys(Keys.ENTER)
    assert text(b, "heat-name") == "m/busy-b" and b.current_url.endswith("#m/busy-b")
    wait(b, lambda: "4 channels × 118 steps" in text(b, "heat-facts"), "a result")
    assert b.find_element(By.CSS_SELECTOR, "#streams .row[aria-selected=true] .gap").text != "0"

    # Its picture changes, and stands still when paused.
    before = picture(b)
    wait(b, lambda: picture(b) != before, "the heat map changes")
    b.find_element(By.ID, "pause").send_keys(Keys.ENTER)
    still = picture(b)
    shown = b.execute_script("return document.getElementById('heat').dataset.pictures")
    time.sleep(0.5)
    assert picture(b) == still and b.execute_script("return document.getElementById('heat').dataset.pictures") == shown
    b.find_element(By.ID, "pause").send_keys(Keys.ENTER)
    wait(b, lambda: picture(b) != still, "it goes on")

    # Of a thousand rows only those in sight exist, and End reaches the last.
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.DELETE)
    wait(b, lambda: len(box.find_elements(By.CSS_SELECTOR, ".row")) > 5, "all rows again")
    assert len(box.find_elements(By.CSS_SELECTOR, ".row")) < 30
    box.send_keys(Keys.END)
    wait(b, lambda: f"stream-{STREAMS - 1}" == box.get_attribute("aria-activedescendant"), "the last row")
    assert box.find_elements(By.ID, f"stream-{STREAMS - 1}")

    # Nothing hangs over the side, nothing was loaded from elsewhere, nothing was complained of.
    assert b.execute_script("return document.documentElement.scrollWidth") <= width
    loaded = b.execute_script("return performance.getEntriesByType('resource').map(r => r.name)")
    assert all(f"127.0.0.1:{port_of(busy)}/events" in name for name in loaded), loaded
    keep(b, f"page-{width}-{scheme}", width)
    assert [m for m in b.get_log("browser") if m["level"] == "SEVERE"] == []
    b.get("about:blank")


def test_the_page_says_when_the_daemon_is_gone(browser, start, small_model):
    d = start({**HTTP, "model m": {"file": small_model}})
    look(browser, 1000, 800, "light")
    browser.get(f"http://127.0.0.1:{port_of(d)}/")
    wait(browser, lambda: text(browser, "pill") == "ready", "the daemon's state")
    assert d.stop() == 0
    wait(browser, lambda: "no connection" in text(browser, "pill"), "the end is seen")
    browser.get("about:blank")
    browser.get_log("browser")
