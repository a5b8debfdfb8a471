"""The table of misuses: models in one call, and whole tensors of one rank."""

import torch
from torchmetrics import MeanMetric

import distdl
from support.misuses.table import Row, Wrong, grid_of, not_a_further_partition, not_a_partition
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
        "input_partitions": [
            Wrong([3], TypeError, "input_partitions is a list"),
            Wrong({"input": "rows"}, TypeError, "input_partitions.* is a str"),
            Wrong({"inputs": None}, ValueError, "the key 'inputs'"),
            Wrong({"input": [99]}, ValueError, "P_x has"),
        ],
        "values": [Wrong("ask", ValueError, "values='ask'"), Wrong(True, ValueError, "values=True")],
        "halos": [Wrong("all", ValueError, "halos='all'"), Wrong(2, ValueError, "halos=2")],
    }
    another = {
        "fallback": "gather", "as_sequential": True, "input_partitions": {"input": None}, "values": "agree",
        "halos": "chain",
    }  # fmt: skip
    roots = [Wrong(-1, ValueError, "root=-1"), Wrong(99, ValueError, "root=99"), Wrong("a", TypeError, "str")]
    return {
        "distribute": Row(
            distdl.distribute,
            lambda P: {"model": torch.nn.Linear(2, 2), "P_x": split(P)},
            wrong | {"model": no_module},
            another,
        ),
        "DistributedModel": Row(
            distdl.DistributedModel,
            lambda P: {"module": torch.nn.Linear(2, 2), "P_x": split(P)},
            wrong | {"module": no_module},
            another,
        ),
        "plans": Row(
            distdl.plans,
            lambda P: {"model": torch.nn.Linear(2, 2), "P_world": P, "input_shape": (4, 2)},
            {
                "model": [Wrong(3, TypeError, "torch.nn.Module")],
                "P_world": [
                    wrong for wrong in not_a_partition() if not isinstance(wrong.value, list | torch.Tensor | None)
                ],
                "input_shape": [Wrong("2x2", ValueError, "input_shape"), Wrong((4, -2), ValueError, "-2")],
                "most": [Wrong(0, ValueError, "most=0"), Wrong("a", ValueError, "most='a'")],
                "ranks": [Wrong(2, ValueError, "pass P_world or ranks")],
                "machine": [Wrong("laptop", TypeError, "distdl.Machine")],
                "optimizer": [Wrong("adamant", ValueError, "adamant"), Wrong(-1, ValueError, "-1")],
            },
            {"input_shape": (2, 2), "most": 3},
        ),
        "plans without ranks": Row(
            distdl.plans,
            lambda P: {"model": torch.nn.Linear(2, 2), "shape": (4, 2), "ranks": 6, "machine": distdl.Machine()},
            {
                "ranks": [Wrong(0, ValueError, "ranks=0"), Wrong("6", ValueError, "ranks='6'")],
                "shape": [Wrong("2x2", ValueError, "2x2"), Wrong((4, -2), ValueError, "-2")],
            },
            alone=True,
        ),
        "Machine": Row(
            distdl.Machine,
            lambda P: {"ranks_per_node": 4},
            {
                **{
                    name: [Wrong(0, ValueError, f"{name}=0"), Wrong("fast", ValueError, name)]
                    for name in (
                        "memory",
                        "ranks_per_node",
                        "flops",
                        "memory_bandwidth",
                        "bandwidth",
                        "latency",
                        "node_bandwidth",
                        "node_latency",
                        "call",
                    )
                },
            },
            free=("speeds",),
            alone=True,
        ),
        "scatter": Row(
            distdl.scatter,
            lambda P: {"x": torch.ones(4, 2), "P_x": split(P)},
            {"x": [Wrong("x", TypeError, "torch.Tensor")], "P_x": not_a_further_partition(), "root": roots},
        ),
        "gather": Row(
            distdl.gather,
            lambda P: {"y": torch.ones(1, 2), "P_y": split(P)},
            {
                "P_y": [Wrong([], TypeError, "0 partitions"), Wrong(3, TypeError, "0 partitions")],
                "root": roots,
                "y": [Wrong(None, TypeError, "0 tensors")],
            },
        ),
        "report": Row(distdl.report, called, {"model": [Wrong(3, TypeError, "distdl.distribute")]}, alone=True),
        "report as planned": Row(
            distdl.report,
            lambda P: {"model": torch.nn.Linear(2, 2), "P_x": [2, 1], "shape": (4, 2)},
            {
                "P_x": [Wrong("2x1", ValueError, "P_x='2x1'")],
                "shape": [Wrong("4x2", ValueError, "shape")],
                "plan": [Wrong(3, TypeError, "plan is a int")],
                "fallback": [Wrong("no", ValueError, "fallback")],
                "optimizer": [Wrong("adamant", ValueError, "adamant")],
                "halos": [Wrong("all", ValueError, "halos")],
            },
            alone=True,
        ),
        "sync_metric": Row(
            distdl.sync_metric,
            lambda P: {"metric": MeanMetric(), "P": P},
            {"metric": [Wrong(3, TypeError, "metric of torchmetrics")], "P": not_a_partition()},
        ),
    }
