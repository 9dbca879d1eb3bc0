"""
The C++ engine of ciranda; programs use ciranda.torch instead.
"""
from __future__ import annotations
import collections.abc
import torch
import typing
__all__: list[str] = ['ADASUM', 'AUTO_PARAMETERS_MIN', 'AVERAGE', 'Compression', 'LostStep', 'MAX', 'MIN', 'ModeKind', 'OptimizerCore', 'Order', 'PRODUCT', 'PsDifferences', 'PsGradients', 'PsStep', 'RecoveryPlan', 'RuleKind', 'SUM', 'ServerMode', 'SharedStepMode', 'StalePolicy', 'Training', 'UpdateRule', 'abort', 'add_process_set', 'add_row_table', 'agree_on_recovery', 'allgather_async', 'allgather_bytes', 'allreduce', 'allreduce_async', 'alltoall_async', 'arena_allreduce_async', 'arena_empty', 'ask_task', 'autotune', 'backends', 'barrier_async', 'begin_epoch', 'begin_rank_step', 'begin_rows', 'begin_task', 'broadcast_async', 'broadcast_tensors', 'check_values', 'close_tasks', 'coordinates', 'cpu_operations', 'cross_rank', 'cross_size', 'digest_of_values', 'end_rank_step', 'end_task', 'gather_async', 'hosts', 'hosts_are_trusted', 'in_elastic_job', 'in_forked_child', 'init', 'instruction_set', 'is_initialized', 'join', 'joins', 'leave_ranks', 'local_rank', 'local_size', 'lost_server', 'names_of', 'newest_order', 'note_freed', 'own_epoch', 'pace', 'pending', 'poll', 'pull_newest', 'pull_rows', 'push_rows', 'rank', 'read_checkpoint', 'recv_async', 'reduce_async', 'reducescatter_async', 'refuse_derivatives_in_step', 'refuse_options', 'remove_process_set', 'samples_of_block', 'say_at_end', 'say_formed', 'say_ready', 'scatter_async', 'schedule_task', 'seed_of_block', 'send_async', 'server_average', 'server_count', 'server_stats', 'set_pace', 'share_of_block', 'shutdown', 'size', 'start_timeline', 'starter', 'stats', 'stop_timeline', 'streams', 'synchronize', 'take_task', 'tell_who_left', 'wait_for_order', 'waits_crosswise', 'work_with_vectors', 'zero_rows']
class Training:
    """
    Members:
    
      ring
    
      adasum
    
      servers
    """
    __members__: typing.ClassVar[dict[str, Training]]
    adasum: typing.ClassVar[Training]
    ring: typing.ClassVar[Training]
    servers: typing.ClassVar[Training]
    @typing.overload
    def __eq__(self, other: Training) -> bool:
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
    def __ne__(self, other: Training) -> bool:
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
class SharedStepMode:
    """
    Members:
    
      auto
    
      host
    
      off
    """
    __members__: typing.ClassVar[dict[str, SharedStepMode]]
    auto: typing.ClassVar[SharedStepMode]
    host: typing.ClassVar[SharedStepMode]
    off: typing.ClassVar[SharedStepMode]
    @typing.overload
    def __eq__(self, other: SharedStepMode) -> bool:
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
    def __ne__(self, other: SharedStepMode) -> bool:
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
class LostStep:
    """
    Members:
    
      none
    
      begun
    
      for_others
    """
    __members__: typing.ClassVar[dict[str, LostStep]]
    begun: typing.ClassVar[LostStep]
    for_others: typing.ClassVar[LostStep]
    none: typing.ClassVar[LostStep]
    @typing.overload
    def __eq__(self, other: LostStep) -> bool:
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
    def __ne__(self, other: LostStep) -> bool:
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
class OptimizerCore:
    """
    What a DistributedOptimizer over ranks does beside the optimizer.
    """
    @staticmethod
    def take_changes(parameters: collections.abc.Sequence[torch.Tensor], starts: collections.abc.Sequence[torch.Tensor]) -> list[torch.Tensor]:
        ...
    def __init__(self, *, process_set: typing.SupportsInt | typing.SupportsIndex, named_parameters: collections.abc.Sequence[tuple[str, torch.Tensor]], obstacle: str | None, op: typing.SupportsInt | typing.SupportsIndex, adasum: bool, reduces: bool, predivide_factor: typing.SupportsFloat | typing.SupportsIndex, backward_passes_per_step: typing.SupportsInt | typing.SupportsIndex, compression: Compression, sparse_as_dense: bool, bucket_bytes: typing.SupportsInt | typing.SupportsIndex | None, groups: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]], shared_step: SharedStepMode, auto_parameters_min: typing.SupportsInt | typing.SupportsIndex, share_parameters: bool, max_grad_norm: typing.SupportsFloat | typing.SupportsIndex | None, others: str) -> None:
        ...
    def add_parameters(self, named_parameters: collections.abc.Sequence[tuple[str, torch.Tensor]], groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        ...
    def adopt_state(self, position: typing.SupportsInt | typing.SupportsIndex, state: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> None:
        ...
    def agree_on(self, added: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> str:
        ...
    def alone(self) -> bool:
        ...
    def arena_bytes(self) -> int:
        ...
    def begin_step(self) -> bool:
        ...
    def broadcast_buffers(self, buffers: collections.abc.Sequence[torch.Tensor]) -> None:
        ...
    def bucket_count(self) -> int:
        ...
    def combine(self, changes: collections.abc.Sequence[torch.Tensor]) -> list[torch.Tensor]:
        ...
    def compare(self, way: str) -> str:
        ...
    def complete_step(self) -> None:
        ...
    def described_options(self) -> str:
        ...
    def discard_step(self) -> None:
        ...
    def end_completed_step(self) -> None:
        ...
    def end_shared_step(self, why: str) -> None:
        ...
    def end_step(self, objects: bool) -> bool:
        ...
    def finish_step(self) -> None:
        ...
    def hold_step(self) -> None:
        ...
    def loss_of_all(self, loss: torch.Tensor) -> torch.Tensor:
        ...
    def lost_step(self) -> LostStep:
        ...
    def moved_bytes(self) -> int:
        ...
    def name(self) -> str:
        ...
    def norm(self) -> float:
        ...
    def retune(self, states: collections.abc.Sequence[collections.abc.Sequence[tuple[str, torch.Tensor]]], obstacle: str | None) -> None:
        ...
    def set_backward_passes_per_step(self, passes: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def set_rule(self, group: typing.SupportsInt | typing.SupportsIndex, rule: UpdateRule) -> None:
        ...
    def state(self, position: typing.SupportsInt | typing.SupportsIndex) -> list[tuple[str, torch.Tensor]]:
        ...
    def step(self, gradient_scale: typing.SupportsFloat | typing.SupportsIndex, reduce: bool, objection: str) -> str:
        ...
    def synchronize(self) -> None:
        ...
    def tune(self, class_name: str, clock: collections.abc.Callable[[], typing.SupportsFloat | typing.SupportsIndex]) -> None:
        ...
    def tunes(self) -> bool:
        ...
    def why_not_shared(self) -> str:
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
    The rules by which pushes take effect and workers wait for each other.
    """
    def __init__(self, kind: ModeKind, *, policy: StalePolicy | None = None, max_staleness: typing.SupportsInt | typing.SupportsIndex | None = None, staleness: typing.SupportsInt | typing.SupportsIndex = 0, backup_workers: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
class PsStep:
    """
    Pushes gradients to the servers, which make the step.
    """
    def __init__(self, *, mode: ServerMode, ahead: bool, force: bool, push_every: typing.SupportsInt | typing.SupportsIndex = 0, fetch_every: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def add_parameters(self, named_parameters: collections.abc.Sequence[tuple[str, torch.Tensor]], groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        ...
    def add_squares(self, squares: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Adds the squares of gradients elsewhere to the norm of the next step.
        """
    def adopt_state(self, position: typing.SupportsInt | typing.SupportsIndex, state: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> None:
        ...
    def norm(self) -> float:
        ...
    def set_rule(self, group: typing.SupportsInt | typing.SupportsIndex, rule: UpdateRule) -> None:
        ...
    def state(self, position: typing.SupportsInt | typing.SupportsIndex) -> list[tuple[str, torch.Tensor]]:
        ...
    def step(self, gradient_scale: typing.SupportsFloat | typing.SupportsIndex, max_norm: typing.SupportsFloat | typing.SupportsIndex, objection: str) -> None:
        ...
class PsDifferences:
    """
    Pushes the changes of a step that the worker makes to the servers.
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
    Pushes gradients that the servers add up in a vector beside the parameters.
    """
    def __init__(self) -> None:
        ...
    def add_parameters(self, named_parameters: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> None:
        ...
    def push(self, into: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
class Order:
    """
    What the arbiter of an elastic job has said last.
    """
    @property
    def epoch(self) -> int:
        ...
    @property
    def over(self) -> bool:
        ...
class RecoveryPlan:
    """
    From whom the ranks of an epoch get the state.
    """
    @property
    def behind(self) -> list[int]:
        ...
    @property
    def newcomers(self) -> list[int]:
        ...
    @property
    def source(self) -> int:
        ...
def abort(reason: str) -> None:
    """
    Ends the job for every rank with this reason.
    """
def add_process_set(ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> int:
    """
    Returns the number of a new process set. All ranks must call it; blocks until they have.
    """
def add_row_table(*, name: str, rows: typing.SupportsInt | typing.SupportsIndex, columns: typing.SupportsInt | typing.SupportsIndex, adagrad: bool, initial_accumulator_value: typing.SupportsFloat | typing.SupportsIndex, eps: typing.SupportsFloat | typing.SupportsIndex, given: bool = False, deviation: typing.SupportsFloat | typing.SupportsIndex = 0.0, seed: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    """
    Adds a table of rows to the servers and returns its number.
    """
def agree_on_recovery(holds_state: bool, moment: typing.SupportsInt | typing.SupportsIndex) -> RecoveryPlan:
    ...
def allgather_async(inputs: collections.abc.Sequence[torch.Tensor], name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def allgather_bytes(mine: torch.Tensor, name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> list[torch.Tensor]:
    """
    Returns the bytes of every rank, in the order of the ranks. Blocks until all are received.
    """
def allreduce(input: torch.Tensor, output: torch.Tensor, name: str, op: typing.SupportsInt | typing.SupportsIndex, prescale: typing.SupportsFloat | typing.SupportsIndex, postscale: typing.SupportsFloat | typing.SupportsIndex, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
    """
    Reduces one tensor without making a handle. Blocks until the result is in output.
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
    Returns (task, done, failed, settled, text), at once, or when that task is done or more tasks have failed.
    """
def autotune() -> dict:
    """
    Returns the settings of autotuning from the environment.
    """
def backends() -> list:
    """
    Returns the backends of this build and this machine. Needs no World.
    """
def barrier_async(name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def begin_epoch() -> None:
    """
    Meets the members of the newest epoch in its World.
    """
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
    Broadcasts tensors of any layout and dtype in place. Blocks until they are received.
    """
def check_values(backward_passes_per_step: typing.SupportsInt | typing.SupportsIndex, max_grad_norm: typing.SupportsFloat | typing.SupportsIndex | None) -> None:
    ...
def close_tasks() -> None:
    """
    Ends the schedule: no more tasks follow.
    """
def coordinates() -> bool:
    """
    True if this process is the coordinator.
    """
def cpu_operations() -> str:
    """
    Returns the backend that runs operations on CPU tensors.
    """
def cross_rank() -> int:
    ...
def cross_size() -> int:
    ...
def digest_of_values(tensor: torch.Tensor) -> int:
    """
    A digest of a tensor's values: equal values have equal digests. Waits for a GPU.
    """
def end_rank_step() -> None:
    ...
def end_task() -> None:
    ...
def gather_async(input: torch.Tensor, root: typing.SupportsInt | typing.SupportsIndex, name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def hosts() -> list[list[int]]:
    """
    Returns the ranks of each host, ascending.
    """
def hosts_are_trusted() -> bool:
    """
    True if this rank may run code that other ranks send: all ranks are on this host, or the network between the hosts is encrypted or declared trusted.
    """
def in_elastic_job() -> bool:
    """
    True if the launcher may change the ranks of this job.
    """
def in_forked_child() -> bool:
    ...
def init(with_comm: bool = False) -> None:
    """
    Meets the other ranks. Blocks until all ranks have joined.
    """
def instruction_set() -> str:
    ...
def is_initialized() -> bool:
    ...
def join() -> int:
    """
    Returns the rank that joined last. All ranks must call it; blocks until they have.
    """
def joins() -> int:
    """
    Returns the number of joins that all ranks have finished.
    """
def leave_ranks() -> None:
    """
    Leaves the other ranks; rank() and size() still tell of this World.
    """
def local_rank() -> int:
    ...
def local_size() -> int:
    ...
def lost_server() -> int | None:
    """
    Returns the number of the server whose loss ended this worker's training; None if no server was lost or the job has no servers.
    """
def names_of(owned: collections.abc.Sequence[torch.Tensor], named: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    ...
def newest_order() -> Order:
    """
    Reads what the arbiter has said. Does not block.
    """
def note_freed(bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
    ...
def own_epoch() -> int:
    """
    The number of the epoch of this World; 0: alone.
    """
def pace() -> tuple[bool, int]:
    """
    Returns the current values of CIRANDA_OVERLAP and CIRANDA_SPIN_MICROSECONDS.
    """
def pending() -> list:
    """
    Returns the unfinished operations of this rank, with the ranks that had not submitted them.
    """
def poll(handle: typing.SupportsInt | typing.SupportsIndex) -> bool:
    ...
def pull_newest(root_rank: typing.SupportsInt | typing.SupportsIndex, all_ranks: bool, what: str) -> None:
    """
    Fetches the newest parameters from the servers, in place of a broadcast of parameters.
    """
def pull_rows(table: typing.SupportsInt | typing.SupportsIndex, rows: torch.Tensor) -> torch.Tensor:
    ...
def push_rows(table: typing.SupportsInt | typing.SupportsIndex, rows: torch.Tensor, gradients: torch.Tensor, lr: typing.SupportsFloat | typing.SupportsIndex) -> None:
    ...
def rank() -> int:
    ...
def read_checkpoint(path: str) -> list:
    """
    Reads a checkpoint and returns (name, value, optimizer state, update rule) of each parameter.
    """
def recv_async(tensor: torch.Tensor, src: typing.SupportsInt | typing.SupportsIndex, name: str) -> int:
    ...
def reduce_async(input: torch.Tensor, output: torch.Tensor, root: typing.SupportsInt | typing.SupportsIndex, name: str, op: typing.SupportsInt | typing.SupportsIndex, prescale: typing.SupportsFloat | typing.SupportsIndex, postscale: typing.SupportsFloat | typing.SupportsIndex, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def reducescatter_async(inputs: collections.abc.Sequence[torch.Tensor], name: str, op: typing.SupportsInt | typing.SupportsIndex, prescale: typing.SupportsFloat | typing.SupportsIndex, postscale: typing.SupportsFloat | typing.SupportsIndex, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def refuse_derivatives_in_step(gradient: torch.Tensor, parameter: str) -> None:
    ...
def refuse_options(training: Training, given: collections.abc.Sequence[str]) -> None:
    ...
def remove_process_set(process_set: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Removes a process set. All ranks must call it; blocks until they have.
    """
def samples_of_block(samples: typing.SupportsInt | typing.SupportsIndex, done: typing.SupportsInt | typing.SupportsIndex, batch: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, drop_last: bool) -> int:
    """
    How many samples all ranks together train on in the next block; 0 at the end.
    """
def say_at_end(since: typing.SupportsInt | typing.SupportsIndex) -> None:
    ...
def say_formed(step: typing.SupportsInt | typing.SupportsIndex) -> None:
    ...
def say_ready() -> None:
    ...
def scatter_async(input: torch.Tensor, root: typing.SupportsInt | typing.SupportsIndex, splits: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None, name: str, process_set: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
    ...
def schedule_task(call: str, copies: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    Schedules a task and returns its number, from 1.
    """
def seed_of_block(seed: typing.SupportsInt | typing.SupportsIndex, pass_number: typing.SupportsInt | typing.SupportsIndex, done: typing.SupportsInt | typing.SupportsIndex, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    The seed of a rank's random numbers in a block.
    """
def send_async(tensor: torch.Tensor, dst: typing.SupportsInt | typing.SupportsIndex, name: str) -> int:
    ...
def server_average(value: typing.SupportsFloat | typing.SupportsIndex, name: str) -> float:
    ...
def server_count() -> int:
    """
    Returns the number of servers; 0 in a World and before init().
    """
def server_stats() -> dict:
    ...
def set_pace(overlap: bool, spin_us: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Sets CIRANDA_OVERLAP and CIRANDA_SPIN_MICROSECONDS of this rank from now on.
    """
def share_of_block(count: typing.SupportsInt | typing.SupportsIndex, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex) -> tuple[int, int]:
    """
    The rank's share of a block, as positions in the block.
    """
def shutdown() -> None:
    """
    Leaves the other ranks and ends the World.
    """
def size() -> int:
    ...
def start_timeline(path: str, mark_cycles: bool) -> None:
    ...
def starter() -> str:
    """
    Returns the name of the starter whose environment variables told this rank's place.
    """
def stats() -> dict:
    """
    Returns the seconds in blocking calls and the bytes moved since init().
    """
def stop_timeline() -> None:
    ...
def streams() -> int:
    """
    Returns CIRANDA_STREAMS, which is the same on every rank.
    """
def synchronize(handle: typing.SupportsInt | typing.SupportsIndex, look: collections.abc.Callable[[], None] | None = None) -> tuple[list[torch.Tensor], list[int]] | None:
    """
    Blocks until the operation is done and returns (outputs, received rows); None if the handle was synchronized before. Calls `look` about a hundred times a second meanwhile.
    """
def take_task(failed: bool, text: str) -> tuple[int, str]:
    """
    Reports the previous task with its result `text`, blocks until there is another task and returns (task, call). No task: nothing is left.
    """
def tell_who_left(who: typing.SupportsInt | typing.SupportsIndex, step: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Tells the launcher that this rank needs a rank that has left this World.
    """
def wait_for_order(timeout_ms: typing.SupportsInt | typing.SupportsIndex) -> bool:
    """
    Blocks until the arbiter says something.
    """
def waits_crosswise(scope: str) -> bool:
    """
    True if this rank and another rank wait for each other, in two operations whose names begin with `scope`.
    """
def work_with_vectors(sums: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]]]], dots: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> list[float]:
    """
    Has the servers compute sums of vectors, (into, (vector, factor), ...), in this order, and then dot products, which it returns. Vector 0 is the parameters. Only the coordinator may call it.
    """
def zero_rows(table: typing.SupportsInt | typing.SupportsIndex) -> torch.Tensor:
    """
    Returns zeros with the shape of the whole table.
    """
ADASUM: int = 5
AUTO_PARAMETERS_MIN: int = 65536
AVERAGE: int = 1
MAX: int = 3
MIN: int = 2
PRODUCT: int = 4
SUM: int = 0
