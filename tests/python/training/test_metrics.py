"""Metrics of torchmetrics on blocks are those of one process."""

import warnings

import numpy as np
import pytest
import torch

import distdl
from support.ranks import job, raises_everywhere

torchmetrics = pytest.importorskip("torchmetrics")

from torchmetrics.classification import BinaryAUROC, MulticlassJaccardIndex  # noqa: E402
from torchmetrics.segmentation import DiceScore, MeanIoU  # noqa: E402

CLASSES = 3
# The last batch has a single sample.
SCORES = [torch.randn(n, CLASSES, 5, 6, generator=torch.Generator().manual_seed(n)) for n in (4, 2, 1)]
TARGETS = [torch.randint(CLASSES, (n, 5, 6), generator=torch.Generator().manual_seed(n)) for n in (4, 2, 1)]


def partitions(P_world):
    """Cuts of samples, and of rows and columns, with ranks outside and empty blocks."""
    for cuts in ((job.size, 1, 1), (1, job.size, 1), (1, 1, max(1, job.size - 1)), (2, 1, job.size // 2)):
        n, rows, columns = cuts if job.size > 1 else (1, 1, 1)
        P_y = P_world.create_cartesian_topology_partition([n, 1, rows, columns])
        yield P_y, P_world.create_cartesian_topology_partition([n, rows, columns])


def read(whole, P):
    return distdl.data.read_block(whole, P)


SEGMENTATION = {
    "IoU": (lambda: MulticlassJaccardIndex(CLASSES, average=None), lambda y: y.argmax(1)),
    "IoU of scores": (lambda: MulticlassJaccardIndex(CLASSES, ignore_index=0), lambda y: y),
    "Dice": (lambda: DiceScore(CLASSES, input_format="index", aggregation_level="global"), lambda y: y.argmax(1)),
    "AUROC": (BinaryAUROC, lambda y: y[:, 0].sigmoid()),
    "several": (
        lambda: torchmetrics.MetricCollection(
            [MulticlassJaccardIndex(CLASSES), torchmetrics.Accuracy("multiclass", num_classes=CLASSES)],
            compute_groups=False,
        ),
        lambda y: y,
    ),
}


@pytest.mark.parametrize(("make", "predict"), SEGMENTATION.values(), ids=SEGMENTATION)
def test_segmentation(P_world, make, predict):
    """The value of each batch and that of all batches, twice."""
    binary = make is BinaryAUROC
    for P_y, P_t in partitions(P_world):
        whole, metric = make(), distdl.sync_metric(make(), P_y)
        for _ in range(2):
            for y, t in zip(SCORES, TARGETS, strict=True):
                target = (t == 0).long() if binary else t
                prediction = predict(y)
                P = P_y if prediction.dim() == 4 else P_t
                value = metric(read(prediction, P), read(target, P_t))
                torch.testing.assert_close(value, whole(prediction, target))
            torch.testing.assert_close(metric.compute(), whole.compute())
            metric.reset()
            whole.reset()


def test_rmse_weighted_by_latitude(P_world):
    """Each element counts by the cosine of its latitude."""
    latitudes = torch.linspace(-80, 80, 5).deg2rad().cos()[:, None].expand(5, 6)
    for P_y, P_t in partitions(P_world):
        P_map = P_world.create_cartesian_topology_partition(P_t.shape[1:])
        metric = distdl.sync_metric(torchmetrics.MeanMetric(), P_y)
        if P_y.shape[0] == 1:
            weights = read(latitudes, P_map)
            for y in SCORES:
                block = read(y, P_y)
                metric.update(block.square(), weights)
            errors = np.concatenate([y.numpy().astype("f8") for y in SCORES])
            expected = np.sqrt(np.average(errors**2, weights=np.broadcast_to(latitudes, errors.shape)))
            np.testing.assert_allclose(metric.compute().sqrt(), expected, rtol=1e-6)


@pytest.mark.ranks(1, 2, 3)
def test_metrics_of_whole_samples(P_world):
    """The blocks go to a partition of samples first."""
    P_rows = P_world.create_cartesian_topology_partition([1, job.size, 1])
    P_samples = P_world.create_cartesian_topology_partition([job.size, 1, 1])
    make = lambda: MeanIoU(CLASSES, input_format="index")  # noqa: E731
    whole, metric = make(), distdl.sync_metric(make(), P_samples)
    for y, t in zip(SCORES, TARGETS, strict=True):
        blocks = [distdl.functional.repartition(read(x, P_rows), P_rows, P_samples) for x in (y.argmax(1), t)]
        metric.update(*blocks)
        whole.update(y.argmax(1), t)
    torch.testing.assert_close(metric.compute(), whole.compute())


@pytest.mark.ranks(1, 2)
def test_mistakes_are_raised_everywhere(P_world):
    last = job.rank == job.size - 1

    def sync(metric, P=P_world):
        return lambda: distdl.sync_metric(metric, P)

    other = torch.nn.Linear(2, 2) if last else torchmetrics.MeanMetric()
    raises_everywhere(TypeError, "has to be a metric of torchmetrics", sync(other))
    raises_everywhere(TypeError, "metric is a int", sync(3))
    raises_everywhere(TypeError, "P is a str", sync(torchmetrics.MeanMetric(), "P"))
    groups = torchmetrics.MetricCollection([torchmetrics.MeanMetric()])
    raises_everywhere(ValueError, "compute_groups=False", sync(groups))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert distdl.sync_metric(torchmetrics.MeanMetric(), P_world).compute().isnan()
