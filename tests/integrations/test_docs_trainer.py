"""The Python of docs/trainer.md, with a small model of Transformers."""

import re
from pathlib import Path

import pytest
import torch
import transformers
from trainable import bert, sentences

from remat_cli import fitted
from remat_cli.integrations.transformers import RematCallback

PAGE = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def focal_loss(outputs, labels, num_items_in_batch=None):
    chances = torch.softmax(outputs.logits, -1).gather(-1, labels[..., None])
    return -((1 - chances) ** 2 * chances.log()).mean()


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_trains_within_its_budget(block, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True
    )
    names = {"torch": torch, "model": bert(), "args": args, "data": sentences(), "focal_loss": focal_loss}
    names |= {"Trainer": transformers.Trainer, "RematCallback": RematCallback}
    block = block if "train_dataset" in block else block.replace("Trainer(", "Trainer(args=args, train_dataset=data, ")
    exec(compile(block, "trainer.md", "exec"), names)
    if "trainer.train()" not in block:
        names["trainer"].train()
    figures = fitted(names["model"])
    assert figures.plan_bytes <= figures.budget_bytes


def test_the_page_shows_a_callback_and_a_loss():
    assert ["loss=loss" in block for block in BLOCKS] == [False, True]
