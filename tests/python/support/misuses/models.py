"""The table of misuses: models in one call, and whole tensors of one rank."""

import torch

import distdl
from support.misuses.table import Row, Wrong, grid_of, not_a_partition
from support.ranks import job


def rows() -> dict[str, Row]:
    """By public name."""

    def split(P):
        return grid_of(P, 2).create_cartesian_topology_partition([job.size, 1])

    def called(P):
        model = distdl.distribute(torch.nn.ReLU(), split(P))
        model(torch.ones(1, 2))
        return {"model": model}

    no_module = [Wrong(3, TypeError, "torch.nn.Module")]
    wrong = {
        "P_x": not_a_partition(),
        "fallback": [Wrong("no", ValueError, "fallback")],
        "plan": [
            Wrong(3, TypeError, "plan is a int"),
            Wrong({"": 3}, TypeError, "distdl.Partition"),
        ],
        "as_sequential": [Wrong(1, TypeError, "as_sequential=1")],
    }
    roots = [Wrong(-1, ValueError, "root=-1"), Wrong(99, ValueError, "root=99"), Wrong("a", TypeError, "str")]
    return {
        "distribute": Row(
            distdl.distribute,
            lambda P: {"model": torch.nn.Linear(2, 2), "P_x": split(P)},
            wrong | {"model": no_module},
            {"fallback": "gather", "as_sequential": True},
        ),
        "DistributedModel": Row(
            distdl.DistributedModel,
            lambda P: {"module": torch.nn.Linear(2, 2), "P_x": split(P)},
            wrong | {"module": no_module},
            {"fallback": "gather", "as_sequential": True},
        ),
        "plans": Row(
            distdl.plans,
            lambda P: {"model": torch.nn.Linear(2, 2), "P_world": P, "input_shape": (4, 2)},
            {
                "model": [Wrong(3, TypeError, "torch.nn.Module")],
                "P_world": not_a_partition(),
                "input_shape": [Wrong("2x2", ValueError, "input_shape"), Wrong((4, -2), ValueError, "-2")],
                "most": [Wrong(0, ValueError, "most=0"), Wrong("a", ValueError, "most='a'")],
            },
            {"input_shape": (2, 2), "most": 3},
        ),
        "scatter": Row(
            distdl.scatter,
            lambda P: {"x": torch.ones(4, 2), "P_x": split(P)},
            {"x": [Wrong("x", TypeError, "torch.Tensor")], "P_x": not_a_partition(), "root": roots},
        ),
        "gather": Row(
            distdl.gather,
            lambda P: {"y": torch.ones(1, 2), "P_y": split(P)},
            {
                "P_y": [Wrong(None, TypeError, "0 partitions")],
                "root": roots,
                "y": [Wrong(None, TypeError, "0 tensors")],
            },
        ),
        "report": Row(distdl.report, called, {"model": [Wrong(3, TypeError, "distdl.distribute")]}, alone=True),
    }
