# ruff: noqa: PYI021  (the extension itself shows nobody its types)
import enum
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from mpi4py import MPI

_Workers: TypeAlias = tuple[list[int], Sequence[int]]  # shape, and ranks of the root communicator
_Halo: TypeAlias = Sequence[Sequence[int]]  # for each dimension the widths (left, right)

class MPIError(RuntimeError):
    """A call of MPI has failed on this rank. The error is final: no operator works afterwards."""

    @property
    def code(self) -> int:
        """The code that the call returned: its meaning is the MPI library's own."""

    @property
    def error_class(self) -> int:
        """The class of the code, such as mpi4py.MPI.ERR_RANK."""

def mpi_initialized() -> bool: ...
def mpi_library_version() -> str: ...
def balanced_block(n: int, p: int, i: int) -> tuple[int, int]:
    """(start, stop) of block i, if n elements are balanced over p workers."""

def grid_index(shape: Sequence[int], rank: int) -> list[int]:
    """The index of a worker in a row-major grid. Raises ValueError for a number that no worker has."""

def grid_rank(shape: Sequence[int], index: Sequence[int]) -> int:
    """The number of the worker at an index of a row-major grid."""

def matched_ranks(
    roots: Sequence[int],
    members: Sequence[int],
    root_rank: int,
    transpose_roots: bool = False,
    transpose_members: bool = False,
) -> list[int]:
    """The ranks of the shape `members` that a rank of the shape `roots` broadcasts to, or that reduce to it."""

def pieces(extent: int, workers: int, wanted: tuple[int, int]) -> list[tuple[int, int, int]]:
    """(worker, start, stop) for every balanced block that an interval overlaps."""

def set_structure_check(on: bool) -> None: ...
def structure_check() -> bool: ...
def require_gradients(results: object) -> None:
    """Let results require gradients if results of other ranks do, because of tensors of those ranks.

    So ``backward()`` can be called on every rank. It regards a tensor, or the tensors in a tuple.
    """

def goes_directly(bytes: int, ranks: int) -> bool:
    """Whether so many bytes from one of so many ranks to all others are messages, and no collective of MPI."""

def check_input_unmodified(layer: str, input: torch.Tensor, result: torch.Tensor) -> None:
    """Make the backward pass of a layer raise if the input was written, as torch.nn's layers do that save their inputs.

    Workers may compute from a copy of the input, which a write does not change, or from parts of it, which torch's
    message would name. The input is not kept alive.

    Raises:
        RuntimeError: in the backward pass, on every rank that has written its input.
    """

def votes() -> int:
    """How many votes and exchanges of structure this process took part in with other ranks."""

def live_communicators() -> int: ...
def set_pool_limit(bytes: int | None) -> None: ...
def pool_limit() -> int | None: ...
def pool_size() -> int: ...
def pool_used() -> int: ...
def empty_pool() -> None: ...
def progress_thread() -> bool: ...
def set_progress_thread(on: bool) -> None: ...
def set_patient(on: bool) -> None:
    """Say whether this thread sleeps between two looks at a message while it waits for other ranks."""

class HeldSignals:
    """Signals wait for their handlers for as long as it lives."""

class Interrupt(enum.Enum):
    """The fate of an interrupt."""

    first = ...
    same = ...
    again = ...

def request_interrupt() -> Interrupt:
    """Ask that all ranks of the job be interrupted in their next call."""

def interrupt_requested() -> bool: ...
def main_thread_waits() -> bool: ...
def watch_interrupts() -> None:
    """Let a second interrupt in one wait for other ranks end the process. Called by the main thread."""

def finish_all() -> None:
    """Wait for all started operators."""

def failure() -> str:
    """The message of the first MPI call that failed on this rank; empty if none has failed."""

def take_deferred_error() -> str:
    """The message of the exception that the next agreement would raise; empty if it would not raise."""

def set_watchdog(seconds: float, end: bool) -> None: ...
def watchdog() -> tuple[float, bool]: ...
def set_debugging(on: bool) -> None: ...

HOSTS_BY_NAME: int
SEVERAL_HOSTS: int
ONE_HOST: int

def set_hosts(ranks_on_each: int) -> None:
    """Say where the ranks of communicators are that are made from now on.

    Args:
        ranks_on_each: so many ranks of the job are on each host; SEVERAL_HOSTS for one, ONE_HOST for all of them, and
            HOSTS_BY_NAME where MPI's names of the processors say it.
    """

def set_locator(locate: Callable[[int], str] | None) -> None:
    """Set the function that returns the line of the user's program that a thread, given by its id, is on."""

def attend_finalize() -> None:
    """Have MPI_Finalize begin with end_of_program()."""

def end_of_program() -> None:
    """Tell the other ranks that this rank makes no further call. Collective over all ranks that it made calls with."""

def end_of_cell(what: str) -> None:
    """Wait for all ranks that this rank made calls with; those that wait for it in a call raise. Collective over them.

    Args:
        what: what the messages of these ranks say of this rank.
    """

class Waiting:
    """A context manager that lets the watchdog see a block of code in which this rank waits for others."""

    def __init__(self, what: str) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Staging:
    where_needed: Staging
    always: Staging

def set_staging(when: Staging) -> None: ...
def staging() -> Staging: ...
def kinds_of_memory() -> str: ...
def set_direct(on: bool) -> None: ...
def direct() -> bool: ...

class Statistics:
    @property
    def calls(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...
    @property
    def seconds_waited(self) -> float: ...

def statistics() -> dict[str, Statistics]: ...
def reset_statistics() -> None: ...

class Window:
    def __init__(
        self,
        kernel: int,
        stride: int = 1,
        padding: tuple[int, int] = (0, 0),
        dilation: int = 1,
        ceil_mode: bool = False,
    ) -> None: ...
    @property
    def padding(self) -> tuple[int, int]: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Window: ...
    def reach(self) -> int: ...
    def outputs(self, n: int) -> int: ...
    def reads(self, n: int, outputs: tuple[int, int]) -> tuple[int, int]: ...
    def aligned_blocks(self, sizes: Sequence[int]) -> list[int]: ...

class TransposedWindow:
    def __init__(self, kernel: int, stride: int, padding: int, dilation: int, output_padding: int) -> None: ...
    def __deepcopy__(self, memo: dict[int, object]) -> TransposedWindow: ...
    def reach(self) -> int: ...
    def first(self, i: int) -> int: ...
    def outputs(self, n: int) -> int: ...
    def reads(self, n: int, outputs: tuple[int, int]) -> tuple[int, int]: ...
    def aligned_blocks(self, sizes: Sequence[int]) -> list[int]: ...

class AdaptiveWindows:
    def __init__(self, size: int | None, factor: float = 1.0) -> None: ...
    def __deepcopy__(self, memo: dict[int, object]) -> AdaptiveWindows: ...
    def outputs(self, n: int) -> int: ...
    def reads(self, n: int, outputs: tuple[int, int]) -> tuple[int, int]: ...
    def aligned_blocks(self, sizes: Sequence[int]) -> list[int]: ...

class Interpolation:
    def __init__(
        self,
        mode: str,
        size: int | None,
        factor: float = 1.0,
        align_corners: bool = False,
        keeps_factor: bool = False,
    ) -> None: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Interpolation: ...
    def outputs(self, n: int) -> int: ...
    def reads(self, n: int, outputs: tuple[int, int]) -> tuple[int, int]: ...
    def aligned_blocks(self, sizes: Sequence[int]) -> list[int]: ...
    def taps(
        self, n: int, outputs: tuple[int, int], in_double: bool, vectorized: bool = False
    ) -> tuple[list[int], list[float]]: ...

class Share:
    """The terms of a convolution along one dimension that read some of its inputs.

    A convolution of these inputs alone, with `padding` zeros on both sides and the `taps` of the kernel, computes them:
    its outputs from `first` on are the terms of `outputs`.
    """

    @property
    def taps(self) -> tuple[int, int]: ...
    @property
    def outputs(self) -> tuple[int, int]: ...
    @property
    def padding(self) -> int: ...
    @property
    def first(self) -> int: ...

class Sliding:
    """A convolution kernel that slides along one dimension over blocks that are not copied.

    Place i along the dimension holds the inputs blocks[i] and computes outputs[i], which read the inputs reads[i].
    """

    def __init__(
        self,
        kernel: int,
        stride: int,
        dilation: int,
        blocks: Sequence[tuple[int, int]],
        outputs: Sequence[tuple[int, int]],
        reads: Sequence[tuple[int, int]],
    ) -> None: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Sliding: ...
    @property
    def blocks(self) -> list[tuple[int, int]]: ...
    @property
    def outputs(self) -> list[tuple[int, int]]: ...
    @property
    def reads(self) -> list[tuple[int, int]]: ...
    def padding(self, i: int) -> int | None:
        """How many zeros on both sides of place i's block make the local layer compute place i's outputs, if any."""

    def halo(self, i: int) -> tuple[int, int]:
        """The numbers of inputs that place i wants of the places before and after it."""

    def border(self, i: int) -> tuple[int, int]:
        """The numbers of inputs at the two ends of place i's block that the places before and after it want."""

    def has_halos(self) -> bool: ...
    def fits(self) -> bool:
        """Whether the local layer computes all outputs, and all halos come from the blocks next to them."""

    def share(self, i: int, start: int, stop: int) -> Share:
        """The terms that the inputs from start to stop, counted from place i's block, add to place i's outputs."""

class HostExchange:
    """The exchange of small data in host memory among some ranks, and the comparison of their calls.

    Args:
        root: a communicator; None on a rank that takes no part.
        ranks: ranks of root.

    Constructing and all methods are collective over these ranks.
    """

    def __init__(self, root: MPI.Comm | None, ranks: Sequence[int]) -> None: ...
    @property
    def ranks(self) -> list[int]: ...
    @property
    def spans_hosts(self) -> bool:
        """Whether messages between these ranks may travel between hosts."""

    @property
    def rank(self) -> int:
        """This rank, which has to be one of them."""

    @property
    def host(self) -> int:
        """A number of this rank's host."""

    def compare(self, what: str, text: str) -> tuple[bool, list[str]]:
        """Whether all ranks passed the same text; if not, all texts in the order of the ranks.

        Args:
            what: the name of the call, for messages.
            text: this rank's text.

        Raises:
            RuntimeError: on all ranks, if some of them are in another call.
        """

    def gather(self, bytes: bytes | str) -> list[bytes]:
        """Every rank's bytes, in the order of the ranks."""

    def view(self, shape: Sequence[int]) -> MPI.Intracomm:
        """These ranks, in this order, as a communicator: Cartesian if a shape is given."""

    def apart(self) -> MPI.Intracomm:
        """These ranks, in this order, as a communicator for calls that have no order with those of the program."""

class Caller(enum.Enum):
    """Who calls a layer on this rank."""

    program = ...
    compiled_program = ...
    compiler = ...

def holder_of(object: object) -> torch.Tensor:
    """A tensor without elements that keeps an object alive."""

def held_by(holder: torch.Tensor) -> object:
    """The object that a tensor of holder_of(), or an alias of it, keeps. RuntimeError for other tensors."""

class LayerAgreement:
    """The agreement of a layer's ranks before each of its calls, in one vote.

    Constructing is collective over the ranks.

    Args:
        layer: the layer's name, for messages.
        root, ranks: the communicator, and its ranks that call the layer together.
        tensors: the names of a call's tensors in messages, for example ["input", "target"].
        optional: the names among them of tensors that may be None.
    """

    def __init__(
        self,
        layer: str,
        root: MPI.Comm | None,
        ranks: Sequence[int],
        tensors: Sequence[str],
        optional: Sequence[str] = (),
    ) -> None: ...
    def set_caller(self, caller: Caller) -> None:
        """Say who makes the next calls of agree() on this rank.

        Calls of programs and of compiled programs meet. A call of a compiler is refused on all ranks where others make
        another call.
        """

    @property
    def sizes_are_in_question(self) -> bool:
        """Whether, as of the last agree(), the structure changed and any rank runs a compiled program."""

    @property
    def active(self) -> bool:
        """Whether this rank is one of the ranks. On any other rank agree() returns False and leave() does nothing."""

    @property
    def spans_hosts(self) -> bool:
        """Whether messages between these ranks may travel between hosts."""

    def expect(self, name: str, shape: Sequence[int], may_be_empty: bool) -> None:
        """Register the next parameter, and the shape that it must have on this rank.

        The parameters of each call begin with the registered ones, in the order of registration.

        Args:
            name: the name of the parameter, for messages.
            shape: its shape on this rank.
            may_be_empty: whether a tensor of zero volume and any shape is right as well.
        """

    def name_copy(self, copy: str) -> None:
        """Tell a copy of the layer from other copies: a text that ranks compare in each call."""

    def agree(
        self,
        inputs: Sequence[object],
        parameters: Sequence[torch.Tensor],
        own: str = "",
        broadcast: int | None = None,
        buffers: Sequence[torch.Tensor] = (),
        own_buffers: int = 0,
        problem: Exception | None = None,
        beside: Sequence[tuple[Primitive, torch.Tensor]] = (),
    ) -> bool:
        """Begin a call: True if the structure changed on any rank since the last call.

        The structure is the shape, dtype, device type and presence of each input, the dtypes of parameters and buffers,
        autocast, and `own`. Until leave(), operators that this thread calls on some or all of these ranks do not vote,
        and other threads' calls on these ranks wait. An agreement within another one's call does not vote either where
        nothing changed; the outer one has to be given the parameters of both.

        Args:
            inputs: in the order of their names; None for an absent tensor, and absent tensors at the end may be left
                out. An exception in place of a tensor is an error that this rank found in it: a ValueError is raised as
                a ValueError on all ranks, any other exception as a TypeError.
            parameters: the tensors beside the inputs that may take part in differentiation.
            own: a text of the layer that has to be equal on all ranks.
            broadcast: None, or for a call that draws random numbers the number of one rank, and 0 on all others: see
                the attribute of this name. Whether it is None has to be equal on all ranks.
            buffers: further tensors that the layer uses.
            own_buffers: the number of buffers of the layer itself.
            problem: an error that this rank met before it knew all of this; raised on all ranks, like an exception in
                place of an input, after these.
            beside: up to two operators that the call will apply to tensors, once in a call without changes. Between
                hosts their messages may travel beside the vote.

        Raises:
            TypeError: on all ranks, if an input on any of them is not a tensor, or its values cannot be sent; if
                parameters or buffers have no values, or meet the transforms of torch.func.
            ValueError: on all ranks, if on any of them a parameter has another shape than expected; or if dtypes of
                parameters, autocast or `own` differ among the ranks.
            RuntimeError: on all ranks, if some ranks ask for gradients and others disabled them, or some ranks are in
                another call.

        After an exception no call has begun. Collective.
        """

    def leave(self) -> None:
        """End the call. It does nothing if this thread has begun no call of this agreement."""

    def forget(self) -> None:
        """Make the next call agree anew; to be called on all ranks or on none."""

    def vote_within(self) -> None:
        """Make the next call vote within the call of a layer around this one, too; on all ranks or on none."""

    @property
    def broadcast(self) -> int:
        """The number of the last agree() that had one, the same on all ranks."""

    @property
    def requires_grad(self) -> bool:
        """Whether a tensor or a parameter of any rank required a gradient, as of the last vote."""

    @property
    def is_differentiated(self) -> bool:
        """Whether gradients are recorded now, and :attr:`requires_grad`."""

    @property
    def meets_inference_tensors(self) -> bool:
        """Whether a tensor of this rank was made in inference mode, as of the last agree()."""

    @property
    def has_tangent(self) -> bool:
        """Whether a tensor or a parameter of any rank had a forward-mode derivative, as of the last vote."""

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of autocast at the last agree(), for the device of the first input; None if autocast was off."""

    def structure(self, tensor: int, ranks: Sequence[int]) -> list[tuple[list[int], torch.dtype] | None]:
        """(shape, dtype) of an input on each of these ranks, as agreed on; None where it is absent.

        Args:
            tensor: the position of the input.
            ranks: of the communicator `root`.
        """

    def blocks(self, tensor: int, name: str, shape: Sequence[int], ranks: Sequence[int]) -> list[list[int]]:
        """The sizes of an input's blocks by dimension.

        Args:
            tensor: the position of the input.
            name: the name of the partition in messages, for example "P_x".
            shape, ranks: the partition, on ranks of the communicator `root`.

        Raises:
            TypeError, ValueError: on all ranks, if the workers' inputs do not form one tensor on this partition.
        """

    def __deepcopy__(self, memo: dict[int, object]) -> LayerAgreement: ...

class Started:
    """A started call of a primitive."""

    def wait(self) -> torch.Tensor: ...
    @property
    def waited(self) -> bool: ...
    @property
    def name(self) -> str: ...

class PlannedOperator:
    """An operator for tensors of one structure, on which its ranks have agreed: applying it takes no vote.

    Calls are collective over the operator's ranks, which have to know that all of them make the call. No autograd.
    """

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it. Raises ValueError for a tensor of another structure."""

    def start(self, x: torch.Tensor) -> Started:
        """Begin to apply it. Collective like a call."""

    def adjoint(self) -> PlannedOperator:
        """Its adjoint. Not collective."""

    def __deepcopy__(self, memo: dict[int, object]) -> PlannedOperator: ...

class Primitive:
    """A linear operator on distributed tensors, with its adjoint. Calls are collective over the operator's ranks."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...
    def start(self, x: torch.Tensor) -> Started: ...
    def plan(self, x: torch.Tensor) -> PlannedOperator: ...
    def trace(self, sizes: list[int], dtype: torch.dtype) -> tuple[list[int], torch.dtype]: ...
    def call_traced(self, x: torch.Tensor, linear: bool, differentiated: bool) -> torch.Tensor: ...
    def adjoint(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Primitive: ...
    @property
    def name(self) -> str: ...
    @property
    def active(self) -> bool: ...

class Broadcast(Primitive):
    def __init__(
        self,
        root: MPI.Comm | None,
        P_x: _Workers,
        P_y: _Workers,
        transpose_src: bool,
        transpose_dest: bool,
        preserve_batch: bool,
    ) -> None: ...

class SumReduce(Primitive):
    def __init__(
        self,
        root: MPI.Comm | None,
        P_x: _Workers,
        P_y: _Workers,
        transpose_src: bool,
        transpose_dest: bool,
        preserve_batch: bool,
    ) -> None: ...

class AllSumReduce(Primitive):
    def __init__(
        self, root: MPI.Comm | None, P_x: _Workers, along: list[int] | None, keep: list[int] | None
    ) -> None: ...

class AllGather(Primitive):
    def __init__(
        self, root: MPI.Comm | None, P_x: _Workers, along: list[int] | None, keep: list[int] | None
    ) -> None: ...

class ReduceScatter(Primitive):
    def __init__(
        self, root: MPI.Comm | None, P_x: _Workers, along: list[int] | None, keep: list[int] | None
    ) -> None: ...

class Replicate(Primitive):
    def __init__(self, root: MPI.Comm | None, P_x: _Workers) -> None: ...

class Exchange(Primitive): ...

class Repartition(Exchange):
    def __init__(self, root: MPI.Comm | None, P_x: _Workers, P_y: _Workers, preserve_batch: bool) -> None: ...

class HaloExchange(Exchange):
    def __init__(
        self, root: MPI.Comm | None, P_x: _Workers, halos: Sequence[_Halo], periodic: Sequence[bool], fill: float
    ) -> None: ...

class IntervalExchange(Exchange):
    def __init__(
        self,
        layer: str,
        root: MPI.Comm | None,
        P_x: _Workers,
        P_y: _Workers,
        wanted: Sequence[Sequence[tuple[int, int]]],
        periodic: Sequence[bool],
        fill: float,
    ) -> None: ...

class RowExchange:
    """An exchange of the rows of matrices, by numbers of rows that may be others in each call.

    Constructing is collective over the ranks.

    Args:
        layer: the layer's name, for messages.
        root, ranks: the communicator, and its ranks that call together.
    """

    def __init__(self, layer: str, root: MPI.Comm | None, ranks: Sequence[int]) -> None: ...
    def __call__(
        self, x: torch.Tensor, sent: Sequence[int], received: Sequence[int], requires_grad: bool, has_tangent: bool
    ) -> torch.Tensor:
        """The rows that arrive here, in the order of the ranks.

        It holds no vote: the ranks call it within the call of a layer, with counts that fit together.

        Args:
            x: a matrix; the first sent[0] rows go to the first rank, the next sent[1] to the second, and so on. Rows
                that are left over go nowhere.
            sent, received: numbers of rows, by rank.
            requires_grad, has_tangent: whether any rank's matrix takes part in differentiation, equal on all ranks.

        Collective over the ranks, and so is its backward pass.
        """

class ByteMessages:
    """The messages of bytes of one call between some ranks, counted in statistics under the name of the call.

    Constructing is collective over the ranks.

    Args:
        call: the name of the call, on which the ranks have agreed.
        root, ranks: the communicator, and its ranks between which messages travel.
    """

    def __init__(self, call: str, root: MPI.Comm | None, ranks: Sequence[int]) -> None: ...
    def receive(self, rank: int, size: int) -> torch.Tensor:
        """Begin to receive bytes from a rank of `root`, in a tensor that has them after wait()."""

    def send(self, rank: int, bytes: torch.Tensor) -> None:
        """Begin to send contiguous bytes in host memory, which must not change until wait().

        At most 4 messages are under way and kept: this waits for the oldest of them.
        """

    def wait(self) -> None:
        """Wait until all messages have arrived and left."""

def fill_choice(
    block: torch.Tensor,
    key: int,
    shape: Sequence[int],
    intervals: Sequence[tuple[int, int]],
    threshold: int,
    below: float,
    other: float,
) -> None:
    """Fill a contiguous block in host memory with random numbers by global index.

    An element is `below` where its word, one of 2**32 that are equally likely, is less than the threshold, and
    otherwise `other`. The word follows from the key and the element's row-major number in the whole tensor.

    Args:
        block: of a tensor of a floating point dtype or of bool.
        key: at least 0 and less than 2**64.
        shape: of the whole tensor.
        intervals: for each dimension the (start, stop) of the block.
        threshold: at least 0 and at most 2**32.
        below, other: the two values.
    """

def fill_uniform(
    block: torch.Tensor,
    key: int,
    shape: Sequence[int],
    intervals: Sequence[tuple[int, int]],
    lower: float,
    step: float,
) -> None:
    """Fill a contiguous block in host memory with lower + word * step; as fill_choice otherwise."""

class MomentGroups:
    """How moments that workers send each other form groups.

    A message of a worker has the means of its channels, then their sums of squared deviations, in double precision.

    Args:
        channels: the first dimension of the channels of a block, and the first dimension after them.
        sizes: the number of channels of each worker.
        group: the group of each channel of each worker, of int64.
        count: the number of elements of each channel of each worker, in double precision.
        own: the group of each channel of this worker, of int64.
        groups: the number of groups.
        total: the number of elements of a group.
    """

    def __init__(
        self,
        channels: tuple[int, int],
        sizes: Sequence[int],
        group: torch.Tensor,
        count: torch.Tensor,
        own: torch.Tensor,
        groups: int,
        total: float,
    ) -> None: ...
    def __deepcopy__(self, memo: dict[int, object]) -> MomentGroups: ...

def block_moments(x: torch.Tensor, groups: MomentGroups) -> tuple[torch.Tensor, torch.Tensor]:
    """The moments of the channels of a block.

    Returns:
        A tensor for :func:`normalize_block` in place of x, which must have no other use; and the message of this
        worker. The moments of empty channels are 0.
    """

def normalize_block(
    x: torch.Tensor,
    messages: torch.Tensor,
    groups: MomentGroups,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    beyond: float,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x - mean) / sqrt(variance + eps) * weight + bias, with the moments of the groups.

    Args:
        x: from :func:`block_moments`.
        messages: the messages of all workers, one after the other.
        weight, bias: of the channels, by turns if there are fewer.
        beyond: in place of a variance beyond the range of the dtype in which x is computed: half in single precision.
        dtype: of the result.

    Returns:
        The result; for each group the mean, and the sum of squared deviations from it, without derivatives.
    """

def follow(running: torch.Tensor, value: torch.Tensor, divisor: float, momentum: float) -> None:
    """running = (1 - momentum) * running + momentum * value / divisor, with a value in double precision."""

class AlongAxis:
    """Operators over the workers along an axis of a partition, which is a dimension of tensors, too.

    Args:
        gather, sum: concatenate and add up tensors along the axis.
    """

    def __init__(self, axis: int, gather: Primitive, sum: Primitive) -> None: ...
    def __deepcopy__(self, memo: dict[int, object]) -> AlongAxis: ...
    def log_sum_exp(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest element, as a constant, and the log-sum-exp relative to it; both with extent 1 along the axis.

        The lowest number and -inf if all elements are -inf. Differentiable any number of times. Collective.
        """

    def softmax(self, x: torch.Tensor, logarithm: bool, agreement: LayerAgreement | None) -> torch.Tensor:
        """The softmax of the whole tensor, or its logarithm. Collective.

        Gathers each worker's largest elements and sums at once; each backward pass exchanges one sum.

        Args:
            agreement: the vote of the calling layer, which knows what other ranks differentiate.
        """

def scaled_powers(x: torch.Tensor, largest: torch.Tensor, scale: torch.Tensor, axis: int) -> torch.Tensor:
    """exp(x - largest) * scale, where the last two have extent 1 along the axis; without derivatives."""

def counted_classes(target: torch.Tensor, ignored: int | None) -> tuple[int, int, int]:
    """The lowest, the highest, and the number of indices of classes that are not ignored.

    A uint8 never equals a negative number.
    """

def loss_of_parts(
    numerator: torch.Tensor,
    denominator: torch.Tensor | float,
    sum: Primitive | None,
    dtype: torch.dtype,
    divides: bool,
    has_part: bool,
    is_first: bool,
) -> torch.Tensor:
    """The sum of the workers' numerators, divided by that of their denominators if ``divides``, on every rank.

    The gradient flows from the first worker's value alone. Collective over the ranks of ``sum``, which adds up two
    numbers of each rank; a rank that knows no other passes None.
    """

def without_values(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the device meta, which no mode of torch sees being made."""

def take_for_result(tensor: torch.Tensor) -> None:
    """Let autograd take a tensor for the result of a call, so that it asks for gradients and is no leaf.

    A backward pass through it raises.
    """
