"""TVM comes without torch where it is imported that way."""

from __future__ import annotations

import subprocess
import sys


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_tvm_imported_inside_does_not_bring_torch_and_torch_works_afterwards() -> None:
    code = (
        "import sys\nfrom chanas.devices.lean_tvm import torch_hidden\nwith torch_hidden():\n    import tvm\n"
        "before = 'torch' in sys.modules\nimport torch\nprint(before, float(torch.ones(3).sum()))"
    )
    assert _run(code) == "False 3.0"


def test_a_gpus_worker_decides_itself_when_tvm_comes_and_without_torch() -> None:
    """TVM's CUDA runtime needs a library that is found for it first, and TVM would bring torch."""
    code = "import sys\nimport chanas.measuring.worker.cuda\nprint({'tvm', 'tvm_ffi', 'torch'} & set(sys.modules))"
    assert _run(code) == "set()"


def test_hidden_torch_cannot_be_imported() -> None:
    code = (
        "from chanas.devices.lean_tvm import hide_torch\nhide_torch()\n"
        "try:\n    import torch\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    )
    assert _run(code) == "torch"
