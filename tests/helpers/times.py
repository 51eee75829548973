"""What runs when: by the processor time that each test function took, in tests/times.json.

`pytest --record-times` notes it for the functions that it runs. A function's time is that of its
longest case, with the processes that it started and the shared fixtures that it uses. Only times
above SLOW_S are kept.
"""

import json
import os
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "times.json"
SLOW_S, LONG_S = 1, 15

# They mostly wait, and say themselves where they run.
GROUPS = {"docker", "cluster", "zoo", "slurm", "ray", "faults"}

_PROPERTY = "processor_s"
_BEGAN = pytest.StashKey[tuple[float, float]]()
_SHARED = pytest.StashKey[dict[object, float]]()  # Seconds, by shared fixture.


def _known():
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def _function(nodeid):
    return nodeid.partition("[")[0].partition("@")[0]


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    """Marks tests as slow or long by their times; the files with the longest ones come first."""
    known = _known()
    longest_s: dict[Path, float] = {}
    for item in items:
        waits = not GROUPS.isdisjoint(mark.name for mark in item.iter_markers())
        recorded_s = 0 if waits else known.get(_function(item.nodeid), 0)
        longest_s[item.path] = max(recorded_s, longest_s.get(item.path, 0))
        if recorded_s > SLOW_S:
            item.add_marker("long" if recorded_s > LONG_S else "slow")
    items.sort(key=lambda item: longest_s[item.path], reverse=True)


def pytest_addoption(parser):
    parser.addoption("--record-times", action="store_true", help="write tests/times.json")


def pytest_configure(config):
    config.stash[_SHARED] = {}
    if config.getoption("--record-times") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder())


killed_s = 0.0
"""What processes took that were killed with their parents: no parent's time has it."""


def _processor_s():
    return sum(os.times()[:4]) + killed_s


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    began_s = _processor_s()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            shared = request.config.stash[_SHARED]
            shared[fixturedef] = shared.get(fixturedef, 0) + _processor_s() - began_s


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_BEGAN] = _processor_s(), sum(item.config.stash[_SHARED].values())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    if call.when == "teardown":
        shared = item.config.stash[_SHARED]
        began_s, shared_before_s = item.stash[_BEGAN]
        spent_s = _processor_s() - began_s
        own_s = spent_s - (sum(shared.values()) - shared_before_s)
        used = {each for defs in item._fixtureinfo.name2fixturedefs.values() for each in defs}
        function_s = own_s + sum(shared.get(each, 0) for each in used)
        item.user_properties.append((_PROPERTY, (function_s, spent_s)))


class _Recorder:
    """Gathers the times, also from the workers of pytest-xdist."""

    def __init__(self):
        self.times = {}
        self.total_s = 0

    def pytest_runtest_logreport(self, report):
        function_s, spent_s = dict(report.user_properties).get(_PROPERTY, (0, 0))
        name = _function(report.nodeid)
        self.times[name] = max(function_s, self.times.get(name, 0))
        self.total_s += spent_s

    def pytest_sessionfinish(self):
        times = {**_known(), **self.times}
        kept = {name: round(s, 1) for name, s in sorted(times.items()) if s > SLOW_S}
        FILE.write_text(json.dumps(kept, indent=0) + "\n")

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section(f"{self.total_s:.0f} s of processor time")
        for name, s in sorted(self.times.items(), key=lambda each: -each[1]):
            if s > SLOW_S:
                terminalreporter.line(f"{s:7.1f} s  {name}")
