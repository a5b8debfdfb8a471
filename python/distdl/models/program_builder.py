"""Make the program of a call: record the model, plan the recorded operations, and set up their steps."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

import torch

from distdl.models.capture.call_device import RECORDED, device_of
from distdl.models.capture.listing import listing
from distdl.models.capture.looks import Looks
from distdl.models.capture.memory_order import InMemory
from distdl.models.capture.packing import by_parts
from distdl.models.capture.recording import Node, Recording
from distdl.models.capture.refused_looks import advising
from distdl.models.capture.reordering import Names, in_order_of
from distdl.models.capture.skeleton import Skeleton
from distdl.models.inputs import PlacedInput, tensors_in
from distdl.models.plan.halo_choice import choose_halos
from distdl.models.plan.parameter_splits import packings
from distdl.models.plan.planning import Plan
from distdl.models.plan.requested import Request
from distdl.models.rules.applied_layer import key_of_layer
from distdl.models.rules.observed import dumps, loads, observed, unknown_nodes
from distdl.models.run.buffers import Buffers
from distdl.models.run.hooks import HookFailures
from distdl.models.run.program import Program
from distdl.parameters.layout import Layout
from distdl.partitions.comparison import compared_once, gather_or_raise
from distdl.partitions.grid import Grid
from distdl.progress_bars import ProgressBar

_AGREE = 'with values="agree" the values of each call decide'


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect no garbage: nearly all objects that a program is made of stay, and each look at all objects is long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass
class ProgramBuilder:
    """Makes programs of a model, for inputs of certain shapes.

    Attributes:
        skeleton: the copy of the model that is recorded.
        grid: the workers, as P_x says.
        requested: grids and words of modules, by patterns of their names.
        fallback, as_sequential: the options of :func:`distdl.distribute`.
        agrees: whether the model may look at all values, and not only at those of buffers. All ranks agree on outcomes.
        halos: the option of :func:`distdl.distribute`.
    """

    skeleton: Skeleton
    grid: Grid
    requested: Mapping[str, Request]
    fallback: str
    as_sequential: bool
    agrees: bool
    halos: str
    _failures: HookFailures = field(default_factory=HookFailures)
    _guesses: bool = True
    _looks_at_masks: bool = False
    _device: torch.device = RECORDED  # of this rank, in the last call for which it built

    @_without_garbage_collection()
    def build(
        self,
        model: torch.nn.Module,
        call: object,
        inputs: Sequence[tuple[tuple[int, ...], torch.dtype]],
        placed: Sequence[PlacedInput],
        memory: InMemory | None,
        layouts: Mapping[str, Layout],
        outcomes: Sequence[object] = (),
    ) -> Program:
        """The program of a call. Collective over the ranks that construct the model.

        Args:
            model: the model with this rank's part of the parameters.
            call: the arguments of this rank.
            inputs: shapes and dtypes of the whole tensors of the call.
            placed: where these tensors are.
            memory: how they are in memory; None if it does not matter.
            layouts: of the parameters, by name.
            outcomes: of the model's first looks at values.
        """
        self.skeleton.follow(model)
        self._device = device_of(tensors_in(call) or model.parameters())
        in_blocks = {name: layout for name, layout in layouts.items() if layout.is_split}
        self._in_blocks = {id(self.skeleton.model.get_parameter(name)) for name in in_blocks}
        placements = [input.planned for input in placed]
        with torch.random.fork_rng(devices=[]):  # the layers draw first values, which are never used
            planned = partial(
                Plan, base=self.grid.among(self.grid.constructors), inputs=placements, fallback=self.fallback,
                as_sequential=self.as_sequential, requested=self.requested,
                layouts=in_blocks,
            )  # fmt: skip
            buffers, packed = Buffers(model), packings(in_blocks)
            plan = planned(by_parts(self._record(call, inputs, buffers, outcomes), packed))
            if self.as_sequential and any(step.operation.draw is not None for step in plan.steps):
                self._refuse_generators_out_of_step()
                # Numbers are drawn in the order of strides.
                plan = planned(by_parts(self._record(call, inputs, buffers, outcomes, memory), packed))
            plan.refuse_unfollowed()
            choose_halos(plan, self.halos, self.grid.constructing_ranks(), self._device)
            with compared_once("distribute", self.grid.constructing_ranks()):
                return Program(plan, [input.blocks for input in placed], buffers, layouts, self._failures)

    def _record(
        self,
        call: object,
        inputs: Sequence[tuple[tuple[int, ...], torch.dtype]],
        buffers: Buffers,
        outcomes: Sequence[object],
        memory: InMemory | None = None,
    ) -> Recording:
        """Record the model, and compare the recordings: the programs of all ranks have to fit each other."""
        recordings: list[Recording] = []
        bar = ProgressBar("first call, recorded operations", None, self.grid.rank == 0)

        def record() -> bytes:
            run = torch.compiler.disable(self.skeleton.record)  # compilers may be looking on
            try:
                recordings.append(self._with_looks(
                    partial(run, call, inputs, self._key_of_layer, memory, bar), outcomes
                ))  # fmt: skip
            finally:
                bar.close()
            return "\n".join(listing(recordings[0])).encode()

        all_ranks = self.grid.constructing_ranks()
        texts = [text.decode().split("\n") for text in gather_or_raise("distribute", all_ranks, record)]
        if any(lines != texts[0] for lines in texts) and not self._reorder(recordings[0]):
            for rank, lines in zip(all_ranks.ranks, texts, strict=True):
                pairs = zip_longest(texts[0], lines, fillvalue="nothing")
                for first, other in (pair for pair in pairs if len({*pair}) > 1):
                    raise ValueError(
                        "distribute: the model has to be the same on all ranks; rank "
                        f"{all_ranks.ranks[0]} computes {first}, and rank {rank} {other}"
                    )
        if nodes := unknown_nodes(recordings[0]):
            self._observe(recordings[0], nodes, buffers)
        return recordings[0]

    def _with_looks(self, record: Callable[[Looks], Recording], outcomes: Sequence[object]) -> Recording:
        """A recording of a model that may look at values, without guesses if these lead to an exception."""
        while True:
            looks = Looks(outcomes, self._guesses, self._looks_at_masks, self.agrees)
            try:
                with advising("" if self.agrees else _AGREE):
                    return record(looks)
            except Exception as error:
                if self._guesses and looks.has_guessed:
                    self._guesses = False
                elif isinstance(error, NotImplementedError) and not self._looks_at_masks:
                    self._looks_at_masks, outcomes = True, ()  # which are of other looks
                else:
                    raise

    def _refuse_generators_out_of_step(self) -> None:
        all_ranks = self.grid.constructing_ranks()
        state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).digest()
        if len({*all_ranks.gather(state)}) > 1:
            raise ValueError(
                "distribute: with as_sequential every rank draws the numbers of whole tensors, and the generators of "
                "the ranks are in different states; call torch.manual_seed with the same seed on all ranks"
            )

    def _observe(self, recording: Recording, nodes: Sequence[Node], buffers: Buffers) -> None:
        """Observe the calls that no rule knows: worker 0, which has the values of buffers, tells all ranks."""
        all_ranks, first = self.grid.constructing_ranks(), self.grid.ranks[0]

        def observe_first() -> bytes:
            if self.grid.me != first:
                return b""
            return dumps(observed(recording, nodes, buffers, self._device)).encode()

        texts = gather_or_raise("distribute", all_ranks, observe_first)
        recording.observed.update(zip(nodes, loads(texts[all_ranks.ranks.index(first)].decode()), strict=True))

    def _reorder(self, recording: Recording) -> bool:
        """Bring the calls of all ranks into the same order; False if they differ in more than their order."""
        if recording.looks:
            return False  # they are numbered
        names = Names(recording)
        text = json.dumps([names.of_results, *names.of_calls])
        of_ranks = [json.loads(own) for own in self.grid.constructing_ranks().gather(text.encode())]
        if any(sorted(own) != sorted(of_ranks[0]) or own[0] != of_ranks[0][0] for own in of_ranks):
            return False
        in_order_of(recording, of_ranks[0][1:])
        return True

    def _key_of_layer(self, module: torch.nn.Module) -> str:
        """The key of a layer. With as_sequential attention with dropout is recorded by the functions that it calls."""
        drops_out = isinstance(module, torch.nn.MultiheadAttention) and module.training and module.dropout
        return "" if drops_out and self.as_sequential else key_of_layer(module, self._in_blocks)
