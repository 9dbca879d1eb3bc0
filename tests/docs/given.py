"""What the blocks of the pages take as given, and which of them cannot run here."""

from __future__ import annotations

from pages import Key

SERVERS = "docs/parameter-server.md"
QUICKSTART = "docs/quickstart.md"  # test_quickstart.py runs it from top to bottom

# Why not. A test that is named here does what the block does.
NOT_RUN: dict[Key, str] = {
    (
        "README.md",
        "pip install",
    ): "tests/python/packaging/test_setup_py.py builds a wheel like this",
    ("docs/bench.md", "$ ciranda bench   "): (
        "takes minutes: tests/python/bench/test_bench_run.py"
        "::test_a_run_verifies_and_times_every_row_of_every_side makes a short one"
    ),
    ("docs/bench.md", "$ ciranda run -np 2 -m ciranda.bench"): (
        "takes what the line above takes: tests/python/bench/test_bench_check.py"
        "::test_a_worker_tells_how_much_its_library_got_wrong"
    ),
    ("docs/doctor.md", "$ ciranda doctor   "): (
        "says what is wrong with this machine: tests/python/doctor/test_doctor.py"
        "::test_this_host_is_looked_at_and_reduces"
    ),
    ("docs/doctor.md", "$ ciranda doctor -H"): (
        "needs hosts: tests/python/doctor/test_between_hosts.py"
        "::test_two_hosts_that_are_well_are_measured_and_reduce_together"
    ),
    ("docs/elastic.md", "pkill -TERM ciranda-agent"): (
        "would empty the hosts of other tests: tests/python/launch/test_elastic_hosts.py"
        "::test_a_host_leaves_whose_agent_gets_sigterm"
    ),
    ("docs/launcher.md", "ciranda key ~/job.key"): (
        "needs Slurm: tests/python/hosts/test_two_node_slurm.py"
        "::test_launchers_of_srun_make_one_job_that_falls_together"
    ),
    ("docs/libtorch.md", "cmake -B build"): (
        "tests/python/libtorch/test_libtorch.py"
        "::test_the_example_trains_on_random_images_and_on_fashion_mnist builds and starts one"
    ),
    ("docs/migrate-from-ddp.md", "import torch\nimport ciranda"): (
        "tests/python/launch/test_ddp_page.py::test_the_script_trains_the_same_model_on_all_ranks"
    ),
    (
        "docs/training.md",
        "cr.init()\ntorch.cuda",
    ): "needs a GPU: tests/python/gpu/test_gpu.py",
}

# --- Python ------------------------------------------------------------------------------------

PRELUDE = """
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ciranda.torch as cr

os.chdir(os.environ.get("FOLDER", "."))


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 2))


def load_data():
    return torch.randn(60, 8), torch.randint(2, (60,))


def batches(*share):
    return [(torch.randn(4, 8), torch.randn(4, 2)) for _ in range(3)]


def loss(found, wanted):
    return F.mse_loss(found, wanted)
"""

# For fragments of a script that runs on ranks, after init() where they do not call it. Those of
# process sets need four.
RANKS = 4
IN_A_RING = """
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
train_set = data = TensorDataset(torch.randn(32, 8), torch.randn(32, 2))
sampler = cr.data.DistributedSampler
batches = batches()
epochs, accuracy = 1, 0.5
"""

GIVEN: dict[Key, str] = {
    ("docs/migrate-from-ddp.md", "import torch\nimport torch.dist"): (
        "os.environ['RANK'] = os.environ['CIRANDA_RANK']\n"
        "os.environ['WORLD_SIZE'] = os.environ['CIRANDA_SIZE']"
    ),
    ("docs/elastic.md", "import torch"): "def evaluate():\n    return 0.5",
    ("docs/checkpoints.md", "from pathlib"): (
        "checkpoints = cr.Checkpoints('checkpoints')\n"
        "checkpoints.save({'model': model})\n"
        "checkpoints.close()"
    ),
    ("docs/elastic.md", "sampler = cr.elastic"): (
        "optimizer = cr.DistributedOptimizer(optimizer, model.named_parameters())\n\n\n"
        "def evaluate():\n    return 0.5"
    ),
    ("docs/elastic.md", "@state.on_resize"): "state = cr.elastic.TorchState(model, optimizer)",
    ("docs/launcher.md", "import ciranda"): "def train(folder):\n    return len(folder)\n",
    ("docs/optimizer.md", "optimizer.step()\nwith"): "model.table, m = nn.Embedding(8, 2), 1.0",
    ("docs/process-sets.md", "generator, "): "loss = torch.ones(1)",
    ("docs/process-sets.md", "cr.init(comm="): "rank_of_launcher = int(os.environ['CIRANDA_RANK'])",
    ("docs/process-sets.md", "for batch in mine"): "mine = range(cr.rank())",
    ("docs/training.md", "figures = "): "loss, labels = torch.ones(()), [1, 0]",
    ("docs/training.md", "last = "): (
        "optimizer = cr.DistributedOptimizer(optimizer, model.named_parameters())"
    ),
    ("docs/training.md", "def save"): (
        "path = 'checkpoint.pt'\n"
        "optimizer = cr.DistributedOptimizer(optimizer, model.named_parameters())\n"
        "sampler = cr.data.DistributedSampler(train_set)"
    ),
    (SERVERS, "from ciranda.torch import ps"): (
        "model = Net()\noptimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)"
    ),
    (SERVERS, "if cr.ps.is_evaluator"): (
        "model, test_set = Net(), None\n\n\ndef accuracy(model, test_set):\n    return 0.5"
    ),
    (SERVERS, "cr.init()\n\n\n@cr.ps.per_worker"): "loss = torch.ones(())",
    (SERVERS, "@cr.ps.per_worker"): "cr.init()",
    (SERVERS, "table = "): (
        "cr.init()\nhead = nn.Linear(64, 2)\n\n\n"
        "def batches():\n    return [(torch.tensor([1, 7, 7]), torch.ones(3, 2))] * 3"
    ),
    (SERVERS, "def block"): (
        "cr.init()\n\n\ndef batches():\n    return [(torch.randn(4, 8), torch.ones(4, 10))] * 3"
    ),
}

AFTERWARDS: dict[Key, str] = {
    ("docs/launcher.md", "import ciranda"): "assert losses == [4, 4, 4, 4]",
    ("docs/migrate-from-ddp.md", "import torch\nimport torch.dist"): "dist.destroy_process_group()",
    ("docs/training.md", "def save"): "save(path)",
}

# What stands in a block to show how large things may be, and what suffices here.
SMALLER: dict[Key, dict[str, str]] = {
    (SERVERS, "@cr.ps.per_worker"): {"60_000": "60", "1000": "30", "max_iter=50": "max_iter=3"},
    (SERVERS, "table = "): {"100_000_000": "1000"},
    (SERVERS, "def block"): {"8192": "8", "64": "2"},
}

# Scripts of one process that starts its ranks itself.
ALONE: tuple[Key, ...] = (
    ("docs/launcher.md", "import ciranda"),
    ("docs/sweep.md", "from pathlib"),
)

# Scripts of one worker beside a parameter server.
BESIDE_A_SERVER: tuple[Key, ...] = ((SERVERS, "table = "), (SERVERS, "def block"))

# Blocks that are parts of a script, the command that starts it, from a page or not on any, and what
# is run afterwards by one rank.
TRAINS = (SERVERS, "import ciranda")
SCRIPTS: dict[str, tuple[tuple[Key, ...], Key | str, tuple[Key, ...]]] = {
    "checkpoints": (
        (TRAINS,),
        (SERVERS, "ciranda run -np 4 --ps 2 --checkpoint-dir checkpoints train.py"),
        ((SERVERS, "from ciranda.torch import ps"),),
    ),
    "evaluator": (
        ((SERVERS, "if cr.ps.is_evaluator"), TRAINS),
        (SERVERS, "ciranda run -np 4 --ps 2 --checkpoint-dir checkpoints --checkpoint-every"),
        (),
    ),
    "coordinator": (
        ((SERVERS, "cr.init()\n\n\n@cr.ps.per_worker"),),
        (SERVERS, "ciranda run -np 4 --ps 2 --coordinator"),
        (),
    ),
    "sandblaster": (
        ((SERVERS, "@cr.ps.per_worker"),),
        "ciranda run -np 1 --ps 1 --coordinator train.py",
        (),
    ),
}

# --- C++ ---------------------------------------------------------------------------------------

CPP_PRELUDE = """
#include <ciranda/torch.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return layer->forward(x); }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(8, 2));
};
TORCH_MODULE(Net);

torch::Tensor images, labels;
double accuracy(Net model);
"""
CPP_ARGUMENTS = "Net model, torch::Tensor loss, torch::optim::Adam adam"

# --- commands ----------------------------------------------------------------------------------

# The script that commands start where no block says what is in it. Without torch, whose import
# takes seconds.
TRAIN = """
import os

print(f"rank {os.environ.get('RANK')} has trained")
print("|  87.5 % |")
"""
FILES = {
    "train.py": TRAIN,
    "package/__init__.py": "",
    "package/train.py": TRAIN,
    "examples/fashion_mnist.py": TRAIN,
    "a_program": "#!/usr/bin/env bash\n",
    "hosts.sh": "#!/bin/sh\necho localhost:4\n",
}

# Before the real ones on PATH. A command that names other hosts, or would measure for minutes, is
# run dry, where it starts nothing and says what is wrong with it. Scripts with torch run on one
# rank.
CIRANDA = """#!/usr/bin/env bash
words=() dry=()
case " $* " in
*" -H "* | *" --ps-hosts "* | *" --rendezvous "* | *" --resume "*) dry=(--dry-run) ;;
*" --host-discovery-script "*) dry=(--dry-run) ;;
esac
[[ ${1:-} != compare ]] || dry=(--dry-run)
while (($#)); do
  words+=("$1")
  if [[ $1 == -np && $2 -gt ${MOST_RANKS:-$2} ]]; then words+=("$MOST_RANKS") && shift; fi
  shift
done
name=$(basename "$0")
if [[ $name == ciranda ]]; then exec "$REAL/ciranda" "${words[0]}" "${dry[@]}" "${words[@]:1}"; fi
exec "$REAL/$name" "${dry[@]}" "${words[@]}"
"""
# Another starter: what it would start. tests/python/starters and tests/python/hosts have real ones.
STARTER = """#!/usr/bin/env bash
while [[ $1 == -n || $1 == … || $1 == --* ]]; do
  [[ $1 != -n ]] || shift
  shift
done
[[ $1 != *.py ]] || set -- python "$@"
exec "$@"
"""
# A server of this host, for a second: it has understood its options, and listens.
SERVER = """#!/usr/bin/env bash
status=0
[[ -e job.key ]] || "$REAL/ciranda" key job.key
timeout 1 "$REAL/ciranda-ps" "${@//192.0.2.7:20000/127.0.0.1:$FREE_PORT}" || status=$?
((status == 124))
"""
STAND_INS = {
    "ciranda": CIRANDA,
    "cirandarun": CIRANDA,
    "horovodrun": CIRANDA,
    "ciranda-ps": SERVER,
    "srun": STARTER,
    "torchrun": STARTER,
}
