"""Checks that each folder of src includes only what its place in the order allows."""

import re
import sys
from pathlib import Path

# From the lowest folder to the highest: each may include itself and those before it.
FOLDERS = ["base", "geometry", "comm", "kernels", "agreement", "operators", "autograd", "bindings"]
# The first folder that may include a library. All folders may include the standard library and the system's headers.
LIBRARIES = {
    r"mpi\.h": "comm",
    r"(torch|ATen|c10|caffe2)/": "kernels",
    r"(pybind11/|mpi4py/|Python\.h|torch/extension\.h|torch/python\.h)": "bindings",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def problems(source: Path) -> list[str]:
    """The includes of a file that its folder may not have."""
    place = FOLDERS.index(source.parts[1])
    errors = []
    for included in INCLUDE.findall(source.read_text()):
        needs = [FOLDERS.index(folder) for pattern, folder in LIBRARIES.items() if re.match(pattern, included)]
        if (folder := included.split("/")[0]) in FOLDERS:
            needs.append(FOLDERS.index(folder))
        if max(needs, default=0) > place:
            errors.append(f"{source}: may not include {included}, which is for {FOLDERS[max(needs)]} and above")
    return errors


def main() -> int:
    """Prints the problems of all files; 1 if there are any."""
    errors = [problem for source in sorted(Path("src").glob("*/*.[ch]pp")) for problem in problems(source)]
    print(*errors, sep="\n", end="\n" if errors else "")
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
