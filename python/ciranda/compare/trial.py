"""A rank of one trial of a sweep: `python -m ciranda.compare.trial SETTING_FILE LR BATCH`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ciranda import sweep
from ciranda.compare import protocol, system
from ciranda.compare.setting import setting_of


def main() -> None:
    file, lr, batch, *folder = sys.argv[1:]
    from ciranda.compare.workload import Workload, bare, score

    os.environ.pop(protocol.FOLDER, None)  # the sweep reports the run's outcome, not this trial

    told = setting_of(json.loads(Path(file).read_text()), file)
    setting = told.but(
        system="one" if told.ranks == 1 else "shm",
        lr=float(lr),
        batch=int(batch),
        threads=int(os.environ["OMP_NUM_THREADS"]),
    )
    training, workload = (
        system.load(setting.system),
        Workload(setting, folder[0] if folder else None),
    )
    test = workload.images("test")
    workload.after_epoch = lambda epoch: sweep.report(
        epoch, score(bare(training.model), None, test)
    )
    training.train(workload)


if __name__ == "__main__":
    main()
