"""The options of the programs of this folder."""

import argparse
import sys
from pathlib import Path

import torch


def settings(**numbers):
    """The options of a program with their default numbers, and the paths of its files."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/programs"), help="of the data and the checkpoints")
    parser.add_argument("--double", action="store_true", help="compute in float64, without mixed precision")
    for option, default in numbers.items():
        parser.add_argument(f"--{option}", type=int, default=default, help="number")
    chosen = parser.parse_args()
    chosen.dtype = torch.float64 if chosen.double else torch.float32
    chosen.folder.mkdir(parents=True, exist_ok=True)
    program = Path(sys.argv[0]).stem
    chosen.checkpoint, chosen.export, chosen.forecasts = (
        chosen.folder / f"{program}.{end}" for end in ("checkpoint", "safetensors", "zarr")
    )
    return chosen
