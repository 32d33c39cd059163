import json

import pytest
from unit.report.site import make_site

from rltuned.cli.main import cli


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A site with a daemon in stage shadow."""
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def made(site):
    """Its report: JSON and page."""
    page, out = site.config.with_name("report.html"), site.config.with_name("report.json")
    cli.main(["report", *site.words, "--html", str(page), "--json", str(out)], standalone_mode=False)
    return json.loads(out.read_text()), page
