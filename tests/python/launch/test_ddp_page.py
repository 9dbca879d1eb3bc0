"""The script on the page for DDP's users runs as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import warm

PAGE = Path(__file__).resolve().parents[3] / "docs" / "migrate-from-ddp.md"


@pytest.mark.parametrize(
    "starter", ["ciranda run", pytest.param("torchrun", marks=pytest.mark.soak)]
)
def test_the_script_trains_the_same_model_on_all_ranks(launcher, starter):
    (text,) = re.findall(r"as a whole script:\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    check = (
        "weights = [each.tolist() for each in cr.allgather_object(model.weight)]\n"
        "if cr.rank() == 0:\n    print(weights)\n"
    )
    (launcher.folder / "train.py").write_text(text + check)
    launch = {
        "ciranda run": ["ciranda", "run", "-np", "2"],
        "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    }[starter]
    command = ["-m", *launch, "train.py"]
    result = warm.run(command, env=launcher.environment, cwd=launcher.folder)
    assert result.returncode == 0, result.stderr
    first, second = json.loads(result.stdout.removeprefix("[0] "))
    assert first == second
    assert (launcher.folder / "model.pt").exists()
