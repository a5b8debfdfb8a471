"""A copy of a model without values, which is recorded while it runs on tensors without values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from distdl.models.capture import unrecorded
from distdl.models.capture.assignments import take_over
from distdl.models.capture.memory_order import strides_in
from distdl.models.capture.recorder import Recorder
from distdl.models.capture.recording import Recording, Value
from distdl.modules.deep_copy import copied
from distdl.progress_bars import ProgressBar
from distdl.torch_compat.autograd import autograd_again
from distdl.torch_compat.fake import FakeTensorMode, without_log
from distdl.torch_compat.modes import with_functions
from distdl.torch_compat.parametrizations import computed_weights
from distdl.torch_compat.trees import tree_map_only


class Skeleton:
    """A copy of a model without values, whose computation can be recorded."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self.device = device
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        tensors: dict[int, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        named = itertools.chain(
            model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
        )
        for name, tensor in named:
            fake = tensors.get(id(tensor))
            if fake is None:
                with self._mode:
                    fake = torch.empty_like(tensor, device=device)
                if isinstance(tensor, torch.nn.Parameter):
                    fake = torch.nn.Parameter(fake, tensor.requires_grad)
                tensors[id(tensor)] = fake
                self._names[id(fake)] = name
        self.model = copied(model, {**tensors, **computed_weights(model)})
        self._shapes = {name: tensor.shape for name, tensor in model.named_buffers(remove_duplicate=False)}

    def __deepcopy__(self, memo: dict[int, object]) -> Skeleton:
        return self  # it has no values

    def follow(self, model: torch.nn.Module) -> None:
        """Take over changes of a model: modes, numbers, texts, removed hooks, dtypes, and frozen parameters."""
        for own, module in zip(self.model.modules(), model.modules(), strict=True):
            own.training = module.training
            take_over(own, module)
            for held in ("_parameters", "_buffers"):
                for name, tensor in vars(own)[held].items():
                    own_tensor = vars(module)[held][name]
                    if tensor is None or own_tensor is None:
                        continue
                    if tensor.dtype != own_tensor.dtype:
                        with self._mode, torch.no_grad():
                            tensor.data = tensor.data.to(own_tensor.dtype)
                    if held == "_parameters":
                        tensor.requires_grad_(own_tensor.requires_grad)

    def record(
        self,
        call: object,
        inputs: Sequence[tuple[Sequence[int], torch.dtype]],
        key_of_layer: Callable[[torch.nn.Module], str],
        orders: Sequence[Sequence[int]] | None = None,
        real_strides: bool = False,
        bar: ProgressBar | None = None,
    ) -> Recording:
        """Record the computation of the model.

        Args:
            call: the arguments and keyword arguments of a rank, whose tensors are replaced by whole tensors.
            inputs: shapes and dtypes of the whole tensors, in order.
            key_of_layer: the key of a module that becomes one node; "" if the functions that it calls do.
            orders: the orders of the dimensions of the inputs in memory; by default row-major.
            real_strides: whether each call also runs with zeros, so that values have the strides of real tensors.
            bar: advances with each call that is recorded.

        Raises:
            NotImplementedError: if the computation depends on the values of a tensor, or the model changes itself in a
                way that cannot be recorded.
        """
        before = [(module, dict(vars(module)), dict(vars(module)["_buffers"])) for module in self.model.modules()]
        numbers, tensors, drawn = self._numbers(), self._tensors(), unrecorded.drawn_outside_of_torch()
        generator = torch.get_rng_state()
        orders = [range(len(shape)) for shape, _ in inputs] if orders is None else orders
        described = [
            (shape, strides_in(order, shape), dtype) for (shape, dtype), order in zip(inputs, orders, strict=True)
        ]
        try:
            recording = self._recorded(call, described, key_of_layer, real_strides, bar)
            if unrecorded.drawn_outside_of_torch() != drawn:
                raise NotImplementedError(
                    "the model draws random numbers of Python or NumPy, and a call is recorded once; draw them by torch"
                )
            if not torch.equal(torch.get_rng_state(), generator):
                raise NotImplementedError(
                    "the model seeds torch's random numbers, and a call is recorded once; seed them before the call"
                )
            noted = self._numbers()
            # The model may keep the size or the features of the last image, if the next call does not read them.
            if noted != numbers or not self._tensors() <= tensors:
                for module, _, buffers in before:
                    vars(module)["_buffers"].update(buffers)
                recording = self._recorded(call, described, key_of_layer, real_strides, bar)
                for (path, name), value in self._numbers().items():
                    if noted.get((path, name)) != value:
                        raise NotImplementedError(
                            f"the model counts: {name}={value!r} of {path or 'the model'} is another one after each "
                            "call, and a call is recorded once; let it count in a buffer"
                        )
        finally:
            for module, attributes, buffers in before:
                vars(module).clear()
                vars(module).update(attributes)
                vars(module)["_buffers"].update(buffers)
        return recording

    def _recorded(
        self,
        call: object,
        inputs: Sequence[tuple[Sequence[int], Sequence[int], torch.dtype]],
        key_of_layer: Callable[[torch.nn.Module], str],
        real_strides: bool,
        bar: ProgressBar | None,
    ) -> Recording:
        with self._mode, torch.inference_mode(False):
            fakes = [_input(shape, strides, dtype, self.device) for shape, strides, dtype in inputs]
        rest = iter(fakes)
        args, kwargs = tree_map_only(torch.Tensor, lambda tensor: next(rest), call)
        plain = {
            id(attribute): f"{path}.{name}".removeprefix(".")
            for (path, name), attribute in unrecorded.attributes_of(self.model)
        }
        recorder = Recorder(self.model, fakes, self._names, key_of_layer, plain, real_strides, bar)
        # Function modes such as this recorder must not see the calls that set up layers.
        with (
            with_functions(), torch.inference_mode(False), autograd_again(), torch.enable_grad(),
            torch.compiler.set_stance("force_eager"), self._mode, recorder.around_modules(), without_log(),
        ):  # fmt: skip
            with recorder:
                results = self.model(*args, **kwargs)
            recorder.recording.results = recorder.tensors.results(results)
        recorder.recording.written.update(self._written(recorder))
        return recorder.recording

    def _numbers(self) -> dict[tuple[str, str], object]:
        """The numbers and texts that modules hold, also in lists and dicts."""
        return {
            key: value for key, value in unrecorded.attributes_of(self.model) if isinstance(value, int | float | str)
        }

    def _tensors(self) -> set[int]:
        """The ids of tensors in attributes of modules, without parameters and buffers."""
        return {id(value) for _, value in unrecorded.attributes_of(self.model) if isinstance(value, torch.Tensor)}

    def _written(self, recorder: Recorder) -> dict[str, Value]:
        """The values of buffers that the model has written into."""
        written = {}
        for name, tensor in self.model.named_parameters():
            if recorder.tensors.changed(tensor, name) is not None:
                raise NotImplementedError(f"the model writes into its parameter {name}")
        for name, tensor in self.model.named_buffers(remove_duplicate=False):
            value = recorder.tensors.changed(tensor, self._names.get(id(tensor), ""))
            if value is None:
                continue
            if value.is_differentiable:
                raise NotImplementedError(
                    f"the model writes something with a derivative into its buffer {name}; write what detach() gives"
                )
            if value.name:
                raise NotImplementedError(f"the model lets its buffer {name} be {value.name}; use copy_()")
            if value.shape != self._shapes.get(name):
                raise NotImplementedError(f"the model gives its buffer {name} the shape {list(value.shape)}")
            written[name] = value
        return written


def _input(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor that asks for gradients if possible. It is no leaf, so that a model may write into it."""
    tensor = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device=device)
    return tensor.requires_grad_().clone() if dtype.is_floating_point or dtype.is_complex else tensor
