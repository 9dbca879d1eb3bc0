"""What Horovod's users were promised, one promise a row, and the tests that hold it here.

A row speaks of names of tools/horovod_table.py, of options of horovodrun, or of a subject below.
Tests are "path::name", the path from tests/; test_contract.py holds that they exist, and that
every name has a row.
"""

from __future__ import annotations

from typing import NamedTuple

COLLECTIVES = "python/torch/test_collectives.py"
SETS = "python/torch/test_process_sets.py"
MISUSE = "python/torch/test_wrong_use.py"
WORLD = "python/torch/test_world.py"
JOIN = "python/torch/test_join.py"
SHARED_JOIN = "python/torch/test_join_shared_step.py"
AUTOGRAD = "python/torch/test_autograd.py"
NAMES = "python/torch/test_horovod_names.py"
GRADIENTS = "python/torch/test_optimizer_gradients.py"
TRAINING = "python/torch/test_optimizer_training.py"
WRAPPING = "python/torch/test_optimizer_wrapping.py"
SPARSE = "python/torch/test_optimizer_sparse.py"
BROADCAST = "python/torch/test_optimizer_broadcast.py"
OBJECTS = "python/torch/test_objects.py"
ADASUM = "python/torch/test_adasum.py"
BATCH_NORM = "python/torch/test_sync_batch_norm.py"
BACKENDS = "python/torch/test_operations.py"
TIMELINE = "python/torch/test_timeline.py"
AUTOTUNE = "python/torch/test_autotune.py"
LOADER = "python/torch/test_async_loader.py"
RUN_OPTIONS = "python/launch/test_horovodrun.py"
ELASTIC_RUN = "python/launch/test_elastic_horovod.py"
ELASTIC_STATE = "python/torch/test_elastic_state.py"
ELASTIC_LAUNCH = "python/launch/test_elastic_launch.py"
RUN_NAMES = "python/launch/test_horovod_names.py"
FUNCTION = "python/launch/test_function.py"
ENDING = "python/launch/test_ending.py"
CLI = "python/launch/test_cli.py"
CONFIG = "cpp/settings/config_test.cc"

# What rows speak of that is neither a name, an option nor a variable.
SUBJECTS = {"horovod", "dtypes", "names", "autograd", "output", "checkpoint", "data", "LibTorch"}


class Promise(NamedTuple):
    of: tuple[str, ...]
    says: str
    tests: tuple[str, ...]


def _row(of: str, says: str, *tests: str) -> Promise:
    return Promise(tuple(of.split()), says, tests)


BASICS = [
    _row(
        "init",
        "a second call is a no-op",
        f"{WORLD}::test_init_and_shutdown_twice",
        f"{SETS}::test_init_refuses_static_sets_that_cannot_be_and_a_later_one_works",
    ),
    _row("init", "comm is a list of ranks", f"{SETS}::test_init_of_a_part_makes_a_job_of_it"),
    _row(
        "init",
        "comm is an mpi4py communicator",
        f"{SETS}::test_init_of_a_part_makes_a_job_of_it",
        "python/starters/test_starters.py::test_the_job_is_an_mpi_communicator",
    ),
    _row(
        "init",
        'process_sets is a list of ProcessSet, or "dynamic"',
        f"{SETS}::test_static_overlapping_and_single_sets_work_from_several_threads_at_once",
    ),
    _row(
        "init",
        "one set twice: ValueError",
        f"{SETS}::test_init_refuses_static_sets_that_cannot_be_and_a_later_one_works",
    ),
    _row(
        "init",
        "a failure is a ValueError",
        f"{MISUSE}::test_bad_arguments_are_refused_in_one_sentence_and_only_there",
        f"{MISUSE}::test_a_bad_variable_is_named",
        f"{SETS}::test_a_comm_that_some_do_not_give_is_one_error_on_all",
    ),
    _row(
        "init",
        "without a launcher the job has one rank",
        f"{WORLD}::test_without_a_launcher_there_is_one_rank",
    ),
    _row(
        "init shutdown",
        "the end of the interpreter shuts down",
        f"{WORLD}::test_the_interpreter_ends_with_its_own_exit_code",
    ),
    _row(
        "shutdown",
        "pending operations fail",
        f"{MISUSE}::test_nothing_works_before_init_and_after_shutdown",
    ),
    _row(
        "init shutdown",
        "init() after shutdown() joins anew",
        f"{WORLD}::test_init_and_shutdown_twice",
        f"{WORLD}::test_worlds_follow_each_other_without_a_pause",
    ),
    _row(
        "is_initialized",
        "True between init() and shutdown()",
        f"{MISUSE}::test_nothing_works_before_init_and_after_shutdown",
    ),
    _row(
        "size rank local_size local_rank cross_size cross_rank",
        "this rank's place in the job and on its host",
        f"{WORLD}::test_other_launchers_are_understood",
        "python/hosts/test_hosts.py::test_training_equals_one_process",
    ),
    _row(
        "size rank local_size local_rank cross_size cross_rank",
        "before init(): ValueError",
        f"{MISUSE}::test_nothing_works_before_init_and_after_shutdown",
        f"{MISUSE}::test_not_initialized_is_a_value_error_as_in_horovod",
    ),
    _row(
        "is_homogeneous cross_size cross_rank",
        "whether all hosts have as many ranks; cross_* count hosts with this local rank",
        f"{WORLD}::test_hosts_with_different_numbers_of_ranks",
    ),
    _row(
        "mpi_threads_supported mpi_enabled mpi_built gloo_built nccl_built ddl_built ccl_built "
        "cuda_built rocm_built",
        "facts of the build; nccl_built() is the version's number, 0 for none",
        f"{BACKENDS}::test_horovods_questions_are_about_what_can_run",
    ),
    _row(
        "gloo_enabled",
        "whether Gloo runs this job's operations",
        f"{BACKENDS}::test_gloo_runs_and_warns_unless_its_network_is_trusted",
        f"{BACKENDS}::test_our_own_runs_by_its_name_too",
    ),
    _row(
        "start_timeline stop_timeline",
        "begin and end a trace at any time, with marks of cycles if asked",
        f"{TIMELINE}::test_calls_start_and_stop_it",
    ),
    _row(
        "start_timeline",
        "while another one is written: ValueError",
        f"{TIMELINE}::test_calls_start_and_stop_it",
    ),
    _row(
        "Average Sum Adasum Min Max Product",
        "ints, all different",
        f"{NAMES}::test_reduce_ops_are_different_ints",
    ),
    _row(
        "HorovodInternalError",
        "a RuntimeError; what fails at run time raises it, on every rank",
        f"{MISUSE}::test_not_initialized_is_a_value_error_as_in_horovod",
        f"{MISUSE}::test_a_mismatch_is_told_to_every_rank_at_once",
        f"{WRAPPING}::test_a_lost_rank_is_an_error_of_its_class_in_step",
    ),
    _row(
        "HorovodInternalError",
        "bad arguments are a ValueError instead, on the rank that gave them",
        f"{MISUSE}::test_bad_arguments_are_refused_in_one_sentence_and_only_there",
    ),
]

OPERATIONS = [
    _row(
        "names",
        "positional arguments and defaults are Horovod's",
        f"{NAMES}::test_arguments_are_horovods",
    ),
    _row(
        "names",
        "without a name: the n-th unnamed call of a kind on every rank",
        f"{COLLECTIVES}::test_unnamed_operations_of_a_kind_meet_by_their_number",
    ),
    _row(
        "names",
        "named operations meet in any order",
        f"{COLLECTIVES}::test_named_operations_meet_in_any_order",
    ),
    _row(
        "names",
        "a name that is in flight: ValueError, and the first is not harmed",
        f"{MISUSE}::test_a_name_in_flight_is_refused",
    ),
    _row(
        "names dtypes",
        "another shape, dtype, op, factor, root or number on one rank: an error on every rank",
        f"{MISUSE}::test_a_mismatch_is_told_to_every_rank_at_once",
        f"{MISUSE}::test_a_mismatch_of_many_ranks_names_them_all",
    ),
    _row(
        "allreduce allreduce_async allreduce_ allreduce_async_",
        "op None is Average",
        f"{COLLECTIVES}::test_allreduce_forms",
    ),
    _row(
        "allreduce allreduce_async",
        "out of place: the input is left alone",
        f"{COLLECTIVES}::test_allreduce_forms",
    ),
    _row(
        "allreduce_ allreduce_async_",
        "in place; the same tensor comes back",
        f"{COLLECTIVES}::test_allreduce_forms",
    ),
    _row(
        "allreduce",
        "average=True is Average, average=False is Sum",
        f"{COLLECTIVES}::test_allreduce_forms",
    ),
    _row(
        "allreduce",
        "both average and op: ValueError",
        f"{MISUSE}::test_bad_arguments_are_refused_in_one_sentence_and_only_there",
    ),
    _row(
        "allreduce Average Sum Min Max Product",
        "what torch computes of all ranks' tensors",
        f"{COLLECTIVES}::test_allreduce_every_op_and_dtype",
        f"{COLLECTIVES}::test_allreduce_multiplies",
    ),
    _row(
        "Adasum",
        "pairs by a tree; any number of ranks; in place, grouped, scaled, in sets",
        f"{ADASUM}::test_an_allreduce_is_the_models",
        f"{ADASUM}::test_forms_groups_scales_and_sets",
    ),
    _row(
        "allreduce",
        "prescale_factor before the sum, stored in the tensor's dtype; postscale_factor after it",
        f"{COLLECTIVES}::test_allreduce_scaled_before_and_after",
        f"{COLLECTIVES}::test_factors_of_whole_numbers_are_truncated",
    ),
    _row(
        "allreduce dtypes",
        "an average of whole numbers is truncated",
        f"{COLLECTIVES}::test_integer_average_is_truncated_toward_zero",
    ),
    _row(
        "allreduce grouped_allreduce reducescatter Compression",
        "compression gives back the dtype",
        f"{COLLECTIVES}::test_compression_gives_back_the_dtype",
    ),
    _row(
        "allreduce reducescatter dtypes",
        "int32, int64, float16, float32, float64",
        f"{COLLECTIVES}::test_allreduce_every_op_and_dtype",
        f"{COLLECTIVES}::test_reducescatter_every_dtype_and_shape",
    ),
    _row(
        "allgather broadcast alltoall dtypes",
        "also uint8, int8, int16",
        f"{COLLECTIVES}::test_allgather_unequal_rows",
        f"{COLLECTIVES}::test_broadcast_every_dtype_and_shape",
        f"{COLLECTIVES}::test_alltoall_even",
    ),
    _row(
        "dtypes allreduce broadcast allgather alltoall reducescatter",
        "a tensor that is not contiguous: ValueError",
        f"{MISUSE}::test_bad_arguments_are_refused_in_one_sentence_and_only_there",
    ),
    _row(
        "grouped_allreduce grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_",
        "a list in, a list out; one handle",
        f"{COLLECTIVES}::test_grouped_allreduce_forms",
    ),
    _row(
        "grouped_allreduce_async",
        "a group is one request, which waits for every rank",
        "cpp/negotiate/negotiator_test.cc::Negotiator.WaitsUntilEveryRankSubmitted",
        f"{MISUSE}::test_a_mismatch_is_told_to_every_rank_at_once",
    ),
    _row(
        "grouped_allreduce HOROVOD_DISABLE_GROUP_FUSION",
        "the bits do not depend on what is fused",
        f"{COLLECTIVES}::test_fusion_does_not_change_the_bits",
    ),
    _row(
        "sparse_allreduce_async",
        "indices and values are gathered; a callable comes back, not a handle",
        f"{SPARSE}::test_sparse_allreduce_adds_up_what_all_ranks_have",
    ),
    _row(
        "allgather allgather_async",
        "concatenation along dimension 0, which may differ by rank",
        f"{COLLECTIVES}::test_allgather_unequal_rows",
        f"{COLLECTIVES}::test_allgather_forms",
    ),
    _row(
        "allgather reducescatter",
        "a tensor without dimensions: ValueError",
        f"{MISUSE}::test_bad_arguments_are_refused_in_one_sentence_and_only_there",
    ),
    _row(
        "grouped_allgather grouped_allgather_async",
        "a list in, a list out",
        f"{COLLECTIVES}::test_allgather_forms",
    ),
    _row(
        "broadcast broadcast_async broadcast_ broadcast_async_",
        "the root's values; broadcast_ in place",
        f"{COLLECTIVES}::test_broadcast_every_dtype_and_shape",
        f"{COLLECTIVES}::test_broadcast_forms",
    ),
    _row(
        "broadcast ProcessSet",
        "root_rank is a rank of the job, also within a set",
        f"{SETS}::test_every_collective_runs_among_the_members_alone",
        f"{SETS}::test_what_cannot_be_is_one_sentence_on_every_rank_and_the_job_goes_on",
    ),
    _row(
        "alltoall",
        "without splits: dimension 0 must divide evenly, else ValueError; the output alone",
        f"{COLLECTIVES}::test_alltoall_even",
        f"{MISUSE}::test_bad_arguments_are_refused_in_one_sentence_and_only_there",
    ),
    _row(
        "alltoall",
        "with splits, a list or a tensor: (output, received_splits)",
        f"{COLLECTIVES}::test_alltoall_splits",
    ),
    _row(
        "alltoall_async",
        "the handle always gives the pair",
        f"{COLLECTIVES}::test_async_alltoall_gives_output_and_splits",
    ),
    _row(
        "reducescatter reducescatter_async",
        "Average by default; the first ranks get the rows that remain",
        f"{COLLECTIVES}::test_reducescatter_forms",
        f"{COLLECTIVES}::test_reducescatter_every_dtype_and_shape",
    ),
    _row(
        "reducescatter",
        "another op than Average or Sum: ValueError",
        f"{MISUSE}::test_bad_arguments_are_refused_in_one_sentence_and_only_there",
        f"{ADASUM}::test_what_it_is_not_for_is_one_sentence",
    ),
    _row(
        "grouped_reducescatter grouped_reducescatter_async",
        "a list in, a list out, with op and factors",
        f"{COLLECTIVES}::test_reducescatter_forms",
    ),
    _row(
        "barrier",
        "nobody leaves before the last one came",
        f"{COLLECTIVES}::test_nobody_leaves_a_barrier_before_the_last_came",
    ),
    _row(
        "barrier ProcessSet",
        "blocks the members of its set alone",
        f"{SETS}::test_every_collective_runs_among_the_members_alone",
    ),
    _row(
        "poll synchronize",
        "a handle is an int; poll() True: synchronize() does not block",
        f"{COLLECTIVES}::test_poll_tells_and_a_second_synchronize_gives_none",
        f"{COLLECTIVES}::test_a_handle_is_its_number_in_any_form",
    ),
    _row(
        "synchronize",
        "the second time: None",
        f"{COLLECTIVES}::test_poll_tells_and_a_second_synchronize_gives_none",
    ),
]

DIFFERENTIABLE = [
    _row(
        "autograd allreduce",
        "the gradient is the same allreduce of the gradient, with its op and factors",
        f"{AUTOGRAD}::test_allreduce",
        f"{AUTOGRAD}::test_scales_and_sets",
        f"{ADASUM}::test_the_gradient_is_the_adasum_of_the_gradients",
    ),
    _row(
        "autograd allgather",
        "the gradient is this rank's slice of the average",
        f"{AUTOGRAD}::test_allgather",
    ),
    _row(
        "autograd broadcast",
        "the gradient is the average at the root, and zero elsewhere",
        f"{AUTOGRAD}::test_broadcast",
    ),
    _row("autograd alltoall", "gradients travel back", f"{AUTOGRAD}::test_alltoall"),
    _row(
        "autograd reducescatter",
        "the gradient is the allgather, times the ranks for Sum",
        f"{AUTOGRAD}::test_reducescatter",
    ),
    _row(
        "autograd grouped_allreduce grouped_allgather grouped_reducescatter",
        "gradients are those of single operations, also where some need none",
        f"{AUTOGRAD}::test_groups",
    ),
    _row(
        "autograd allreduce grouped_allreduce allgather broadcast alltoall reducescatter",
        "gradients can be differentiated again",
        f"{AUTOGRAD}::test_second_derivatives",
        f"{AUTOGRAD}::test_groups_by_differences",
    ),
    _row(
        "autograd ProcessSet",
        "gradients stay within the set",
        f"{SETS}::test_every_collective_runs_among_the_members_alone",
    ),
]

UNEVEN = [
    _row(
        "join",
        "a joined rank adds zeros to sums and averages, which count it still",
        f"{JOIN}::test_joined_ranks_add_zeros_and_count",
    ),
    _row(
        "join",
        "gives the rank that joined last, on every rank",
        f"{JOIN}::test_joined_ranks_add_zeros_and_count",
        f"{JOIN}::test_one_rank_joins_alone",
    ),
    _row(
        "join allgather broadcast alltoall reducescatter",
        "others' operations that have no zero: an error on the ranks that call them",
        f"{JOIN}::test_what_has_no_zero_raises_where_it_is_called_and_the_job_goes_on",
    ),
    _row(
        "join",
        "takes no process set, and counts in each",
        f"{SETS}::test_whatever_horovod_runs_over_a_set_takes_one",
        f"{JOIN}::test_joined_ranks_count_in_their_sets_and_in_no_other",
    ),
    _row(
        "join DistributedOptimizer",
        "training goes on without ranks that have joined",
        f"{JOIN}::test_an_optimizer_goes_on_without_ranks_that_have_joined",
        f"{SHARED_JOIN}::test_equals_one_process_that_averages_with_zeros",
        "python/hosts/test_hosts.py::test_ranks_with_fewer_batches_share_their_step",
    ),
]

HELPERS = [
    _row(
        "DistributedOptimizer",
        "isinstance of the user's class, with its attributes",
        f"{WRAPPING}::test_the_object_stays_what_it_is",
    ),
    _row(
        "DistributedOptimizer",
        "training is that of one process with the joined batch",
        f"{TRAINING}::test_ranks_train_as_one_rank_with_the_joined_batch",
        "python/torch/differential/test_differential.py::test_a_script_does_what_torch_does",
    ),
    _row(
        "DistributedOptimizer",
        "backward() reduces each gradient",
        f"{GRADIENTS}::test_backward_returns_with_the_mean_in_shared_memory",
    ),
    _row("DistributedOptimizer", "step() takes a closure", f"{TRAINING}::test_closures"),
    _row(
        "DistributedOptimizer synchronize skip_synchronize",
        "synchronize(), edit, then step() within skip_synchronize()",
        f"{TRAINING}::test_clipping_sees_reduced_gradients",
        f"{TRAINING}::test_grad_scaler",
    ),
    _row(
        "DistributedOptimizer synchronize skip_synchronize",
        "step() after synchronize() without it: one warning",
        f"{WRAPPING}::test_a_step_after_synchronize_that_would_reduce_again_warns",
    ),
    _row(
        "DistributedOptimizer zero_grad",
        "zero_grad() forgets what has been added up",
        f"{GRADIENTS}::test_zero_grad_forgets_passes",
        f"{GRADIENTS}::test_backward_returns_with_the_mean_in_shared_memory",
    ),
    _row(
        "DistributedOptimizer set_backward_passes_per_step",
        "backward_passes_per_step gradients are added up before they are reduced; may change",
        f"{GRADIENTS}::test_declared_passes_add_up_before_they_are_reduced",
        f"{GRADIENTS}::test_the_number_of_passes_can_change",
    ),
    _row(
        "DistributedOptimizer",
        "more backward passes than promised: the exact average, or an error for Sum",
        f"{GRADIENTS}::test_undeclared_passes_add_up_exactly",
        f"{GRADIENTS}::test_sums_are_not_summed_again",
    ),
    _row(
        "DistributedOptimizer",
        "load_state_dict() and state_dict() are the optimizer's",
        f"{WRAPPING}::test_state_dicts_are_those_of_the_plain_optimizer",
        f"{WRAPPING}::test_state_from_before_is_kept",
    ),
    _row(
        "DistributedOptimizer",
        "_parameter_names",
        f"{WRAPPING}::test_the_object_stays_what_it_is",
        f"{TRAINING}::test_add_param_group",
    ),
    _row(
        "DistributedOptimizer Sum", "op=Sum", f"{TRAINING}::test_sum_is_the_average_times_the_ranks"
    ),
    _row(
        "DistributedOptimizer",
        "gradient_predivide_factor, groups, num_groups",
        f"{TRAINING}::test_options_that_change_nothing_but_rounding",
        f"{GRADIENTS}::test_buckets_follow_bytes_and_groups",
    ),
    _row(
        "DistributedOptimizer",
        "sparse gradients are gathered, or densified with sparse_as_dense",
        f"{SPARSE}::test_sparse_gradients_are_gathered",
        f"{SPARSE}::test_sparse_as_dense",
    ),
    _row(
        "DistributedOptimizer Adasum",
        "each rank steps, and what that has changed is combined",
        f"{ADASUM}::test_the_optimizer_combines_what_each_rank_has_changed",
    ),
    _row(
        "DistributedOptimizer",
        "a parameter without a gradient on this rank counts as zeros",
        f"{GRADIENTS}::test_parameters_that_one_rank_does_not_use_count_as_zeros_there",
    ),
    _row(
        "DistributedOptimizer",
        "one rank reduces nothing",
        f"{WRAPPING}::test_one_rank_needs_no_reduction",
    ),
    _row(
        "DistributedOptimizer",
        "duplicate names, missing names, other than pairs, predivide with another op: ValueError",
        f"{WRAPPING}::test_wrong_arguments_are_refused",
    ),
    _row(
        "DistributedOptimizer ProcessSet",
        "its ranks train together; others step by themselves",
        f"{SETS}::test_two_optimizers_over_disjoint_sets_train_as_two_processes",
        f"{WRAPPING}::test_a_rank_outside_the_set_steps_by_itself",
    ),
    _row(
        "Compression DistributedOptimizer",
        "none, fp16, or a class of the user's with compress() and decompress()",
        f"{TRAINING}::test_compression",
    ),
    _row(
        "Compression",
        "fp16 touches floats alone",
        f"{COLLECTIVES}::test_compression_gives_back_the_dtype",
    ),
    _row(
        "broadcast_parameters",
        "a dict, or (name, tensor) pairs; in place",
        f"{OBJECTS}::test_parameters_become_those_of_the_root",
        f"{BROADCAST}::test_lists_generators_and_odd_tensors",
    ),
    _row(
        "broadcast_optimizer_state",
        "tensors and hyper-parameters, also where only the root has state",
        f"{BROADCAST}::test_ranks_get_the_roots_state_and_no_step_is_run",
        f"{OBJECTS}::test_optimizer_state_becomes_that_of_the_root",
    ),
    _row(
        "broadcast_optimizer_state",
        "leaves gradients of zeros where there was no state",
        f"{BROADCAST}::test_a_root_without_state_leaves_gradients_of_zeros_as_in_horovod",
    ),
    _row("broadcast_optimizer_state", "LBFGS: ValueError", f"{BROADCAST}::test_lbfgs_is_refused"),
    _row(
        "broadcast_object allgather_object",
        "any plain value; others with allow_pickle",
        f"{OBJECTS}::test_objects_travel",
        f"{OBJECTS}::test_only_plain_values_travel_without_leave",
    ),
    _row(
        "SyncBatchNorm",
        "batch norm over the joined batch; channels and dimensions are checked",
        f"{BATCH_NORM}::test_it_is_batch_norm_over_the_joined_batch",
        f"{BATCH_NORM}::test_sets_and_what_is_refused",
    ),
    _row(
        "checkpoint broadcast_parameters broadcast_optimizer_state",
        "save on rank 0, load, broadcast, go on",
        "python/torch/test_checkpoint.py::test_training_goes_on_as_if_one_process_had_never_stopped",
    ),
]

PROCESS_SETS = [
    _row(
        "ProcessSet",
        "process_set_id, ranks, size(), rank(), included()",
        f"{SETS}::test_every_collective_runs_among_the_members_alone",
        f"{SETS}::test_static_overlapping_and_single_sets_work_from_several_threads_at_once",
    ),
    _row(
        "ProcessSet",
        "of an mpi4py communicator, kept as mpi_comm",
        f"{SETS}::test_init_refuses_static_sets_that_cannot_be_and_a_later_one_works",
    ),
    _row(
        "global_process_set",
        "number 0, all ranks, and the default of every operation",
        f"{SETS}::test_init_refuses_static_sets_that_cannot_be_and_a_later_one_works",
        f"{SETS}::test_whatever_horovod_runs_over_a_set_takes_one",
    ),
    _row(
        "add_process_set",
        "takes a ProcessSet or a list of ranks, and gives the set",
        f"{SETS}::test_every_collective_runs_among_the_members_alone",
    ),
    _row(
        "add_process_set",
        "ranks that mean different sets, a set twice, an unknown rank: an error on every rank",
        f"{SETS}::test_what_cannot_be_is_one_sentence_on_every_rank_and_the_job_goes_on",
    ),
    _row(
        "remove_process_set",
        "True; False for the global set and one that was never added",
        f"{SETS}::test_what_cannot_be_is_one_sentence_on_every_rank_and_the_job_goes_on",
    ),
    _row(
        "remove_process_set",
        "while an operation is pending: an error on every rank, and the set stays",
        f"{SETS}::test_what_cannot_be_is_one_sentence_on_every_rank_and_the_job_goes_on",
    ),
    _row(
        "ProcessSet",
        "a rank that is no member: ValueError, at once",
        f"{SETS}::test_every_call_refuses_who_is_no_member",
    ),
]

COMMAND = [
    _row(
        "--num-proc --hosts --hostfile",
        "how many ranks, where",
        f"{CLI}::test_default_is_one_rank_a_core",
        f"{CLI}::test_dry_run_shows_the_places_on_several_hosts",
        f"{CLI}::test_horovods_localhost_form_is_accepted",
        "python/launch/test_hosts.py::test_every_form_of_a_list_is_read",
        "python/launch/test_hosts.py::test_every_form_of_a_hostfile_is_read",
    ),
    _row(
        "--version",
        "the version whose API this is",
        f"{RUN_OPTIONS}::test_the_version_is_the_one_whose_api_this_is",
    ),
    _row("--check-build", "a table of backends", f"{CLI}::test_the_backends_are_a_table_of_four"),
    _row("--verbose", "what the launcher does", f"{CLI}::test_verbose_says_pids_and_ends"),
    _row(
        "--gloo",
        "Horovod's controller: accepted with a line",
        f"{RUN_OPTIONS}::test_gloo_of_horovodrun_is_its_controller",
    ),
    _row(
        "--ssh-port --ssh-identity-file",
        "reach ssh",
        f"{RUN_OPTIONS}::test_ssh_is_told_of_port_and_key",
    ),
    _row(
        "--start-timeout --gloo-timeout-seconds --network-interfaces --fusion-threshold-mb "
        "--cache-capacity --timeline-filename --timeline-mark-cycles --autotune "
        "--autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample "
        "--no-stall-check "
        "--stall-check-warning-time-seconds --stall-check-shutdown-time-seconds",
        "reach the ranks, and win over variables",
        f"{RUN_OPTIONS}::test_knobs_reach_the_ranks",
    ),
    _row(
        "--output-filename",
        "each rank's stdout and stderr in a folder of its own",
        f"{RUN_OPTIONS}::test_output_filename_writes_what_horovodrun_wrote",
    ),
    _row(
        "--config-file",
        "a YAML file of all options; the command line wins",
        f"{RUN_OPTIONS}::test_a_file_of_knobs_stands_behind_the_command_line",
        f"{RUN_OPTIONS}::test_a_bad_file_of_knobs_costs_one_sentence",
    ),
    _row("--log-level", "DEBUG says more", f"{RUN_OPTIONS}::test_a_low_log_level_is_verbose"),
    _row(
        "--prefix-output-with-timestamp",
        "a time before each line",
        f"{RUN_OPTIONS}::test_lines_have_a_time_where_that_is_asked",
    ),
    _row(
        "--disable-cache --cycle-time-ms --hierarchical-allreduce --no-hierarchical-allreduce "
        "--hierarchical-allgather --no-hierarchical-allgather --torus-allreduce "
        "--no-torus-allreduce --no-autotune --autotune-bayes-opt-max-samples "
        "--autotune-gaussian-process-noise --no-timeline-mark-cycles --stall-check "
        "--mpi-threads-disable --no-mpi-threads-disable --tcp --num-nccl-streams "
        "--log-with-timestamp --log-without-timestamp --log-hide-timestamp "
        "--no-log-hide-timestamp",
        "accepted, each with a line that says what happens instead",
        f"{RUN_OPTIONS}::test_what_means_nothing_here_is_said_and_passed_over",
        "python/compat/test_migration_page.py::test_an_option_does_what_its_row_says",
    ),
    _row(
        "--min-num-proc --max-num-proc --elastic-timeout --reset-limit",
        "the job goes on without lost ranks, and starts them again so many times",
        f"{ELASTIC_LAUNCH}::test_a_killed_rank_is_started_again_in_its_place",
        f"{ELASTIC_LAUNCH}::test_horovodruns_names_of_the_options_mean_the_same",
        f"{ELASTIC_LAUNCH}::test_the_reset_limit_ends_the_starts",
        f"{ELASTIC_LAUNCH}::test_too_few_ranks_end_the_job",
    ),
    _row(
        "--blacklist-cooldown-range",
        "a lost host is called again after so many seconds, twice as many after each loss",
        "python/launch/test_elastic_hosts.py::test_a_lost_host_comes_back",
    ),
    _row(
        "--host-discovery-script",
        "the program is asked each second; its hosts join and leave",
        "python/launch/test_elastic_discovery.py::test_a_host_joins_that_the_script_names_later",
    ),
    _row(
        "--slots-per-host",
        "of hosts for which the program prints no slots",
        "python/launch/test_elastic_discovery.py::test_a_host_joins_that_the_script_names_later",
    ),
    _row(
        "--mpi --jsrun --mpi-args --binding-args --thread-affinity",
        "absent: refused with a sentence",
        f"{RUN_OPTIONS}::test_what_is_absent_is_answered",
    ),
    _row(
        "output",
        "each line has its rank; stdout and stderr stay apart",
        "python/launch/test_console.py::test_prefixes_are_aligned",
        "python/launch/test_console.py::test_stdout_and_stderr_stay_apart",
    ),
    _row(
        "output",
        "the first process that fails ends the others, and the exit code is not 0",
        "python/launch/test_failure.py::test_a_killed_rank_is_named_with_what_its_victims_waited_for",
        "python/launch/test_failure.py::test_a_failure_with_nobody_left_does_not_wait",
    ),
    _row(
        "output",
        "children of ranks end with the job",
        f"{ENDING}::test_killing_the_launcher_ends_the_tree_within_a_second",
        f"{ENDING}::test_a_failure_ends_the_tree_of_the_others",
        f"{ENDING}::test_leftovers_of_a_job_that_succeeds_are_ended",
    ),
    _row(
        "horovod",
        "`import horovod.torch` in a script of horovodrun, its subprocesses and workers",
        f"{RUN_NAMES}::test_horovodrun_gives_its_ranks_the_names",
        f"{RUN_NAMES}::test_subprocesses_and_spawned_workers_find_the_names",
        f"{RUN_NAMES}::test_the_modules_that_scripts_import_from_are_there",
    ),
    _row(
        "horovod",
        "horovod.run(): a function, results by rank",
        f"{FUNCTION}::test_results_come_back_by_rank",
        f"{FUNCTION}::test_functions_of_the_program_travel_by_value",
        f"{FUNCTION}::test_horovods_run_takes_its_arguments",
    ),
    _row(
        "horovod",
        "what horovod.run() has not: refused with a sentence",
        f"{FUNCTION}::test_horovods_run_refuses_what_is_absent",
    ),
]

VARIABLES = [
    _row(
        "HOROVOD_FUSION_THRESHOLD HOROVOD_CACHE_CAPACITY HOROVOD_START_TIMEOUT",
        "are read; 0 disables fusion and cache",
        f"{CONFIG}::Config.EverySettingIsOfARankOrComparedWhenTheRanksMeet",
        f"{COLLECTIVES}::test_more_names_than_the_response_cache_holds",
        f"{COLLECTIVES}::test_fusion_does_not_change_the_bits",
    ),
    _row(
        "HOROVOD_TIMELINE HOROVOD_TIMELINE_MARK_CYCLES",
        "a trace of the whole job, with NEGOTIATE_x and CYCLE_START",
        f"{TIMELINE}::test_a_variable_records_the_whole_job",
        "python/hosts/test_timeline.py::test_hosts_with_other_clocks_are_in_one_timeline",
    ),
    _row(
        "HOROVOD_AUTOTUNE HOROVOD_AUTOTUNE_LOG HOROVOD_AUTOTUNE_WARMUP_SAMPLES "
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        "settings are tried while training, and what is faster is kept",
        f"{CONFIG}::Config.NothingIsTunedUnlessTheUserSaysSo",
        f"{AUTOTUNE}::test_training_stays_the_same",
        f"{AUTOTUNE}::test_what_is_faster_is_kept",
        f"{AUTOTUNE}::test_what_is_faster_no_more_is_not_kept",
    ),
    _row(
        "HOROVOD_STALL_CHECK_DISABLE HOROVOD_STALL_CHECK_TIME_SECONDS",
        "a stall is told with its tensors and the missing ranks",
        f"{CONFIG}::Config.EverySettingIsOfARankOrComparedWhenTheRanksMeet",
        f"{MISUSE}::test_a_stall_is_reported_with_tensors_and_missing_ranks",
    ),
    _row(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "a stall ends the job if asked",
        f"{CONFIG}::Config.EverySettingIsOfARankOrComparedWhenTheRanksMeet",
        f"{MISUSE}::test_a_stall_ends_the_job_when_asked_to",
    ),
    _row(
        "HOROVOD_CPU_OPERATIONS HOROVOD_GPU_OPERATIONS HOROVOD_GPU_ALLREDUCE "
        "HOROVOD_GPU_ALLGATHER HOROVOD_GPU_BROADCAST HOROVOD_GPU_ALLTOALL "
        "HOROVOD_GPU_REDUCESCATTER",
        "choose a backend; libraries that are not used cost a line",
        f"{CONFIG}::Config.OperationsAreOurOwnUnlessTheUserWantsGloo",
        f"{CONFIG}::Config.HorovodsOtherLibrariesAreWarnedOfAndHorovodrunsOwnChoiceIsNone",
        f"{BACKENDS}::test_a_script_of_horovods_that_wants_mpi_runs_and_is_told",
    ),
    _row(
        "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_CROSS_RANK "
        "HOROVOD_CROSS_SIZE HOROVOD_GLOO_RENDEZVOUS_PORT HOROVOD_HOSTNAME",
        "are set by our launcher and understood from Horovod's",
        f"{WORLD}::test_other_launchers_are_understood",
        f"{CONFIG}::Config.EveryStartersVariablesAreUnderstood",
        "python/launch/test_environment.py::test_every_rank_finds_its_place_in_each_dialect",
    ),
    _row(
        "HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_CYCLE_TIME HOROVOD_HIERARCHICAL_ALLREDUCE "
        "HOROVOD_HIERARCHICAL_ALLGATHER HOROVOD_TORUS_ALLREDUCE "
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE "
        "HOROVOD_CONTROLLER HOROVOD_GLOO_IFACE HOROVOD_GLOO_TIMEOUT_SECONDS "
        "HOROVOD_THREAD_AFFINITY HOROVOD_NUM_NCCL_STREAMS HOROVOD_BATCH_D2D_MEMCOPIES "
        "HOROVOD_ENABLE_ASYNC_COMPLETION HOROVOD_DISABLE_NVTX_RANGES "
        "HOROVOD_DYNAMIC_PROCESS_SETS HOROVOD_ELASTIC HOROVOD_ELASTIC_TIMEOUT HOROVOD_LOG_LEVEL "
        "HOROVOD_LOG_HIDE_TIME HOROVOD_ADASUM_MPI_CHUNK_SIZE HOROVOD_MPI_THREADS_DISABLE "
        "HOROVOD_DISABLE_GROUP_FUSION",
        "mean nothing here, and the page says what happens instead",
        "python/compat/test_migration_page.py::test_a_variable_is_read_exactly_if_the_page_says_so",
        "python/compat/test_migration_page.py::test_the_page_is_made_of_the_table",
    ),
]

ELASTIC = [
    _row(
        "elastic.run",
        "a lost rank costs the work since the last commit; the function is called again",
        f"{ELASTIC_RUN}::test_a_spare_takes_the_place",
        f"{ELASTIC_RUN}::test_fewer_ranks_go_on",
    ),
    _row(
        "elastic.run elastic.State",
        "ranks that join interrupt check_host_updates(), and nothing is restored",
        f"{ELASTIC_RUN}::test_a_rank_that_joins_interrupts_and_nothing_is_restored",
    ),
    _row(
        "elastic.run elastic.State",
        "reset callbacks run on ranks that stay, before the state is synchronized",
        f"{ELASTIC_RUN}::test_a_rank_that_joins_interrupts_and_nothing_is_restored",
    ),
    _row(
        "elastic.run",
        "outside an elastic job the ranks begin with the state of rank 0",
        f"{ELASTIC_STATE}::test_run_begins_with_the_state_of_rank_0",
    ),
    _row(
        "elastic.run elastic.State",
        "an interrupt of the program's own begins the function anew",
        f"{ELASTIC_STATE}::test_an_interrupt_of_the_program_calls_the_function_again",
    ),
    _row(
        "elastic.TorchState",
        "modules, optimizers and values are saved, restored and synchronized",
        f"{ELASTIC_STATE}::test_a_state_is_restored_as_it_was_committed",
        f"{ELASTIC_STATE}::test_sync_gives_everything_of_rank_0",
        f"{ELASTIC_STATE}::test_a_registered_object_can_be_replaced",
    ),
    _row(
        "elastic.TorchState",
        "handlers of other types can be registered",
        f"{ELASTIC_STATE}::test_a_handler_keeps_what_only_the_program_knows",
    ),
    _row(
        "elastic.ObjectState elastic.State",
        "values become attributes, and are saved, restored and synchronized",
        f"{ELASTIC_STATE}::test_an_object_state_has_values",
        f"{ELASTIC_STATE}::test_a_state_of_the_program_runs",
    ),
    _row(
        "elastic.ElasticSampler",
        "deals what is left of an epoch to the ranks of now; batches count when committed",
        f"{ELASTIC_STATE}::test_the_sampler_deals_what_is_left",
        f"{ELASTIC_STATE}::test_samples_counted_by_name_are_united",
        f"{ELASTIC_RUN}::test_a_spare_takes_the_place",
    ),
]

SUBSYSTEMS = [
    _row(
        "data",
        "AsyncDataLoaderMixin reads ahead, up to async_loader_queue_size batches",
        f"{LOADER}::test_every_epoch_has_all_batches_in_order",
        f"{LOADER}::test_it_reads_ahead_but_not_further_than_the_queue",
    ),
    _row(
        "LibTorch",
        "programs in C++ train",
        "python/libtorch/test_libtorch.py::test_check_passes_on_every_rank",
    ),
]

PROMISES = [
    *BASICS,
    *OPERATIONS,
    *DIFFERENTIABLE,
    *UNEVEN,
    *HELPERS,
    *PROCESS_SETS,
    *COMMAND,
    *VARIABLES,
    *ELASTIC,
    *SUBSYSTEMS,
]
