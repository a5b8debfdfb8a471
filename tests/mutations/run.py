"""Makes small changes in src and in python/distdl, in a copy, and prints which of them no test finds.

``bash tests/commands.sh mutations [N] [--seed S] [--only TEXT] [TESTS...]``: N changes (200), half of them in C++. With
``--only``, those whose row has TEXT, and with TESTS, by these files in place of the tests that reach a change.
mutmut and mull start one process for each test and change; here a test is a job of several ranks, which takes seconds
to start. So all changes of C++ are in one build, as switches (switch.hpp), and a run of all tests records which of them
reach which change (reaching.py). A change of which a job fails, or does not end, is found. `equivalent.txt` lists
changes that change nothing, with reasons.
"""

import argparse
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
SIZES = (2, 3, 1)  # of jobs, in the order in which they try a change
WITHOUT_PYTHON = re.compile(r"src/(base|geometry|comm|agreement|operators/sum_route)")  # what programs of C++ test
SWITCH = f"-O1 -include {HERE}/switch.hpp"


def sh(command, seconds=3600, **environment):
    """The exit status of a command in the copy, and what it says."""
    path = f"{HERE}:{TREE}/python:{os.environ.get('PYTHONPATH', '')}"
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "165", **environment}
    ended = subprocess.run(["timeout", "--kill-after=10", str(int(seconds)), "bash", "-c", command], cwd=TREE, text=True,
                           env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


def copy():
    """The files that git knows or does not ignore."""
    files = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, files.split("\0")):
        if not (TREE / "built").exists() or not name.startswith(("src/", "CMake")):
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
    configure = f"cmake -S . -B build -G Ninja -DCMAKE_UNITY_BUILD=ON -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF '-DCMAKE_CXX_FLAGS_RELEASE={SWITCH} -w' -DPython_EXECUTABLE={sys.executable}"
    geometry = configure.replace("-B build", "-B programs") + " -DDISTDL_GEOMETRY_TESTS_ONLY=ON"
    compiled = f"mpicxx -std=c++20 -w {SWITCH} -Isrc tests/cpp"
    while True:
        for file in {change[0] for change in changes if change[0].endswith(".cpp")}:
            lines = (ROOT / file).read_text().splitlines()
            for i, change in core.items():
                if change[0] == file:
                    lines[change[1] - 1] = change[4](i)
            (TREE / file).write_text("\n".join(lines) + "\n")
        status, said = sh(f"{configure} && cmake --build build -- -k 0")
        lines = {(file, int(line)) for file, line in re.findall(r"(src/[\w/]+\.cpp):(\d+):\d+: +(?:error|required)", said)}
        wrong = [i for i, change in core.items() if (change[0], change[1]) in lines]
        print(f"{len(core)} changes of C++, {len(wrong)} of which do not compile", flush=True)
        if status == 0:
            break
        assert wrong, said[-3000:]
        for i in wrong:
            del core[i]
    status, said = sh(f"""cp build/_core*.so build/_build_info.py python/distdl/ && {geometry} && cmake --build programs &&
      {compiled}/comm/test_progress.cpp src/comm/*.cpp -o programs/progress && {compiled}/comm/test_vote.cpp \
      src/comm/*.cpp -o programs/vote && {compiled}/operators/test_sum_route.cpp src/operators/sum_route.cpp \
      -o programs/sum_route && {compiled}/agreement/test_layer_call.cpp src/comm/*.cpp \
      src/agreement/{{layer_call,operator_id,rank_set,traffic}}.cpp -o programs/layer_call && touch built""")
    assert status == 0, said[-3000:]
    return {i: change for i, change in enumerate(changes) if i in list(core)[: count // 2] or i not in core and
            change[0].endswith(".py")}  # fmt: skip


def job(size, arguments, seconds, **environment):
    """The status of a job of pytest, and what it says."""
    pytest = f"python -m mpi4py -m pytest -q -p reaching -o faulthandler_timeout=120 {' '.join(arguments)}"
    seed = {"DISTDL_SEED": "mutations", "DISTDL_TEST_RANKS": str(size)}  # every test, and a quarter of each table
    return sh(f"mpiexec -n {size} {pytest}", seconds, **seed, **environment)


def record(size, changes):
    """For each change, the seconds of the tests that pass in a job of this size and reach it, by name."""
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
            reaching[i].update({name: tests[name][0] for name in names if name in tests})
    return reaching


def finder(i, file, size, tests, files):
    """What finds a change on so many ranks: one of the tests that reach it, the shortest first, or of some files."""
    switch = {"MUTATION": str(i)} if file.endswith(".cpp") else {}
    if switch and WITHOUT_PYTHON.match(file) and size == SIZES[0] and not files:
        on_ranks = "for p in vote layer_call; do mpiexec -n 3 programs/$p || exit 1; done"
        if sh(f"for p in programs/{{test_*,progress,sum_route}}; do $p || exit 1; done; {on_ranks}", 120, **switch)[0]:
            return "a program of C++"
    if not tests and not files:
        return None
    (WORK / "tests.json").write_text(json.dumps(sorted(tests, key=tests.get)))
    chosen = {} if files else {"MUTATIONS_TESTS": f"{WORK}/tests.json"}
    seconds = min(1200, 120 + 3 * sum(tests.values()))
    status, said = job(size, ["-x", *(files or {name.partition("::")[0] for name in tests})], seconds, **switch, **chosen)
    if status in (0, 5):  # 5: no test runs
        return None
    return f"{size} ranks, " + next(iter(re.findall(r"FAILED \S*/(\S+)", said)), f"status {status}")


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
        saved = {"of": of_these, "kept": list(build(drawn, options.count))}
        state.write_text(json.dumps(saved))
    copy()
    equivalent = set((HERE / "equivalent.txt").read_text().splitlines())
    changes = {i: drawn[i] for i in saved["kept"] if f"{drawn[i][0]}  {drawn[i][3]}" not in equivalent}
    rows = {i: f"{file}:{line}  {description}" for i, (file, line, _, description, _) in changes.items()}
    left = [i for i, row in rows.items() if options.only in row]
    random.Random(options.seed).shuffle(left)
    tried = len(left)
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
            print(f"{by or f'not found by {len(reaching.get(i, {}))} tests on {size} ranks'}\t{rows[i]}", flush=True)
    print(f"\n{tried - len(left)} of {tried} changes are found. These are not:", *(rows[i] for i in left), sep="\n")


if __name__ == "__main__":
    main()
