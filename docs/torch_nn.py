"""Write torch_nn.rst, the table of torch.nn, from the package: `python docs/torch_nn.py`.

tests/python/nn/test_coverage.py compares the page with what this writes.
"""

from pathlib import Path

from distdl.nn import SEQUENTIAL
from distdl.nn.base import split_rules

page = Path(__file__).with_suffix(".rst")

HEAD = """\
Every layer of torch.nn
=======================

What becomes of each class of ``torch.nn`` in a model whose tensors are in blocks. ``docs/torch_nn.py`` writes this page
from ``torch.nn`` and the package, and a test checks each line.

* A layer of ours takes the arguments of the ``torch.nn`` layer behind ``P_x``. ``from_sequential`` makes it from the
  ``torch.nn`` layer. Its description says which dimensions may be split.
* What works *as it is* has no parameters. Call it on each block, or put it into :class:`distdl.nn.Local`, which refuses
  partitions that do not fit.
* What works *in Local* has parameters, which :class:`distdl.nn.Local` shares among the workers.
* The last column says what ``P_x`` must not split where the ``torch.nn`` layer itself is called on blocks.

.. list-table::
   :header-rows: 1

   * - ``torch.nn``
     - On blocks
     - Unless P_x splits
"""


def row(kind: type) -> str:
    """The line of a class."""
    verdict, rule = split_rules.verdict(kind, SEQUENTIAL), split_rules.rule_of(kind)
    assert verdict is not None, kind
    on_blocks = {
        "ours": f":class:`~distdl.nn.{verdict.text}`",
        "as it is": "as it is" if rule is not None else f"as it is: {verdict.text}",
        "in Local": "in :class:`~distdl.nn.Local`",
        "refused": f"no: {verdict.text}",
    }[verdict.kind]
    condition = "–" if rule is None else rule.condition or "(any dimension may be split)"
    return f"   * - {kind.__name__}\n     - {on_blocks}\n     - {condition}\n"


def text() -> str:
    """The page."""
    return HEAD + "".join(map(row, split_rules.classes()))


if __name__ == "__main__":
    page.write_text(text())
