"""
ciranda's C++ engine; use ciranda.torch instead.
"""
from __future__ import annotations
import collections.abc
import torch
import typing
__all__: list[str] = ['ADASUM', 'AUTO_PARAMETERS_MIN', 'AVERAGE', 'Compression', 'GradientReducer', 'MAX', 'MIN', 'ModeKind', 'PRODUCT', 'PsDifferences', 'PsGradients', 'PsReducer', 'RankComparison', 'Reducer', 'RuleKind', 'SUM', 'ServerMode', 'StalePolicy', 'UpdateRule', 'abort', 'add_process_set', 'add_row_table', 'allgather_async', 'allgather_bytes', 'allreduce', 'allreduce_async', 'alltoall_async', 'arena_allreduce_async', 'arena_empty', 'ask_task', 'autotune', 'backends', 'barrier_async', 'begin_rank_step', 'begin_rows', 'begin_task', 'broadcast_async', 'broadcast_tensors', 'check_options', 'close_tasks', 'coordinates', 'cpu_operations', 'cross_rank', 'cross_size', 'end_rank_step', 'end_task', 'gather_async', 'hosts', 'hosts_are_trusted', 'in_forked_child', 'init', 'instruction_set', 'is_initialized', 'join', 'joins', 'local_rank', 'local_size', 'lost_server', 'names_of', 'note_freed', 'obstacle_to_sharing', 'pace', 'pending', 'poll', 'pull_newest', 'pull_rows', 'push_rows', 'rank', 'read_checkpoint', 'recv_async', 'reduce_async', 'reducescatter_async', 'refuse_derivatives_in_step', 'remove_process_set', 'require_agreement', 'scatter_async', 'schedule_task', 'send_async', 'server_average', 'server_count', 'server_stats', 'set_pace', 'shutdown', 'size', 'start_timeline', 'starter', 'stats', 'stop_timeline', 'streams', 'synchronize', 'take_task', 'waits_crosswise', 'work_with_vectors', 'zero_rows']
class Compression:
    """
    Members:
    
      none
    
      fp16
    
      bf16
    """
    __members__: typing.ClassVar[dict[str, Compression]]
    bf16: typing.ClassVar[Compression]
    fp16: typing.ClassVar[Compression]
    none: typing.ClassVar[Compression]
    @typing.overload
    def __eq__(self, other: Compression) -> bool:
        ...
    @typing.overload
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __int__(self) -> int:
        ...
    @typing.overload
    def __ne__(self, other: Compression) -> bool:
        ...
    @typing.overload
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class RuleKind:
    """
    Members:
    
      sgd
    
      adam
    
      adamw
    
      adagrad
    
      rmsprop
    
      lion
    """
    __members__: typing.ClassVar[dict[str, RuleKind]]
    adagrad: typing.ClassVar[RuleKind]
    adam: typing.ClassVar[RuleKind]
    adamw: typing.ClassVar[RuleKind]
    lion: typing.ClassVar[RuleKind]
    rmsprop: typing.ClassVar[RuleKind]
    sgd: typing.ClassVar[RuleKind]
    @typing.overload
    def __eq__(self, other: RuleKind) -> bool:
        ...
    @typing.overload
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __int__(self) -> int:
        ...
    @typing.overload
    def __ne__(self, other: RuleKind) -> bool:
        ...
    @typing.overload
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class UpdateRule:
    """
    The hyper-parameters of a step, under torch.optim's names.
    """
    amsgrad: bool
    centered: bool
    maximize: bool
    nesterov: bool
    def __init__(self, kind: RuleKind) -> None:
        ...
    @property
    def alpha(self) -> float:
        ...
    @alpha.setter
    def alpha(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def beta1(self) -> float:
        ...
    @beta1.setter
    def beta1(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def beta2(self) -> float:
        ...
    @beta2.setter
    def beta2(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def dampening(self) -> float:
        ...
    @dampening.setter
    def dampening(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def eps(self) -> float:
        ...
    @eps.setter
    def eps(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def initial_accumulator_value(self) -> float:
        ...
    @initial_accumulator_value.setter
    def initial_accumulator_value(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def kind(self) -> RuleKind:
        ...
    @property
    def lr(self) -> float:
        ...
    @lr.setter
    def lr(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def lr_decay(self) -> float:
        ...
    @lr_decay.setter
    def lr_decay(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def momentum(self) -> float:
        ...
    @momentum.setter
    def momentum(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def weight_decay(self) -> float:
        ...
    @weight_decay.setter
    def weight_decay(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
class Reducer:
    """
    Reduces the gradients of an optimizer's parameters.
    """
    def add_parameters(self, named_parameters: collections.abc.Sequence[tuple[str, torch.Tensor]], rules: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = []) -> None:
        ...
    def adopt_state(self, position: typing.SupportsInt | typing.SupportsIndex, state: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> None:
        ...
    def confirm_sharing(self) -> None:
        ...
    def discard_step(self) -> None:
        ...
    def end_shared_step(self) -> None:
        ...
    def finish_step(self) -> None:
        ...
    def norm(self) -> float:
        ...
    def set_backward_passes_per_step(self, passes: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def set_rule(self, number: typing.SupportsInt | typing.SupportsIndex, rule: UpdateRule) -> None:
        ...
    def state(self, position: typing.SupportsInt | typing.SupportsIndex) -> list[tuple[str, torch.Tensor]]:
        ...
    def step(self, gradient_scale: typing.SupportsFloat | typing.SupportsIndex, reduce: bool, max_norm: typing.SupportsFloat | typing.SupportsIndex, objection: str) -> str:
        ...
    def synchronize(self) -> None:
        ...
class GradientReducer(Reducer):
    """
    In buckets, as backward produces them.
    """
    def __init__(self, *, name: str, op: typing.SupportsInt | typing.SupportsIndex = 1, predivide_factor: typing.SupportsFloat | typing.SupportsIndex = 1.0, backward_passes_per_step: typing.SupportsInt | typing.SupportsIndex = 1, compression: Compression, streams: typing.SupportsInt | typing.SupportsIndex = 0, sparse_as_dense: bool = False, bucket_bytes: typing.SupportsInt | typing.SupportsIndex | None = None, groups: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]] = [], shared_step: bool = False, reduce_in_backward: bool = True, share_parameters: bool = False, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def arena_bytes(self) -> int:
        ...
    def bucket_count(self) -> int:
        ...
    def moved_bytes(self) -> int:
        ...
class RankComparison:
    """
    Looks whether the ranks of an optimizer train the same model.
    """
    def __init__(self, name: str, apart: bool, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def add(self, named_parameters: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> None:
        ...
    def begin_step(self) -> bool:
        ...
    def compare(self, way: str, reducer: Reducer | None) -> str:
        ...
    def end_step(self) -> None:
        ...
class ModeKind:
    """
    Members:
    
      async_
    
      ssp
    
      sync
    """
    __members__: typing.ClassVar[dict[str, ModeKind]]
    async_: typing.ClassVar[ModeKind]
    ssp: typing.ClassVar[ModeKind]
    sync: typing.ClassVar[ModeKind]
    @typing.overload
    def __eq__(self, other: ModeKind) -> bool:
        ...
    @typing.overload
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __int__(self) -> int:
        ...
    @typing.overload
    def __ne__(self, other: ModeKind) -> bool:
        ...
    @typing.overload
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class StalePolicy:
    """
    Members:
    
      apply
    
      scale
    
      drop
    """
    __members__: typing.ClassVar[dict[str, StalePolicy]]
    apply: typing.ClassVar[StalePolicy]
    drop: typing.ClassVar[StalePolicy]
    scale: typing.ClassVar[StalePolicy]
    @typing.overload
    def __eq__(self, other: StalePolicy) -> bool:
        ...
    @typing.overload
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __int__(self) -> int:
        ...
    @typing.overload
    def __ne__(self, other: StalePolicy) -> bool:
        ...
    @typing.overload
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class ServerMode:
    """
    How a push takes effect, and who waits for whom.
    """
    def __init__(self, kind: ModeKind, *, policy: StalePolicy | None = None, max_staleness: typing.SupportsInt | typing.SupportsIndex | None = None, staleness: typing.SupportsInt | typing.SupportsIndex = 0, backup_workers: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
class PsReducer(Reducer):
    """
    To the servers, which step.
    """
    def __init__(self, *, mode: ServerMode, ahead: bool, force: bool, push_every: typing.SupportsInt | typing.SupportsIndex = 0, fetch_every: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def add_squares(self, squares: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Of gradients elsewhere, to the next step's norm.
        """
class PsDifferences:
    """
    Of a step that the worker makes, to the servers.
    """
    def __init__(self, *, mode: ServerMode, rho: typing.SupportsFloat | typing.SupportsIndex = 0.0, period: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def add_parameters(self, named_parameters: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> None:
        ...
    def begin(self) -> None:
        ...
    def push(self, rates: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]) -> None:
        ...
class PsGradients:
    """
    That servers add up in a vector beside the parameters.
    """
    def __init__(self) -> None:
        ...
    def add_parameters(self, named_parameters: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> None:
        ...
    def push(self, into: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
def abort(reason: str) -> None:
    """
    Ends the job for every rank with this reason.
    """
def add_process_set(ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> int:
    """
    By all ranks; blocking. The number of the set.
    """
def add_row_table(*, name: str, rows: typing.SupportsInt | typing.SupportsIndex, columns: typing.SupportsInt | typing.SupportsIndex, adagrad: bool, initial_accumulator_value: typing.SupportsFloat | typing.SupportsIndex, eps: typing.SupportsFloat | typing.SupportsIndex, given: bool = False, deviation: typing.SupportsFloat | typing.SupportsIndex = 0.0, seed: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    """
    A table of rows on the servers; its number.
    """
def allgather_async(inputs: collections.abc.Sequence[torch.Tensor], name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def allgather_bytes(mine: torch.Tensor, name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> list[torch.Tensor]:
    """
    Every rank's bytes, by rank, as they were sent. Blocking.
    """
def allreduce(input: torch.Tensor, output: torch.Tensor, name: str, op: typing.SupportsInt | typing.SupportsIndex, prescale: typing.SupportsFloat | typing.SupportsIndex, postscale: typing.SupportsFloat | typing.SupportsIndex, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
    """
    Blocking, for one tensor: no handle is made.
    """
def allreduce_async(inputs: collections.abc.Sequence[torch.Tensor], outputs: collections.abc.Sequence[torch.Tensor], name: str, op: typing.SupportsInt | typing.SupportsIndex, prescale: typing.SupportsFloat | typing.SupportsIndex, postscale: typing.SupportsFloat | typing.SupportsIndex, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def alltoall_async(input: torch.Tensor, splits: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None, name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def arena_allreduce_async(tensor: torch.Tensor, name: str, op: typing.SupportsInt | typing.SupportsIndex) -> int:
    ...
def arena_empty(shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], like: torch.Tensor) -> torch.Tensor:
    ...
def ask_task(task: typing.SupportsInt | typing.SupportsIndex, waits: bool, failures: typing.SupportsInt | typing.SupportsIndex | None) -> tuple[int, bool, bool, int, str]:
    """
    (task, done, failed, settled, text), at once or when that task is done or more have failed.
    """
def autotune() -> dict:
    """
    What the environment says of autotuning.
    """
def backends() -> list:
    """
    What this build and this machine have; needs no World.
    """
def barrier_async(name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def begin_rank_step() -> None:
    ...
def begin_rows(table: typing.SupportsInt | typing.SupportsIndex, rows: torch.Tensor, values: torch.Tensor) -> None:
    ...
def begin_task() -> None:
    ...
def broadcast_async(inputs: collections.abc.Sequence[torch.Tensor], outputs: collections.abc.Sequence[torch.Tensor], root: typing.SupportsInt | typing.SupportsIndex, name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def broadcast_tensors(tensors: collections.abc.Sequence[torch.Tensor], root: typing.SupportsInt | typing.SupportsIndex, name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
    """
    Blocking, in place; of any layout and dtype.
    """
def check_options(op: typing.SupportsInt | typing.SupportsIndex, predivide_factor: typing.SupportsFloat | typing.SupportsIndex, backward_passes_per_step: typing.SupportsInt | typing.SupportsIndex, bucket_bytes: typing.SupportsInt | typing.SupportsIndex | None, max_grad_norm: typing.SupportsFloat | typing.SupportsIndex | None) -> None:
    ...
def close_tasks() -> None:
    """
    There are no more.
    """
def coordinates() -> bool:
    """
    Whether this process is the coordinator.
    """
def cpu_operations() -> str:
    """
    The backend that runs operations on tensors of the CPU.
    """
def cross_rank() -> int:
    ...
def cross_size() -> int:
    ...
def end_rank_step() -> None:
    ...
def end_task() -> None:
    ...
def gather_async(input: torch.Tensor, root: typing.SupportsInt | typing.SupportsIndex, name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def hosts() -> list[list[int]]:
    """
    By host the ranks of the job, ascending.
    """
def hosts_are_trusted() -> bool:
    """
    Whether code may come from other ranks: all are on this host, or what is between hosts is encrypted, or trusted by the user's word.
    """
def in_forked_child() -> bool:
    ...
def init(with_comm: bool = False) -> None:
    """
    Meets the other ranks. Blocking.
    """
def instruction_set() -> str:
    ...
def is_initialized() -> bool:
    ...
def join() -> int:
    """
    By all ranks; blocking. The rank that joined last.
    """
def joins() -> int:
    """
    How many joins of all ranks have ended.
    """
def local_rank() -> int:
    ...
def local_size() -> int:
    ...
def lost_server() -> int | None:
    """
    The one whose end has ended this worker's training; None so far, or without servers.
    """
def names_of(owned: collections.abc.Sequence[torch.Tensor], named: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    ...
def note_freed(bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
    ...
def obstacle_to_sharing(demanded: bool, obstacle: str | None, parameters: collections.abc.Sequence[tuple[str, torch.Tensor]], auto_parameters_min: typing.SupportsInt | typing.SupportsIndex) -> str:
    ...
def pace() -> tuple[bool, int]:
    """
    CIRANDA_OVERLAP and CIRANDA_SPIN_MICROSECONDS, as they are now.
    """
def pending() -> list:
    """
    Unfinished operations of this rank, with the ranks that had not submitted them.
    """
def poll(handle: typing.SupportsInt | typing.SupportsIndex) -> bool:
    ...
def pull_newest(root_rank: typing.SupportsInt | typing.SupportsIndex, all_ranks: bool, what: str) -> None:
    """
    What broadcasting parameters means with servers.
    """
def pull_rows(table: typing.SupportsInt | typing.SupportsIndex, rows: torch.Tensor) -> torch.Tensor:
    ...
def push_rows(table: typing.SupportsInt | typing.SupportsIndex, rows: torch.Tensor, gradients: torch.Tensor, lr: typing.SupportsFloat | typing.SupportsIndex) -> None:
    ...
def rank() -> int:
    ...
def read_checkpoint(path: str) -> list:
    """
    (name, value, state of the optimizer, its rule) of each parameter.
    """
def recv_async(tensor: torch.Tensor, src: typing.SupportsInt | typing.SupportsIndex, name: str) -> int:
    ...
def reduce_async(input: torch.Tensor, output: torch.Tensor, root: typing.SupportsInt | typing.SupportsIndex, name: str, op: typing.SupportsInt | typing.SupportsIndex, prescale: typing.SupportsFloat | typing.SupportsIndex, postscale: typing.SupportsFloat | typing.SupportsIndex, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def reducescatter_async(inputs: collections.abc.Sequence[torch.Tensor], name: str, op: typing.SupportsInt | typing.SupportsIndex, prescale: typing.SupportsFloat | typing.SupportsIndex, postscale: typing.SupportsFloat | typing.SupportsIndex, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def refuse_derivatives_in_step(gradient: torch.Tensor, parameter: str) -> None:
    ...
def remove_process_set(process_set: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    By all ranks; blocking.
    """
def require_agreement(name: str, options: str, parameters: collections.abc.Sequence[tuple[str, torch.Tensor]], obstacle: str = '', process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> str:
    ...
def scatter_async(input: torch.Tensor, root: typing.SupportsInt | typing.SupportsIndex, splits: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None, name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def schedule_task(call: str, copies: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    Its number, from 1.
    """
def send_async(tensor: torch.Tensor, dst: typing.SupportsInt | typing.SupportsIndex, name: str) -> int:
    ...
def server_average(value: typing.SupportsFloat | typing.SupportsIndex, name: str) -> float:
    ...
def server_count() -> int:
    """
    0 in a World, and before init().
    """
def server_stats() -> dict:
    ...
def set_pace(overlap: bool, spin_us: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Of this rank, from now on.
    """
def shutdown() -> None:
    """
    Says goodbye to the other ranks.
    """
def size() -> int:
    ...
def start_timeline(path: str, mark_cycles: bool) -> None:
    ...
def starter() -> str:
    """
    Whose environment variables told this rank's place.
    """
def stats() -> dict:
    """
    Seconds in blocking calls and what was moved, since init().
    """
def stop_timeline() -> None:
    ...
def streams() -> int:
    """
    CIRANDA_STREAMS, the same on every rank.
    """
def synchronize(handle: typing.SupportsInt | typing.SupportsIndex, look: collections.abc.Callable[[], None] | None = None) -> tuple[list[torch.Tensor], list[int]] | None:
    """
    (outputs, received rows) of the operation; None for a handle that was synchronized before. `look` is called about a hundred times a second meanwhile.
    """
def take_task(failed: bool, text: str) -> tuple[int, str]:
    """
    (task, call), once there is one; no task: nothing is left. `text`: of the one before.
    """
def waits_crosswise(scope: str) -> bool:
    """
    Whether this rank and another one wait for each other, in two operations whose names begin with `scope`.
    """
def work_with_vectors(sums: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]]]], dots: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> list[float]:
    """
    Of the coordinator: sums of vectors, (into, (vector, factor), ...), in their order, then dot products, which are the answer. Vector 0 is the parameters.
    """
def zero_rows(table: typing.SupportsInt | typing.SupportsIndex) -> torch.Tensor:
    """
    Of all rows of the table.
    """
ADASUM: int = 5
AUTO_PARAMETERS_MIN: int = 65536
AVERAGE: int = 1
MAX: int = 3
MIN: int = 2
PRODUCT: int = 4
SUM: int = 0
