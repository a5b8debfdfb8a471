"""Trains a language model on a text, in one process. text.py is the same program over blocks.

    python examples/programs/make_data.py && python examples/programs/text_in_one_process.py

It goes on where it was stopped. At the end it writes the weights of the average.
"""

import numpy as np
import torch
from common import settings
from safetensors.torch import save_file
from text_network import GPT
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

chosen = settings(letters=8192, length=64, features=32, heads=4, epochs=4)


class Windows(torch.utils.data.Dataset):
    """Tokens of the file, and the token after each of them."""

    def __init__(self, starts):
        self.starts, self.text = starts, np.load(chosen.folder / "text.npy", mmap_mode="r")

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        start, stop = self.starts[i], self.starts[i] + chosen.length
        tokens, following = torch.tensor(self.text[start:stop]), torch.tensor(self.text[start + 1 : stop + 1])
        return tokens.long(), following.long()


def loss_of(scores, following):
    """The mean over all tokens."""
    return cross_entropy(scores.to(chosen.dtype).transpose(1, 2), following)


def accuracy_of(scores, following):
    """The share of tokens that are predicted."""
    return (scores.argmax(-1) == following).double().mean()


torch.manual_seed(0)
model = GPT(128, chosen.length, chosen.features, chosen.heads).to(chosen.dtype)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
windows = range(0, chosen.letters - chosen.length - 1, chosen.length)
batches, held_out_batches = (
    DataLoader(data, batch_size=8, shuffle=len(data) > 8) for data in (Windows(windows[:-8]), Windows(windows[-8:]))
)
both = torch.nn.ModuleDict({"model": model, "average": average})
first = 0
if chosen.checkpoint.exists():
    saved = torch.load(chosen.checkpoint)
    both.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    first = saved["epoch"] + 1

for epoch in range(first, chosen.epochs):
    torch.manual_seed(epoch)
    model.train()
    losses = []
    for tokens, following in batches:
        with torch.autocast("cpu", torch.bfloat16, enabled=not chosen.double):
            loss = loss_of(model(tokens), following)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        losses.append(loss.item())
    average.eval()
    with torch.no_grad():
        accuracies = [accuracy_of(average(tokens), following).item() for tokens, following in held_out_batches]
    print(f"epoch {epoch}: loss {np.mean(losses):.13f}, accuracy {np.mean(accuracies):.6f}", flush=True)
    torch.save({"model": both.state_dict(), "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(), "epoch": epoch}, chosen.checkpoint)  # fmt: skip
save_file(average.module.state_dict(), chosen.export)
