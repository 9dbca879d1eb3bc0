"""A process of one run: `python -m ciranda.compare.worker SETTING [DATA_FOLDER]`."""

from __future__ import annotations

import json
import sys


def main() -> None:
    setting_text, *folder = sys.argv[1:]
    from ciranda.compare import system
    from ciranda.compare.setting import setting_of
    from ciranda.compare.workload import Workload

    setting = setting_of(json.loads(setting_text), "the command line")
    system.load(setting.system).train(Workload(setting, folder[0] if folder else None))


if __name__ == "__main__":
    main()
