"""Ask what was compiled and why, and have a report written.

python reports.py
"""

import json
from pathlib import Path

from digits import Classifier, data

import lightning as L
import pantile.lightning


def main() -> None:
    strategy = pantile.lightning.IPUStrategy(autoreport=True, autoreport_dir="ipu_report")
    trainer = L.Trainer(
        accelerator="ipu",
        devices=2,
        strategy=strategy,
        accumulate_grad_batches=2,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), data(64), data(16))
    print(f"{strategy.mode} steps because of {', '.join(strategy.mode_reasons)}")
    for kind in ("training", "inference"):
        report = json.loads(Path("ipu_report", kind, "report.json").read_text(encoding="utf-8"))
        print(f"{kind}: {len(report['ops'])} operators on a {report['target']['chip']}")


if __name__ == "__main__":
    main()
