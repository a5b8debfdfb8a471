"""Segment images with Lightning, split over the rows of the images by every rank.

mpiexec -n 2 python -m mpi4py examples/lightning/train.py

``--one`` trains in one process, without distdl's strategy, and prints the same losses.
"""

import argparse
from pathlib import Path

import lightning
import torch
from torch.nn import functional

import distdl
import distdl.lightning


class Segmentation(lightning.LightningModule):
    """A small U-shaped network, written for one process."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(1, channels, 3, padding=1),
            torch.nn.BatchNorm2d(channels),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(channels, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Upsample(scale_factor=2, mode="bilinear"),
            torch.nn.Conv2d(channels, 1, 1),
        )
        self.loss_of = functional.binary_cross_entropy_with_logits

    def training_step(self, batch, number):
        images, masks = batch
        loss = self.loss_of(self.net(images), masks)
        self.log("loss", loss, prog_bar=True, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, number):
        images, masks = batch
        self.log("validation", self.loss_of(self.net(images), masks))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)}


class Discs(torch.utils.data.Dataset):
    """Noisy images of discs, and their masks."""

    def __init__(self, count: int, size: int = 32) -> None:
        draw = torch.Generator().manual_seed(0)
        y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        centers = size * torch.rand(count, 2, 1, 1, generator=draw)
        discs = (x - centers[:, 0]) ** 2 + (y - centers[:, 1]) ** 2 < (size / 4) ** 2
        self.masks = discs.unsqueeze(1).double()
        self.images = self.masks + 0.3 * torch.randn(self.masks.shape, generator=draw).double()

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, i: int):
        return self.images[i], self.masks[i]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", action="store_true", help="train in one process")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("build/lightning"))
    parser.add_argument("--checkpoint", help="a file from which to go on")
    chosen = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    module, discs = Segmentation().double(), Discs(16)
    training, validation = torch.utils.data.random_split(discs, [12, 4])
    if chosen.one:
        options = {}
        loaders = [torch.utils.data.DataLoader(data, batch_size=4) for data in (training, validation)]
    else:
        P_world = distdl.Partition()
        P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size, 1])
        module.loss_of = distdl.distribute(module.loss_of, P_x)
        options = {"strategy": distdl.lightning.Strategy(P_x)}
        loaders = [distdl.data.loader(data, (P_x, P_x), batch_size=4, root=0) for data in (training, validation)]
    trainer = lightning.Trainer(
        **options,
        accelerator="cpu",
        devices=1,
        max_epochs=chosen.epochs,
        gradient_clip_val=0.5,
        default_root_dir=chosen.folder,
        logger=lightning.pytorch.loggers.CSVLogger(chosen.folder),
        callbacks=[
            lightning.pytorch.callbacks.ModelCheckpoint(dirpath=chosen.folder, save_last=True, monitor="validation")
        ],
        log_every_n_steps=1,
    )
    trainer.fit(module, *loaders, ckpt_path=chosen.checkpoint)
    if trainer.is_global_zero:
        losses = {name: value.item() for name, value in trainer.callback_metrics.items()}
        print(f"{Path(__file__).name}: after {chosen.epochs} epochs {losses}")


if __name__ == "__main__":
    main()
