"""The table of habits.rst: what programs of one process do, what happens on blocks, and what to use instead.

`write(path)` writes it, and the page includes it. tests/python/test_habits.py checks that it has what
`distdl.check` sees.
"""

from pathlib import Path

HABITS = [
    (
        "``torch.nn.BatchNorm2d`` and other norms, dropout, softmax, pooling between layers of this package",
        "Each block is normalized, pooled or masked by itself.",
        "The layer of the same name in :mod:`distdl.nn`; :doc:`torch_nn` says which layers of torch work as they are.",
    ),
    (
        "``torch.nn.Linear`` and other layers with parameters between layers of this package",
        "The gradients are those of this rank's block alone, so that the ranks' copies drift apart.",
        ":class:`distdl.nn.Local`, or the layer in :mod:`distdl.nn`.",
    ),
    (
        "``x.flatten(1)``, ``x.view``, ``x.reshape`` where a dimension is split",
        "The elements are in another order than in the whole tensor.",
        ":class:`distdl.nn.DistributedFlatten`, :class:`distdl.nn.DistributedUnflatten`.",
    ),
    (
        "``F.mse_loss``, ``torch.nn.CrossEntropyLoss`` and other losses of torch",
        "The loss of this rank's block; a mean divides by the block's own size.",
        "The losses in :mod:`distdl.nn`, which give the same number on every rank.",
    ),
    (
        "``torch.nn.init`` on a parameter of a layer of this package",
        "The blocks are copies of each other, with the fan of a block.",
        ":mod:`distdl.nn.init`.",
    ),
    (
        "``isinstance(layer, torch.nn.Conv2d)`` in an initializer",
        "The layers of this package are skipped.",
        "Ask for ``(torch.nn.Conv2d, distdl.nn.DistributedConv2d)``.",
    ),
    (
        "``spectral_norm``, ``orthogonal``, ``weight_norm``",
        "They would compute each block from itself, so layers refuse them. Parametrizations of single numbers work.",
        "Parametrize the sequential model, and load its weights.",
    ),
    (
        "Different seeds on the ranks",
        "Each rank keeps its block of another weight.",
        "``torch.manual_seed`` with the same seed on all ranks; dropout draws by global index anyway.",
    ),
    (
        "The whole tensor on every rank",
        "It counts as a block, so that the layer sees a tensor several times as large.",
        "Each rank passes its block.",
    ),
    (
        "``torch.nn.utils.clip_grad_norm_``",
        "It clips by the norm of this rank's blocks.",
        ":func:`distdl.clip_grad_norm_`, which takes the norm of the whole model.",
    ),
    (
        "``torch.optim.LBFGS``, ``Adafactor``, ``Muon``",
        "They look at this rank's parameters as if they were the whole.",
        "Optimizers that treat each number by itself, such as Adam and SGD.",
    ),
    (
        "``torch.autograd.grad`` with other inputs on different ranks",
        "A backward pass runs only through calls on which these inputs depend. The others wait, or all raise.",
        "The same inputs on all ranks: blocks as ``scatter`` returns them, not the whole tensor behind them.",
    ),
]


def write(path: Path) -> None:
    titles = ("Habit", "What happens on blocks", "Use instead")
    rows = (f"   * - {habit}\n     - {effect}\n     - {instead}\n" for habit, effect, instead in [titles, *HABITS])
    path.write_text(".. list-table::\n   :header-rows: 1\n   :widths: 30 35 35\n\n" + "".join(rows))
