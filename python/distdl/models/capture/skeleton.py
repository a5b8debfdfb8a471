"""A copy of a model without values, which is recorded while it runs on tensors without values."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence

import torch

from distdl.models.capture import unrecorded
from distdl.models.capture.assignments import take_over
from distdl.models.capture.attribute_state import AttributeState
from distdl.models.capture.call_device import RECORDED
from distdl.models.capture.kept_tables import KeptTables
from distdl.models.capture.looks import Looks, OpenLookError
from distdl.models.capture.marks import ids_at, kept_tables, made_without_gradients
from distdl.models.capture.memory_order import InMemory, strides_in
from distdl.models.capture.passed_objects import PassedObjects, own_copy
from distdl.models.capture.recorder import Recorder
from distdl.models.capture.recording import Recording, Value
from distdl.models.capture.source_line import source_line
from distdl.models.capture.transposed_linear import with_transposed_linear
from distdl.modules.deep_copy import copied
from distdl.modules.state import tensors_in_state
from distdl.progress_bars import ProgressBar
from distdl.torch_compat.autograd import autograd_again
from distdl.torch_compat.fake import (
    FakeTensorMode,
    UnsupportedOperatorException,
    fake_of,
    with_whole_lists,
    without_log,
)
from distdl.torch_compat.modes import with_functions
from distdl.torch_compat.parametrizations import computed_weights
from distdl.torch_compat.trees import tree_map


class Skeleton:
    """A copy of a model without values, whose computation can be recorded."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        tensors: dict[int, torch.Tensor] = {}
        self._names: dict[int, str] = {}  # of parameters and buffers, by the ids of their fake tensors
        self._originals: list[tuple[weakref.ref[torch.Tensor], str]] = []  # which functions within the model may hold
        named = itertools.chain(
            model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
        )
        for name, tensor in named:
            fake = tensors.get(id(tensor))
            if fake is None:
                fake = fake_of(tensor, self._mode, RECORDED)
                tensors[id(tensor)] = fake
                self._names[id(fake)] = name
                self._originals.append((weakref.ref(tensor), name))
        self.model = copied(model, {**tensors, **computed_weights(model)})
        self._without_gradients: set[tuple[str, str]] = set()  # places of tensors that a call without any has kept
        self._caches: dict[str, torch.Tensor] = {}  # buffers that the last recorded call has made
        self.buffer_shapes = {name: tensor.shape for name, tensor in model.named_buffers(remove_duplicate=False)}

    def __deepcopy__(self, memo: dict[int, object]) -> Skeleton:
        return self  # it has no values

    def follow(self, model: torch.nn.Module) -> None:
        """Take over what changed in the model since: modes, plain attributes, hooks, dtypes, and frozen parameters."""
        self._without_gradients = made_without_gradients(model)
        for module, source in zip(self.model.modules(), model.modules(), strict=True):
            module.training = source.training
            take_over(module, source)
            for kind in ("_parameters", "_buffers"):
                for name, fake in vars(module)[kind].items():
                    real = vars(source)[kind][name]
                    if fake is None or real is None:
                        continue
                    if fake.dtype != real.dtype:
                        with self._mode, torch.no_grad():
                            fake.data = fake.data.to(real.dtype)
                    if kind == "_parameters":
                        fake.requires_grad_(real.requires_grad)

    def record(
        self,
        call: object,
        inputs: Sequence[tuple[Sequence[int], torch.dtype]],
        key_of_layer: Callable[[torch.nn.Module], str],
        memory: InMemory | None = None,
        bar: ProgressBar | None = None,
        looks: Looks | None = None,
    ) -> Recording:
        """Record the computation of the model.

        Args:
            call: the arguments and keyword arguments of this rank's call. Fake whole tensors take the place of blocks.
            inputs: shapes and dtypes of the whole tensors, in the order of the blocks.
            key_of_layer: the key of the rule for a module as a whole; "" if the functions that it calls are recorded.
            memory: how the inputs are in memory, and what asks for gradients. Each call also runs with zeros then, so
                that values have the strides of real tensors. By default inputs are row-major, and all of them ask.
            bar: advances with each call that is recorded.
            looks: finds the outcomes of looks at values; None if they are refused.

        Raises:
            NotImplementedError: if the computation depends on the values of a tensor, or the model changes itself in a
                way that cannot be recorded.
        """
        self._caches = {}
        before = AttributeState(self.model)
        numbers, tensors = self._numbers(), self._tensors()
        generator, other_generators = torch.get_rng_state(), unrecorded.drawn_outside_of_torch()
        try:
            try:
                recorder = self._recorded(call, inputs, key_of_layer, memory, bar, looks=looks)
            except Exception:
                self._refuse_new_modules(before.modules)
                raise
            self._refuse_new_modules(before.modules)
            if unrecorded.drawn_outside_of_torch() != other_generators:
                raise NotImplementedError(
                    "the model draws random numbers of Python or NumPy, and a call is recorded once; draw them by torch"
                )
            if recorder.recording.is_open:
                return with_transposed_linear(recorder.recording)
            if not torch.equal(torch.get_rng_state(), generator):
                raise NotImplementedError(
                    "the model seeds torch's random numbers, and a call is recorded once; seed them before the call"
                )
            after_first, caches = self._numbers(), self._caches
            if after_first != numbers or not self._tensors() <= tensors or caches:
                # The model keeps something of its call, such as the size or the features of the last image. A second
                # recording shows what each further call computes. It fails if the call reads a tensor that was kept
                # and depends on an input.
                before.restore_buffers()
                for name, values in caches.items():
                    path, _, leaf = name.rpartition(".")
                    vars(self.model.get_submodule(path))["_buffers"][leaf] = values
                recorder = self._recorded(call, inputs, key_of_layer, memory, bar, recorder, looks)
                recorder.recording.tables = kept_tables(self.model, recorder.recording.kept)
                if new := [*self._caches]:
                    raise NotImplementedError(f"the model gives its buffer {new[0]} another shape in each call")
                self._refuse_counters(after_first)
        finally:
            before.restore()
            torch.set_rng_state(generator)  # a model that is refused for it is recorded once more
        return with_transposed_linear(recorder.recording)

    def _recorded(
        self,
        call: object,
        inputs: Sequence[tuple[Sequence[int], torch.dtype]],
        key_of_layer: Callable[[torch.nn.Module], str],
        memory: InMemory | None,
        bar: ProgressBar | None,
        earlier: Recorder | None = None,
        looks: Looks | None = None,
    ) -> Recorder:
        orders = [range(len(shape)) for shape, _ in inputs] if memory is None else memory.orders
        asking = [True] * len(inputs) if memory is None else memory.asking
        records = memory is None or memory.records
        with self._mode, torch.inference_mode(False):
            fakes = [_input(*each, order, asks) for each, order, asks in zip(inputs, orders, asking, strict=True)]
        rest = iter(fakes)
        args, kwargs = tree_map(lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else own_copy(leaf), call)
        objects = PassedObjects((*args, *kwargs.values()))
        names_of_attributes = {
            id(attribute): f"{path}.{name}".removeprefix(".")
            for (path, name), attribute in unrecorded.attributes_of(self.model)
        }
        originals = {id(tensor): name for ref, name in self._originals if (tensor := ref()) is not None}
        without_gradients = ids_at(self.model, self._without_gradients)
        kept = earlier and KeptTables(earlier.recording, earlier.tensors, earlier.known, without_gradients)
        recorder = Recorder(
            self.model,
            fakes,
            {**self._names, **originals},
            key_of_layer,
            names_of_attributes,
            memory is not None,
            bar,
            kept,
            looks,
        )
        # Set-ups run without function modes, and compiled programs without autograd; the recorder needs both.
        with (
            with_functions(), torch.inference_mode(False), autograd_again(), torch.set_grad_enabled(records),
            torch.compiler.set_stance("force_eager"), self._mode, recorder.around_modules(), without_log(),
            with_whole_lists(),
        ):  # fmt: skip
            recorder.recording.looks = [] if looks is None else looks.begin()
            try:
                with recorder:
                    results = self.model(*args, **kwargs)
            except OpenLookError:
                return recorder
            except UnsupportedOperatorException as error:
                raise NotImplementedError(
                    f"torch cannot compute {error} without values, at {source_line(error)}; write other functions, or "
                    "an operator of your own with a register_fake"
                ) from error
            recorder.recording.results = recorder.tensors.results(results)
            recorder.recording.returned_objects = objects.places_in(results, recorder.tensors.stale)
        pairs = zip(map(recorder.tensors.current, fakes), recorder.recording.inputs, strict=True)
        written_inputs: dict[str | int, Value] = {
            i: last for i, (last, first) in enumerate(pairs) if last.number != first.number
        }
        recorder.recording.written.update(self._written(recorder) | written_inputs)
        return recorder

    def _refuse_new_modules(self, known: set[int]) -> None:
        for name, module in self.model.named_modules():
            if id(module) not in known and tensors_in_state(module):
                raise NotImplementedError(
                    f"the model makes its module {name}, a {type(module).__name__}, while it is called; make it in the "
                    "constructor, or call the model once before distribute() if only its first call makes it"
                )

    def _refuse_counters(self, after_first: Mapping[tuple[str, str], object]) -> None:
        """Refuse a model in which the second of two equal calls has changed a number again."""
        for (path, name), value in self._numbers().items():
            if after_first.get((path, name)) != value:
                raise NotImplementedError(
                    f"the model counts: each call changes {name}={value!r} of {path or 'the model'}, and a call is "
                    "recorded once; let it count in a buffer"
                )

    def _numbers(self) -> dict[tuple[str, str], object]:
        """The numbers and texts in attributes of modules, also in lists and dicts."""
        return {
            key: value for key, value in unrecorded.attributes_of(self.model) if isinstance(value, int | float | str)
        }

    def _tensors(self) -> set[int]:
        """The ids of tensors in attributes of modules, without parameters and buffers."""
        return {id(value) for _, value in unrecorded.attributes_of(self.model) if isinstance(value, torch.Tensor)}

    def _written(self, recorder: Recorder) -> dict[str | int, Value]:
        """The values of parameters and buffers that the model has written into; notes buffers that it has made anew."""
        written = dict[str | int, Value]()
        before, self._caches = self._caches, {}
        in_state = self.model.state_dict(keep_vars=True).keys()
        for name, tensor in self.model.named_parameters():
            if (value := recorder.tensors.changed(tensor, name)) is not None:
                _refuse_lost_parameter(name, tensor, value, recorder.recording)
                written[name] = value
        for name, tensor in self.model.named_buffers(remove_duplicate=False):
            value = recorder.tensors.changed(tensor, self._names.get(id(tensor), ""))
            if value is None or tensor is before.get(name):
                continue
            has_other_shape = value.shape != self.buffer_shapes.get(name)
            if has_other_shape and name not in in_state and (cache := self._cache(recorder, tensor)) is not None:
                self._caches[name] = cache
                continue
            if value.is_differentiable:
                raise NotImplementedError(
                    f"the model writes into its buffer {name} what depends on an input or a parameter, and may have a "
                    "derivative; call its detach() first"
                )
            if value.name:
                raise NotImplementedError(f"the model assigns {value.name} to its buffer {name}; use copy_()")
            if has_other_shape:
                raise NotImplementedError(f"the model gives its buffer {name} the shape {list(value.shape)}")
            written[name] = value
        return written

    def _cache(self, recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor | None:
        """The content of a new buffer in the next call: values, or what depends on buffers alone; None for others."""
        if (values := recorder.known.of_tensor(tensor)) is not None:
            return values
        sources = KeptTables(recorder.recording, recorder.tensors, recorder.known, frozenset()).sources(tensor)
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        are_kept = sources is not None and all(
            name in buffers and recorder.tensors.changed(buffers[name], name) is None for name in sources
        )
        return tensor if are_kept else None


def _refuse_lost_parameter(name: str, parameter: torch.nn.Parameter, value: Value, recording: Recording) -> None:
    """Refuse writes into a parameter after which it would have no gradient, or one of other values."""
    if value.is_differentiable and not parameter.requires_grad:
        raise NotImplementedError(
            f"the model writes a tensor with a derivative into its parameter {name}; call its detach() first"
        )
    uses = [node for node in recording.nodes if any(read.name == name for read in node.inputs)]
    if parameter.requires_grad and any(
        node.records_gradients and node.key != "with_values" and any(y.is_differentiable for y in node.outputs)
        for node in uses
    ):
        raise NotImplementedError(
            f"the model writes into its parameter {name} after it has computed with it, which changes its gradient; "
            "write before, or freeze it by requires_grad_(False)"
        )


def _input(shape: Sequence[int], dtype: torch.dtype, order: Sequence[int], asks: bool) -> torch.Tensor:
    """A tensor that asks for gradients if its dtype can. It is no leaf, so that a model may write into it."""
    tensor = torch.empty_strided(tuple(shape), strides_in(order, shape), dtype=dtype, device=RECORDED)
    return tensor.requires_grad_().clone() if asks and (dtype.is_floating_point or dtype.is_complex) else tensor
