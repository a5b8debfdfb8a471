"""A plugin of pytest: records which tests reach which changes, or runs the tests that reach one of them."""

import json
import mmap
import os
import tempfile
import time
from pathlib import Path

import pytest
from mpi4py import MPI

TREE, RECORD, TESTS = Path.cwd(), os.environ.get("MUTATIONS_RECORD"), os.environ.get("MUTATIONS_TESTS")
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

if RECORD:
    import coverage

    # Before the first import of distdl. Jobs that a test starts write into the file of the rank that starts them.
    shared = tempfile.NamedTemporaryFile()  # noqa: SIM115
    shared.truncate(1 << 16)
    os.environ["MUTATIONS_REACHED"] = shared.name
    reached = mmap.mmap(shared.fileno(), 1 << 16)
    lines = coverage.Coverage(data_file=None, config_file=False, include=[f"{TREE}/python/distdl/*"])
    lines.start()
    tests = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item):
        if not tests:  # what is reached by imports, every test reaches
            tests[""] = [0, [i for i, byte in enumerate(reached[:]) if byte]]
        lines.switch_context(item.nodeid)
        reached[:] = bytes(1 << 16)
        start = time.perf_counter()
        yield
        tests[item.nodeid] = [time.perf_counter() - start, [i for i, byte in enumerate(reached[:]) if byte]]
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure():
        lines.stop()
        data = lines.get_data()
        files = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
        named = {str(Path(file).relative_to(TREE)): covered for file, covered in files.items()}
        Path(f"{RECORD}.{size}.{rank}").write_text(json.dumps({"tests": tests, "lines": named}))


if TESTS:
    order = {name: place for place, name in enumerate(json.loads(Path(TESTS).read_text()))}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(items):
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
