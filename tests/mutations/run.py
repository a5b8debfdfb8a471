"""Makes small changes in src and in python/distdl, in a copy, and prints which of them no test finds.

``bash tests/commands.sh mutations [N] [--seed S] [--only TEXT] [TESTS...]`` makes N changes (200), half of them in C++.
It goes on where it was ended. ``--only`` tries those whose row has TEXT; with TESTS, by all cases of these files in
place of the tests that reach a change. A change of which a job fails, or does not end, is found.

mutmut and mull start a process for each change and test; here a test is a job of several ranks, which takes seconds to
start. So all changes of C++ are in one build, as switches (switch.hpp), and a run of all tests records which of them
reach which change (reaching.py). `equivalent.txt` has changes that no test can find, with the reasons below them.
"""

import argparse
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from changes import core_changes, package_changes

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]
WORK, TREE = ROOT / "build/mutations", ROOT / "build/mutations/tree"
SIZES = (2, 1, 3)  # of jobs, in the order in which they try a change
WITHOUT_TORCH = re.compile(r"src/(base|geometry|comm|agreement|operators/sum_route)")
PROGRAMS = {  # and their ranks
    "comm/test_vote": 3, "comm/test_vote_programs": 3, "comm/test_many_ranks": 66, "agreement/test_layer_call": 3,
    "comm/test_progress": 1, "operators/test_sum_route": 1}  # fmt: skip
# Jobs of tests/run.sh that see more of C++ than others: whether anything leaks, and small data beside votes.
OTHER_JOBS = (
    "mpiexec -n 2 env LD_PRELOAD=$PWD/observer.so python -m mpi4py -m pytest -qx process/leaks.py nn/votes.py",
    "DISTDL_HOSTS=several DISTDL_TEST_RANKS='2 3' mpiexec -n 3 python -m mpi4py -m pytest -qx "
    "misuse/test_{disagreements,misuse}.py primitives/test_{start_wait,sums}.py",
)


def sh(command, seconds=3600, **environment):
    """The exit status of a command in the copy, and what it says."""
    path = f"{HERE}:{TREE}/python:{os.environ.get('PYTHONPATH', '')}"
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "165", **environment}
    limited = ["timeout", "--kill-after=10", str(int(seconds)), "bash", "-c", command]
    ended = subprocess.run(limited, cwd=TREE, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


def copy():
    """The files that git knows or does not ignore; the sources of a build stay as they were built."""
    files = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, files.split("\0")):
        if (ROOT / name).exists() and not ((TREE / "built").exists() and name.startswith(("src/", "CMake"))):
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


def build(changes, count):
    """All changes of C++ in one build. Returns those that compile, as many as are asked for, and those of Python."""
    core = {i: change for i, change in enumerate(changes) if change[0].endswith(".cpp")}
    flags = f"-O1 -w -include {HERE}/switch.hpp"
    configure = (
        f"cmake -S . -G Ninja -DCMAKE_UNITY_BUILD=ON -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE={sys.executable} \
      -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF '-DCMAKE_CXX_FLAGS_RELEASE={flags}' -B"
    )
    wrong = [None]
    while wrong:
        for file in {change[0] for change in changes if change[0].endswith(".cpp")}:
            lines = (ROOT / file).read_text().splitlines()
            for i, (_, line, _, _, replaced) in ((i, change) for i, change in core.items() if change[0] == file):
                lines[line - 1] = replaced(i)
            (TREE / file).write_text("\n".join(lines) + "\n")
        status, said = sh(f"{configure} build && cmake --build build -- -k 0")
        places = {(file, int(line)) for file, line in re.findall(r"(src/[\w/]+\.cpp):(\d+):\d+: +(?:error|requ)", said)}
        wrong = [i for i, change in core.items() if change[:2] in places] if status else []
        assert status == 0 or wrong, said[-3000:]
        core = {i: change for i, change in core.items() if i not in wrong}
    mpi = f"mpicxx -std=c++20 {flags} -Isrc"
    status, said = sh(f"""set -e
      cp build/_core*.so build/_build_info.py python/distdl/
      {configure} geometry -DDISTDL_GEOMETRY_TESTS_ONLY=ON && cmake --build geometry
      {mpi} -shared -fPIC src/comm/*.cpp src/agreement/{{layer_call,operator_id,rank_set,traffic}}.cpp \
        src/operators/sum_route.cpp -o libparts.so
      mkdir -p programs
      for name in {" ".join(PROGRAMS)}; do
        {mpi} tests/cpp/$name.cpp $PWD/libparts.so -o programs/$(basename $name)
      done
      mpicxx -std=c++20 -O1 -shared -fPIC -Isrc tests/pmpi/observer.cpp -o observer.so
      touch built""")
    assert status == 0, said[-3000:]
    return [i for i, change in enumerate(changes) if change[0].endswith(".py") or i in [*core][: count // 2]]


def job(size, arguments, seconds, **environment):
    """The status of a job of pytest, and what it says."""
    pytest = f"python -m mpi4py -m pytest -q -p reaching -o faulthandler_timeout=120 {' '.join(arguments)}"
    # Every test, and a quarter of each table. On one rank, where tests that start jobs take turns, all of them.
    drawn = {"DISTDL_TEST_RANKS": str(size), **({"DISTDL_SEED": "mutations"} if size > 1 else {})}
    return sh(f"mpiexec -n {size} {pytest}", seconds, **drawn, **environment)


@functools.cache
def starts_jobs(file):
    """Whether tests of a file start jobs, of which nothing is recorded in Python."""
    return "support.jobs" in (TREE / file).read_text()


def record(size, changes):
    """For each change, the seconds of the tests that reach it in a job of this size, by name, the shortest first."""
    if not list(WORK.glob(f"reached.{size}.*")):
        said = job(size, [], 3600, MUTATIONS_RECORD=f"{WORK}/reached")[1].strip().splitlines()[-1:]
        print(f"recorded on {size} ranks: {said}", flush=True)
    reaching = defaultdict(dict)
    for path in WORK.glob(f"reached.{size}.*"):
        recorded = json.loads(path.read_text())
        tests, always = recorded["tests"], recorded["tests"].pop("")[1]
        for i, (file, line, last, *_) in changes.items():
            if file.endswith(".py"):
                covered = recorded["lines"].get(file, {})
                names = {name for at in range(line, last + 1) for name in covered.get(str(at), ())}
            else:
                names = tests if i in always else {name for name, (_, reached) in tests.items() if i in reached}
            if size == 1 and not names:  # a job that a test starts may reach it
                names = {name for name in tests if starts_jobs(name.partition("::")[0])}
            reaching[i].update({name: tests[name][0] for name in names if name in tests})
    for i, tests in reaching.items():  # two cases of each table
        ends = defaultdict(list)
        for name in sorted(tests, key=lambda name: (len(name), name)):
            ends[name.partition("[")[0]] = [*ends[name.partition("[")[0]][:1], name]
        reaching[i] = {
            name: tests[name] for name in sorted((name for few in ends.values() for name in few), key=tests.get)
        }
    return reaching


def finder(i, file, size, tests, files):
    """What finds a change on so many ranks: one of the tests that reach it, or of these files; None if nothing does."""
    switch = {"MUTATION": str(i)} if file.endswith(".cpp") else {}
    first = size == SIZES[0] and switch and not files
    if first and WITHOUT_TORCH.match(file):
        on_ranks = [f"mpiexec -n {ranks} programs/{Path(name).name}" for name, ranks in PROGRAMS.items()]
        for command in ("for test in geometry/test_*; do $test || exit 1; done", *on_ranks):
            if sh(command, 200, **switch)[0]:
                return command.rpartition("/")[2] if "mpiexec" in command else "geometry"
    if tests or files:
        (WORK / "tests.json").write_text(json.dumps(list(tests)))
        chosen = {} if files else {"MUTATIONS_TESTS": f"{WORK}/tests.json"}
        arguments = ["-x", *(["--whole", *files] if files else {name.partition("::")[0] for name in tests})]
        status, said = job(size, arguments, min(1200, 120 + 3 * sum(tests.values())), **switch, **chosen)
        if status not in (0, 5):  # 5: no test runs
            return f"{size} ranks, " + next(iter(re.findall(r"FAILED \S*/(\S+)", said)), f"status {status}")
    for command in OTHER_JOBS if first else ():
        if sh(
            f"tree=$PWD; cd tests/python; {command.replace('$PWD', '$tree')}", 300, DISTDL_SEED="mutations", **switch
        )[0]:
            return command.rpartition("/")[2]
    return None


def main():
    """Draw, build, record, try, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    drawn = draw(options.count, options.seed)
    state, of_these = WORK / "state.json", json.dumps([options.count, options.seed, [change[:4] for change in drawn]])
    saved = json.loads(state.read_text()) if state.exists() else {}
    if of_these != saved.get("of"):
        shutil.rmtree(WORK)
        copy()
        saved = {"of": of_these, "kept": list(build(drawn, options.count)), "found": []}
        state.write_text(json.dumps(saved))
    copy()
    equivalent = set((HERE / "equivalent.txt").read_text().splitlines())
    changes = {i: drawn[i] for i in saved["kept"] if f"{drawn[i][0]}  {drawn[i][3]}" not in equivalent}
    rows = {i: f"{file}:{line}  {description}" for i, (file, line, _, description, _) in changes.items()}
    left = [i for i in rows if options.only in rows[i] and i not in saved["found"]]
    random.Random(options.seed).shuffle(left)
    for size in SIZES:
        reaching = {} if options.tests else record(size, changes)
        for i in list(left):
            file, _, _, _, replaced = changes[i]
            if file.endswith(".py"):
                (TREE / file).write_text(replaced(i))
            by = finder(i, file, size, reaching.get(i, {}), options.tests)
            if file.endswith(".py"):
                shutil.copy2(ROOT / file, TREE / file)
            if by:
                left.remove(i)
                saved["found"].append(i)
                state.write_text(json.dumps(saved))
            print(f"{by or f'not found by {len(reaching.get(i, {}))} tests on {size} ranks'}\t{rows[i]}", flush=True)
    found = len(saved["found"])
    print(f"\n{found} of {len(rows)} changes are found. These are not:", *(rows[i] for i in left), sep="\n")


if __name__ == "__main__":
    main()
