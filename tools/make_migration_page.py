"""Writes docs/migrate-from-horovod.md from horovod_table.py and the launcher's table of options."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from horovod_table import SYMBOLS, VARIABLES

from ciranda.launch.horovod.horovodrun import FLAGS, Fate

PAGE = Path(__file__).resolve().parents[1] / "docs" / "migrate-from-horovod.md"

_FATES = {
    Fate.OURS: "works",
    Fate.WORKS: "works",
    Fate.NOTED: "accepted, with a line",
    Fate.REFUSED: "refused, with a sentence",
}

_HEAD = """\
<!-- Made by tools/make_migration_page.py from tools/horovod_table.py; edit those. -->
# From Horovod

ciranda has the API of Horovod 0.28.1 for PyTorch. Three ways, from the least work on:

| you change | how |
|---|---|
| nothing | `horovodrun -np 4 python train.py`: ciranda's command of that name |
| the command | `mpirun … python -m ciranda.compat.horovod train.py`, under any starter |
| an import | `import ciranda.torch as hvd`, and `ciranda run -np 4 train.py` |

In the first two `import horovod.torch as hvd` is ciranda, also in subprocesses and spawned
workers of a DataLoader, by a folder on `PYTHONPATH`; `import ciranda.compat.horovod as names;
names.install()` does the same from within. `horovod.torch`, its `mpi_ops`, `functions`,
`compression`, `optimizer`, `sync_batch_norm` and `elastic`, `horovod.common.exceptions`,
`.elastic`, `.process_sets`, `.util`, `horovod.data`, `horovod.run` and `horovod.runner` are there;
`horovod.spark`, `horovod.ray`, and what is for other frameworks end with a sentence. An
installed Horovod is hidden, with a line that says so. Both
packages install a command `horovodrun`: uninstall Horovod, or the one that was installed last
wins.

`horovod.run(f, num_proc=4, hosts=...)` takes Horovod's arguments
([launcher.md](launcher.md#a-function-instead-of-a-program)); `pip install cloudpickle` sends
functions that no module has.

## What you will notice

- An operation that ranks disagree about is one error on all of them, with both values; a rank
  that dies ends the job within seconds, and a block names it
  ([launcher.md](launcher.md#the-failure-block)).
- `backward()` returns averages, so `synchronize()` before clipping and `skip_synchronize()` are
  not needed, and work ([optimizer.md](optimizer.md#what-pgrad-holds)).
- Objects that need pickle need `allow_pickle=True`: unpickling runs code of the sender.
- There is no background cycle: nothing to tune, and a rank that waits sleeps. What waited a
  millisecond for its cycle is done in microseconds: a name may be used again that much sooner, and
  a program or test that counts on the error of a name in flight may not see it.

## horovod.torch

`DistributedOptimizer`, its methods, every collective and its positional arguments are Horovod's
where nothing else is said. Beyond them: `gather`, `scatter`, `reduce`, `send`, `recv`, parameter
servers.
"""

_HOROVODRUN = """
## horovodrun

These work in `horovodrun`, `cirandarun` and `ciranda run` alike. "With a line": stderr says what
happens instead, and the job goes on. "With a sentence": nothing is started.

| option | here | |
|---|---|---|
"""

_CONFIG_FILE = """
`--config-file` reads Horovod's sections `params`, `timeline`, `stall_check`, `library_options`,
`logging` and `autotune` (`pip install PyYAML`); what the command line says wins.
"""

_VARIABLES = """
## Variables

`CIRANDA_` in front of a name wins over `HOROVOD_`. [configuration.md](configuration.md) has all
of ours.

| variable | read | |
|---|---|---|
"""


def page() -> str:
    parts = [_HEAD]
    for title, rows in SYMBOLS.items():
        parts += [f"\n### {title}\n\n| name | here | difference |\n|---|---|---|\n"]
        for row in rows:
            parts.append(_row(row.names, "same, but" if row.remark else "same", row.remark))
    parts.append(_HOROVODRUN)
    for (fate, meaning), flags in groupby(FLAGS, lambda flag: (flag.fate, flag.meaning)):
        names = [name for flag in flags for name in flag.names]
        parts.append(_row(names, _FATES[fate], _words(meaning)))
    parts += [_CONFIG_FILE, _VARIABLES]
    for variable in VARIABLES:
        parts.append(_row(variable.names, "yes" if variable.is_read else "no", variable.remark))
    return "".join(parts)


def _words(meaning: str) -> str:
    """Help of an option as the rest of a row."""
    text = meaning.rstrip(".")
    return text if re.match(r"[A-Z]{2}", text) else text[:1].lower() + text[1:]


def _row(names: list[str] | tuple[str, ...], state: str, remark: str) -> str:
    listed = ", ".join(f"`{name}`" for name in names)
    return f"| {listed} | {state} | {remark} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
