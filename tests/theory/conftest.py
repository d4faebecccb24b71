"""The built site and a browser, for the tests of what a reader meets."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.site import ROOT, build


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built site: the one that USTAT_SITE names, or one that all workers share."""
    pytest.importorskip("myst_nb", reason="the site needs the extra theory")
    if ready := os.environ.get("USTAT_SITE"):
        return Path(ready).resolve()
    from filelock import FileLock

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    target = base / "site"
    with FileLock(base / "site.lock"):
        if not (base / "site.log").exists():
            done = build(ROOT / "theory", target)
            (base / "site.log").write_text(f"{done.returncode}\n{done.stderr}", "utf-8")
    status, _, log = (base / "site.log").read_text("utf-8").partition("\n")
    assert status == "0", log
    return target


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Headless Chromium that keeps its console and its requests."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        reason = "no chromium and chromedriver here: make browser installs them"
        if os.environ.get("USTAT_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    without = ["gpu", "quic", "dev-shm-usage", "background-networking", "component-update", "sync"]
    for flag in (
        *("--headless", "--no-sandbox", "--no-first-run"),
        *(f"--disable-{part}" for part in without),
        "--host-resolver-rules=MAP * ~NOTFOUND",  # a request fails at once, and is seen
        "--window-size=1280,1600",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    session = webdriver.Chrome(options=options, service=service)
    session.set_page_load_timeout(30)
    session.get("about:blank")  # away from the browser's own first page, which has requests too
    session.get_log("performance")
    yield session
    session.quit()
