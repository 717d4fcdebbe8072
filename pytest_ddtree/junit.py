"""JUnit XML that says what the tables say: pytest takes a test's properties when the test ends, and rounds may follow."""

from __future__ import annotations

from xml.etree.ElementTree import Element

import pytest
from _pytest.junitxml import xml_key

from pytest_ddtree.session import reported_of


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Bring the properties up to date before pytest writes the file; there is no public way to them."""
    xml, run = session.config.stash.get(xml_key, None), reported_of(session.config)
    if xml is None or run is None:
        return
    from pytest_ddtree.report.lastfigures import last_properties

    for reporter in xml.node_reporters_ordered:
        # Of a test that ended there is its element, always the same one, and nothing else any more.
        found = reporter.to_xml().find("properties")
        if found is None:
            continue
        given = [(one.attrib["name"], one.attrib["value"]) for one in found]
        found[:] = [
            Element("property", name=name, value=value) for name, value in last_properties(given, run.results)
        ]
