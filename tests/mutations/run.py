"""Makes small changes in src and in python/distdl, in a copy, and prints which of them no test finds.

``bash tests/commands.sh mutations [N] [--seed S] [--only TEXT] [--ranks N...] [TESTS...]`` makes N changes (200), half
of them in C++. It goes on where it was ended. ``--only`` tries those whose row has TEXT; ``--ranks`` names the sizes of
the jobs; with TESTS, by all cases of these files. A change with which a test fails, or does not end, is found.

mutmut and mull start a process for each change and test; here a test is a job of several ranks, which takes seconds to
start. So all changes are switches in one copy (switch.hpp, switched.py), and a job that has run a test runs it again
for each change that the test has reached and no test has found (trying.py). Those left, and those that are reached by
imports alone, are then tried in processes that begin with them. `equivalent.txt` has changes that no test can find,
with the reasons below them.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from changes import core_changes, package_changes

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]
WORK, TREE = ROOT / "build/mutations", ROOT / "build/mutations/tree"
PROGRAMS = {  # and their ranks
    "comm/test_vote": 3, "comm/test_vote_programs": 3, "comm/test_many_ranks": 66, "agreement/test_layer_call": 3,
    "comm/test_progress": 1, "operators/test_sum_route": 1}  # fmt: skip
# A condition makes a temporary of what is returned by reference, if its change has another type.
FLAGS = f"-O1 -Werror=return-local-addr -include {HERE}/switch.hpp"
CONFIGURE = (
    f"cmake -S . -G Ninja -DCMAKE_UNITY_BUILD=ON -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE={sys.executable} "
    f"-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF '-DCMAKE_CXX_FLAGS_RELEASE={FLAGS}' -B"
)
# Jobs of tests/run.sh that see more of C++ than others: whether anything leaks, small data beside votes, and a device.
OTHER_JOBS = (
    "mpiexec -n 2 env LD_PRELOAD=$PWD/../../observer.so python -m mpi4py -m pytest -qx process/leaks.py nn/votes.py",
    "DISTDL_HOSTS=several DISTDL_TEST_RANKS='2 3' mpiexec -n 3 python -m mpi4py -m pytest -qx "
    "misuse/test_{disagreements,misuse}.py primitives/test_{start_wait,sums}.py",
    "DISTDL_TEST_DEVICE=lagging mpiexec -n 2 python -m mpi4py -m pytest -qx device/test_primitives.py",
)


def sh(command, seconds=3600, **environment):
    """The exit status of a command in the copy, and what it says."""
    path = f"{HERE}:{TREE}/python:{os.environ.get('PYTHONPATH', '')}"
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "165", **environment}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(
        ["bash", "-c", command], cwd=TREE, env=variables, text=True, start_new_session=True, **pipes
    ) as job:
        try:
            said, _ = job.communicate(timeout=seconds)
            return job.returncode, said
        except subprocess.TimeoutExpired:
            return 124, ""
        finally:  # whatever ends this command ends what it started
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(job.pid, number)
                    job.wait(10)


def copy():
    """The files that git knows or does not ignore; the sources of a build stay as they were built."""
    files = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    begun = (TREE / "src").exists()
    for name in filter(None, files.split("\0")):
        if (ROOT / name).exists() and not (begun and name.startswith(("src/", "CMake"))):
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name)


def draw(count, seed):
    """Changes in distinct lines, half of them in each language, with as many again in C++ as may not compile."""
    drawn, chance = [], random.Random(seed)
    for folder, ending, changes_in, number in (
        ("src", "cpp", core_changes, count), ("python/distdl", "py", package_changes, count - count // 2)):  # fmt: skip
        by_line = defaultdict(list)
        for path in sorted((ROOT / folder).rglob(f"*.{ending}")):
            for change in changes_in(path.read_text()):
                by_line[str(path.relative_to(ROOT)), change[0]].append(change)
        drawn += [(file, *chance.choice(by_line[file, line]))
                  for file, line in chance.sample(sorted(by_line), min(number, len(by_line)))]  # fmt: skip
    return drawn


def build(changes, count, wrong, save):
    """All changes of C++ in one build. Returns those that compile, as many as are asked for, and those of Python."""
    status = 1
    while status:
        core = {i: change for i, change in enumerate(changes) if change[0].endswith(".cpp") and i not in wrong}
        for file in {change[0] for change in changes if change[0].endswith(".cpp")}:
            lines = (ROOT / file).read_text().splitlines()
            for i, (_, line, _, _, replaced) in ((i, change) for i, change in core.items() if change[0] == file):
                lines[line - 1] = replaced(i)
            if (TREE / file).read_text().splitlines() != lines:
                (TREE / file).write_text("\n".join(lines) + "\n")
        status, said = sh(f"{CONFIGURE} build && cmake --build build -- -k 0", 36000)
        if status == 0:
            sh("cp build/_core*.so build/_build_info.py python/distdl/")
        places = {(file, int(line)) for file, line in re.findall(r"(src/[\w/]+\.cpp):(\d+):\d+: +(?:error|requ)", said)}
        found = [i for i, change in core.items() if change[:2] in places]
        assert status == 0 or found, said[-3000:]
        wrong += found if status else []
        save()
    return [i for i, change in enumerate(changes) if change[0].endswith(".py") or i in [*core][: count // 2]]


def build_programs():
    """What tests C++ without torch, as far as it has changed."""
    status, said = sh(f"""set -e
      {CONFIGURE} geometry -DDISTDL_GEOMETRY_TESTS_ONLY=ON && cmake --build geometry
      mpi="mpicxx -std=c++20 {FLAGS} -Isrc"
      mkdir -p programs
      parts="src/comm/*.cpp src/agreement/{{layer_call,operator_id,rank_set,traffic}}.cpp src/operators/sum_route.cpp"
      [ -e libparts.so ] || eval $mpi -shared -fPIC $parts -o libparts.so
      for name in {" ".join(PROGRAMS)}; do
        program=programs/${{name#*/}}
        [ $program -nt tests/cpp/$name.cpp ] || $mpi tests/cpp/$name.cpp $PWD/libparts.so -o $program
      done
      mpicxx -std=c++20 -O1 -shared -fPIC -Isrc tests/pmpi/observer.cpp -o observer.so
      python tests/device/build.py""")
    assert status == 0, said[-3000:]


def job(size, arguments, seconds, **environment):
    """The status of a job of pytest, and what it says."""
    pytest = f"python -m mpi4py -m pytest -q -o faulthandler_timeout=0 {' '.join(arguments)}"
    # Every test, and a share of each table. On one rank, where tests that start jobs take turns, all of them.
    drawn = {"DISTDL_TEST_RANKS": str(size), **({"DISTDL_SEED": "mutations"} if size > 1 else {})}
    return sh(f"mpiexec -n {size} {pytest}", seconds, **drawn, **environment)


def rows_of(log):
    """What the jobs wrote: lists of a kind, a test, and mostly a change."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def found():
    """What finds each change that is found."""
    return {row[2]: row[1] for log in WORK.glob("log.*") for row in rows_of(log) if row[0] == "found"}


def write(log, *row):
    with log.open("a") as file:
        file.write(json.dumps(row) + "\n")


def try_in_programs(left):
    """The programs that test C++ without torch, each with every change that it reaches."""
    programs = [f"mpiexec -n {ranks} programs/{Path(name).name}" for name, ranks in PROGRAMS.items()]
    for command in [*(f"geometry/{path.name}" for path in sorted(TREE.glob("geometry/test_*"))), *programs]:
        file = WORK / "reached"
        file.write_bytes((-1).to_bytes(4, sys.byteorder, signed=True).ljust(1 << 16, b"\0"))
        start = time.monotonic()
        status, said = sh(command, 600, MUTATIONS_FILE=str(file))
        assert status == 0, said[-3000:]
        seconds, reached = 20 + 5 * (time.monotonic() - start), file.read_bytes()[4:]
        for i in left():
            if reached[i]:
                status, _ = sh(command, seconds, MUTATION=str(i))
                if status == 124:  # perhaps because of other processes
                    status, _ = sh(command, 2 * seconds, MUTATION=str(i))
                if status:
                    write(WORK / "log.programs", "found", command, i)


def try_in_tests(size, left, arguments, **environment):
    """Each test, then again with each change that it reaches, in as few jobs as these allow."""
    log, without_progress = WORK / f"log.{size}", 0
    while without_progress < 3:
        before, wanted = len(rows_of(log)), json.dumps([i for i in left if i not in found()])
        options = {"MUTATIONS_LOG": str(log), "MUTATIONS_WANTED": wanted, "MUTATIONS_SECONDS": "15", **environment}
        status, said = job(size, ["-p trying", *arguments], 36000, **options)
        rows = rows_of(log)
        if rows and rows[-1][0] == "try":
            # What takes too long may do so because of other processes: what ends a job is tried twice.
            _, test, change = rows[-1]
            is_found = ["ends", test, change] in rows
            write(log, *(("found", f"{test}, which does not end") if is_found else ("ends", test)), change)
        elif status in (0, 1, 5):
            return
        without_progress = 0 if len(rows) > before + 1 else without_progress + 1
    print(said[-2000:])


def finder(i, file):
    """What finds a change that is there before the first import; None if nothing does."""
    tests = [
        row[1] for log in WORK.glob("log.*") for row in rows_of(log) if row[0] in ("survived", "missed") and row[2] == i
    ]
    few = {test.partition("::")[0] for test in tests[:5]} or {
        "tests/python/partitions",
        "tests/python/nn/test_linear.py",
    }
    status, said = job(2, ["-x", *sorted(few)], 600, MUTATION=str(i))
    if status not in (0, 5):  # 5: no test runs
        return next(iter(re.findall(r"FAILED (\S+)", said)), f"status {status}")
    if not file.endswith(".cpp"):
        return None
    for command in OTHER_JOBS:
        if sh(f"cd tests/python; {command}", 600, DISTDL_SEED="mutations", MUTATION=str(i))[0]:
            return command.rpartition("/")[2]
    return None


def words(path):
    """The beginnings of the words of a path."""
    return {word[:4] for word in re.findall("[a-z]+", path.rpartition(".")[0])} - {"test", "pyth", "dist", "src"}


def main():
    """Draw, build, try, and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", default="")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 1, 3])
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    drawn = draw(options.count, options.seed)
    state, of_these = WORK / "state.json", json.dumps([options.count, options.seed, [change[:4] for change in drawn]])
    saved = json.loads(state.read_text()) if state.exists() else {}
    if of_these != saved.get("of"):
        shutil.rmtree(WORK)
        saved = {"of": of_these, "wrong": []}
    copy()
    if "kept" not in saved:
        saved["kept"] = build(drawn, options.count, saved["wrong"], lambda: state.write_text(json.dumps(saved)))
        state.write_text(json.dumps(saved))
    build_programs()
    for i in saved["kept"]:
        file, *_, source_with = drawn[i]
        if file.endswith(".py"):
            (TREE / file).write_text(source_with(i))
    equivalent = (HERE / "equivalent.txt").read_text().splitlines()
    rows = {
        i: f"{file}:{line}  {description}"
        for i, (file, line, _, description, _) in ((i, drawn[i]) for i in saved["kept"])
        if description and f"{file}  {description}" not in equivalent  # without one, it is of no use
    }

    def left():
        return [i for i in rows if options.only in rows[i] and i not in found()]

    tests = ["--whole", *options.tests] if options.tests else []
    paths = (path for path in TREE.glob("tests/python/**/test_*.py") if path.parent.name != "device")
    files = sorted(str(path.relative_to(TREE)) for path in paths)
    near = {max(files, key=lambda file, i=i: len(words(file) & words(drawn[i][0]))) for i in rows}
    # First those that are named as a changed file is, or that find most in a second.
    files.sort(key=lambda file: (file not in near and "primitives" not in file, "compile" in file))
    if not tests:
        try_in_programs(left)
    for size in options.ranks:
        for begin in range(0, 1 if tests else len(files), 8):
            cases = {"MUTATIONS_CASES": "1000"} if tests else {}
            try_in_tests(size, left(), tests or files[begin : begin + 8], **cases)
            print(f"{len(found().keys() & rows)} of {len(rows)} are found", flush=True)
    for i in [] if tests else left():
        if by := finder(i, drawn[i][0]):
            write(WORK / "log.start", "found", by, i)
    print(
        f"\n{len(found().keys() & rows)} of {len(rows)} changes are found. These are not:",
        *map(rows.get, left()),
        sep="\n",
    )


if __name__ == "__main__":
    main()
