"""Steps of the models of train.py with data, in an elastic loop or a plain one.

ciranda run -np 2 --min-np 2 elastic.py --loop elastic --model mlp '{"steps": 100}'
"""

from __future__ import annotations

from collections.abc import Iterator

import control
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset
from train import CLASSES, JOBS, CirandaTrainer, Job, run_steps

from ciranda.torch import elastic

SAMPLES = 4096
SHARED_STEP = {"no": False, "host": "host"}


class Trainer(CirandaTrainer):
    """Makes its steps with the batches of a loop."""

    def __init__(self, job: Job, shared_step: bool | str, is_elastic: bool) -> None:
        super().__init__(job, shared_step)
        generator = torch.Generator().manual_seed(3)
        self._data = TensorDataset(
            torch.randn(SAMPLES, 1, 28, 28, generator=generator),
            torch.randint(CLASSES, (SAMPLES,), generator=generator),
        )
        self._loop = self._elastic_loop() if is_elastic else self._plain_loop()

    def step(self) -> None:
        next(self._loop)

    def _plain_loop(self) -> Iterator[None]:
        share = Subset(self._data, range(self.hvd.rank(), SAMPLES, self.hvd.size()))
        while True:
            loader = DataLoader(share, self.job.batch, shuffle=True, drop_last=True)
            for self.images, self.labels in loader:
                super().step()
                yield

    def _elastic_loop(self) -> Iterator[None]:
        loader = DataLoader(self._data, self.job.batch, shuffle=True, drop_last=True)
        state = elastic.TorchState(self.model, self.optimizer)
        while True:
            for step in elastic.steps(loader, state):
                with step as (self.images, self.labels):
                    super().step()
                yield


def main() -> None:
    parser = control.make_parser()
    parser.add_argument("--loop", choices=["elastic", "plain"], required=True)
    parser.add_argument("--model", choices=sorted(JOBS), required=True)
    parser.add_argument("--shared-step", choices=SHARED_STEP, default="no")
    args = parser.parse_args()
    torch.set_num_threads(1)
    is_elastic = args.loop == "elastic"
    trainer = Trainer(JOBS[args.model], SHARED_STEP[args.shared_step], is_elastic)
    control.serve(args, trainer.hvd.rank(), lambda command: run_steps(trainer, command))
    trainer.close()


if __name__ == "__main__":
    main()
